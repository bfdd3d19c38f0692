"""What the simulation has found in the product, each as a test of its own."""

from __future__ import annotations

from typing import Any

import pytest

from kpsplit.errors import DeadlineExceededError
from kpsplit.splitter.driver import Driver
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import Event, PartitionState, Result, Retire
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT, merge_attempt, operated, phantom, split_attempt
from tests.unit.test_driver import RANGES, Cluster, DiedError, Fault, Simulated, Time, run

HALVES = WHOLE.split_evenly(2)


def split_merged_split() -> PartitionState:
    """A phantom holds a record, the parent was reopened and nothing was written before the next split."""
    state = operated(UNSPLIT, split_attempt(UNSPLIT, 0, HALVES), {0: 2})
    merge = merge_attempt(state, (2, 3), WHOLE)
    state = operated(state, merge, {1: 3, 2: 0, 3: 1})
    again = split_attempt(state, 4, HALVES, "s2")
    return operated(state, again, {4: state.lineage.get(4).start})


def test_an_empty_segment_is_not_drained_because_ordinary_offsets_say_nothing_of_it() -> None:
    """Else a slot that begins there reads a child before what its grandparents hold of the same keys."""
    lineage = split_merged_split().lineage
    cursor = Cursor.from_positions(lineage, HALVES[1], {phantom(0): 0})
    assert cursor.readable(lineage) == {0: 0}
    assert not cursor.ready(lineage, 7) and not cursor.complete(lineage, 4)
    after_first = Cursor(HALVES[1], {0: 2, 4: lineage.get(4).start, 7: 0}).settled(lineage)
    assert 7 not in after_first.readable(lineage) or 3 not in after_first.pending(lineage)


def test_an_empty_segment_is_complete_once_everything_before_it_is() -> None:
    lineage = split_merged_split().lineage
    cursor = Cursor.from_positions(lineage, HALVES[1], {PARENT: 2, phantom(1): 1})
    assert cursor.readable(lineage).keys() >= {7}
    assert cursor.complete(lineage, 4)


class SlowReadBack(Simulated):
    """Another partition's open transaction hides what was recorded for longer than the deadline, once."""

    def record(self, before: PartitionState, event: Event, deadline: Any) -> PartitionState:
        after = super().record(before, event, deadline)
        if isinstance(event, Retire):
            raise DeadlineExceededError("waited for the control topic to be read back")
        return after


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_retirement_whose_read_back_is_late_is_not_overwritten(at: int) -> None:
    """The next PREPARE would have the same revision, and producers that saw the retirement would miss it."""
    cluster = Cluster()
    cluster.producer(0)
    with pytest.raises(DiedError):
        run(cluster, Fault(at, after=True))
    simulated = SlowReadBack(cluster)
    attempt = split_attempt(cluster.state, 0, RANGES, "next")
    outcome = Driver(simulated.ports).run(attempt, 0, Time(cluster, 60))
    assert outcome.result is Result.COMMITTED
    assert [s.revision for s in cluster.history] == list(range(1, len(cluster.history) + 1))
    assert cluster.state.subtopics[0].state == "retired"
