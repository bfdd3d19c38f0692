"""When a reading of the control topic renews a producer's lease, and what happens when the lease runs out.

docs/protocol.md, 6.2 and 6.3. A lease says: until then no operator cuts a segment of ours unless we
answered its PREPARE and acknowledged its fence. That rests on two rules:

1. Nothing is *owed* when the lease is renewed: every PREPARE in the view is answered. So while an operator
   waits for an answer that does not come, our lease runs out. An answer counts for readings that were asked
   for after it. A fence need not be acknowledged: a producer that has it in its view holds, and reports
   nothing more as final.
2. A registration ends with its lease (``registration``). Only a reading that was asked for after the
   registration renews a lease, and only while the registration is good. An operator that found us silent for
   a lease, with its attempt still under way, so knows that our registration is over, and may remove it: we
   register again, under another key, before we answer or write anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.kafka.log_ends import EndRequest
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.registration import ControlFeed
from kpsplit.splitter.control_plane import to_answer
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.producers import ProducerRegistration


def owes(states: Iterable[PartitionState], own: ProducerRegistration) -> bool:
    """Return whether an operator waits for the answer to a PREPARE."""
    return bool(to_answer(states, own))


EXPIRY_SECONDS = 0.5
RETRY_SECONDS = 0.05


class LeaseTask:
    """Owned by the library's thread. ``adopted``: the tail's progress that is applied to the fences."""

    def __init__(self, feed: ControlFeed, held: HeldRecords) -> None:
        self._feed = feed
        self._held = held
        self._writes = 0
        self._producer = feed.producer
        self._request: EndRequest | None = None
        self._renew_at = 0.0
        self._expire_at = 0.0
        self.adopted = -1

    def watch_time(self) -> None:
        """Hold everything once the lease has run out; fail what has waited too long."""
        now = monotonic()
        producer = self._producer
        if now >= producer.lease_until > 0:
            with producer.lock.first:
                producer.lapse()
            self._renew_at = 0.0
        if now >= self._expire_at:
            self._expire_at = now + EXPIRY_SECONDS
            with producer.lock.first:
                self._held.expire(now)

    def renew(self) -> None:
        """Renew the lease, without waiting.

        The view is good for a lease from when the end was asked for, once it is read and applied.
        """
        request = self._asked()
        if request is None or not request.done():
            return
        tail = self._feed.following()
        try:
            ends = request.result()
        except KpsplitError:
            self._request = None
            raise
        # Read is not enough: what was read must hold back reports before the lease is longer.
        if not tail.reached(ends) or self.adopted != tail.progress():
            return
        self._request = None
        self._renew_from(request.asked)

    def _asked(self) -> EndRequest | None:
        """Return the question for the control topic's end that is on its way, None if it is not time yet."""
        registration = self._feed.registration
        if self._writes != registration.writes:  # what was written counts only for ends asked for after it
            self._request, self._renew_at = None, 0.0
        if self._request is None and monotonic() >= self._renew_at:
            registration.register_again(Deadline(self._feed.lease_seconds()))
            self._writes = registration.writes
            self._request = self._feed.following().ask_end()
        return self._request

    def _renew_from(self, asked: float) -> None:
        producer, own = self._producer, self._feed.registration
        if owes(self._feed.states(), own.record) or not own.renews(asked):
            self._renew_at = monotonic() + RETRY_SECONDS
            return
        lease = self._feed.lease_seconds()
        with producer.lock.first:
            producer.renew(asked + lease)
        self._renew_at = asked + lease / 4  # leaves time for more tries before it runs out
