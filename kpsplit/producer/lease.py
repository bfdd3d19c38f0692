"""When a reading of the control topic renews a producer's lease, pure (design, section 6).

A lease says: until then no operator cuts a segment of ours unless we answered its PREPARE and acknowledged
its fence. That rests on the registration: an operator expires a registration that stayed silent for a whole
lease, and from then on neither asks it nor waits for it. A producer is not told. Three rules keep it from
trusting a registration that was expired behind its back:

1. Nothing is *owed* when the lease is renewed: every PREPARE in the view is answered and every fence that we
   answered is acknowledged. So while an operator waits for us in vain our lease runs out, and it is over
   before the registration can be expired. An answer counts for readings that were asked for behind it.
   A fence that a producer with transactions has not acknowledged is not owed: no operator goes on without
   that acknowledgement, whatever becomes of leases, and the transaction it waits for may be a long one.
2. Only a lease that is still valid once the control topic was read can be renewed as it is: as long as it
   is valid no PREPARE that is newer than the lease can have been waited for in vain, though the view may have
   passed over that PREPARE and its end.
3. Once it has run out, the producer registers again, with the next generation and everything answered (so
   only with nothing owed), and only then reads the control topic to its end. If the states of its partitions
   changed between those two, an attempt that is over by now may have expired the new registration as well
   (its PREPARE was older, so its patience was at an end): the producer registers once more.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.splitter.fence_answers import may_renew, to_acknowledge
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.producers import ProducerRecord

Seen = frozenset[tuple[str, int]]


def owes(states: Iterable[PartitionState], own: ProducerRecord) -> bool:
    """Tell whether an operator waits, no longer than a lease: for a PREPARE's answer, or a fence's."""
    known = list(states)
    fences = own.transactional_id is None and to_acknowledge(known, own)
    return not may_renew(known, own) or bool(fences)


def seen(states: Iterable[PartitionState]) -> Seen:
    """Return which state of each partition is in the view."""
    return frozenset((str(s.parent), s.revision) for s in states)


class Renewal:
    """The rules above. ``registered_in``: the view in which the producer registered again, until used."""

    def __init__(self, registered_in: Seen | None = None) -> None:
        self.registered_in = registered_in

    def must_register(self, *, lease_valid: bool, owing: bool) -> bool:
        """Tell whether to register again before the end of the control topic is asked for."""
        return not lease_valid and not owing

    def registering(self, view: Seen) -> None:
        """Note that the registration is written again, in this view and with nothing owed."""
        self.registered_in = view

    def renews(self, view: Seen, *, lease_valid: bool, owing: bool) -> bool:
        """Tell whether a view that was read to the end renews the lease, from when the end was asked for.

        ``lease_valid``: whether the old lease is valid still, now that the topic was read.
        """
        registered_in, self.registered_in = self.registered_in, None
        return not owing and (lease_valid or registered_in == view)
