"""Leader epochs of what was read, for the commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kpsplit.consumer.commit.writes import CommitMember, Processed, writes
from kpsplit.consumer.fetch.batch import STRETCHES, Batch, LeaderEpochs
from kpsplit.consumer.slots.assigned import AssignedSlot
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT


def batch(start: int, end: int, epoch: int | None) -> Batch:
    return Batch(PARENT, UNSPLIT.lineage.get(0), (), start, end, [], 0, epoch)


def told(epochs: LeaderEpochs, *positions: int) -> list[int | None]:
    found = epochs.of(PARENT, [Cursor(WHOLE, {0: next_}) for next_ in positions])
    return [found.get((0, next_)) for next_ in positions]


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    epochs = LeaderEpochs()
    for one in (batch(10, 20, 3), batch(20, 30, 3), batch(30, 40, 5)):
        epochs.read(one)
    assert told(epochs, 11, 30, 31, 40) == [3, 3, 5, 5]


def test_nothing_is_said_of_what_was_not_read() -> None:
    epochs = LeaderEpochs()
    epochs.read(batch(10, 20, 3))
    epochs.read(batch(50, 60, 5))
    assert told(epochs, 9, 10, 21, 50, 61) == [None] * 5


def test_nothing_is_said_of_a_stretch_without_records() -> None:
    """A marker may be of a later epoch than the record before it: the log would look cut off below it."""
    epochs = LeaderEpochs()
    epochs.read(batch(0, 5, None))
    epochs.read(batch(10, 20, 3))
    epochs.read(batch(20, 25, None))
    epochs.read(batch(25, 30, 3))
    assert told(epochs, 5, 20, 21, 25, 26) == [None, 3, None, None, 3]


def test_what_was_read_last_counts_and_little_is_remembered() -> None:
    epochs = LeaderEpochs()
    epochs.read(batch(0, 10, 3))
    epochs.read(batch(0, 10, 4))
    assert told(epochs, 5) == [4]
    for n in range(STRETCHES):
        epochs.read(batch(100 * n + 100, 100 * n + 110, 4))
    assert told(epochs, 5, 105) == [None, 4]
    epochs.forget([])
    assert told(epochs, 105) == [None]


def test_range_commits_carry_the_epochs_that_are_known() -> None:
    cursor = Cursor(WHOLE, {0: 30})
    for known, expected in (({(0, 30): 7}, 7), ({(0, 29): 7}, None)):
        processed = Processed(UNSPLIT, Mode.SLOTS, (cursor,), (), PARENT, known)
        wanted = writes([processed], CommitMember("g", "me", 1), CommitFold())
        assert wanted is not None
        assert [p.leader_epoch for p in wanted.records[0].positions.values()] == [expected]


def test_what_is_known_of_a_partition_goes_with_its_last_slot() -> None:
    """Another member may own it meanwhile, and its log may be cut off and written anew."""
    reader: Any = SimpleNamespace(disown=lambda slots: None)
    sink: Any = SimpleNamespace(offer=lambda batch: None, dropped=lambda slots: None)
    unused: Any = None
    slots = AssignedSlots(unused, reader, sink, StateBinding())
    both = [AssignedSlot(OwnedSlot(PARENT, n, 2), PARENT, Mode.SLOTS) for n in range(2)]
    slots.add(both)
    slots.offer(batch(0, 10, 3))
    for dropped, epoch in ((both[0], 3), (both[1], None)):
        slots.drop([dropped])
        assert told(slots.epochs, 10) == [epoch]
