"""When the library's thread may wait for the control topic alone: a fence is on and nothing else moves."""

from __future__ import annotations

from kpsplit.producer.fence_task import only_holds
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy
from tests.unit.samples import UNSPLIT, fenced
from tests.unit.test_producer_fence import LOW, SPLIT, fence_of, send


def test_a_fence_with_nothing_in_flight_only_holds() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.hold(LOW, "a")
    assert fence.busy() and only_holds(fence)


def test_a_fence_that_waits_for_an_acknowledgement_does_more() -> None:
    fence = fence_of()
    writer, record = send(fence)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not only_holds(fence)
    fence.acknowledged(writer, record, 7, lease_valid=True)
    assert fence.pending() and not only_holds(fence)  # its report waits for the outcome


def test_held_records_that_may_go_are_not_waited_with() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.hold(LOW, "a")
    fence.observe(apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone")), lease_valid=True)
    assert fence.busy() and not only_holds(fence)
