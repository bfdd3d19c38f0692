"""When a reading of the control topic renews a producer's lease, pure (design, section 6).

A lease says: until then no operator cuts a segment of ours unless we answered its PREPARE and acknowledged
its fence. That rests on two rules:

1. Nothing is *owed* when the lease is renewed: every PREPARE in the view is answered. So while an operator
   waits for us in vain our lease runs out. An answer counts for readings that were asked for behind it. A
   fence need not be acknowledged: whoever has it in its view holds, and reports nothing more as final.
2. A registration ends with its lease (``registration``). Only a reading that was asked for behind the
   registration renews a lease, and only while the registration is good. An operator that found us silent for
   a lease, with its attempt still under way, so knows that our registration is over, and may remove it: we
   register again, under another key, before we answer or write anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.registrations import to_answer


def owes(states: Iterable[PartitionState], own: ProducerRegistration) -> bool:
    """Tell whether an operator waits for the answer to a PREPARE."""
    return bool(to_answer(states, own))
