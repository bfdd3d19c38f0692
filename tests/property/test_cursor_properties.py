"""Invariants 6 and 7 (protocol, section 13), for readers that follow their cursors through any lineage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import WHOLE, KeyRange, slot_range
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.reading import Cursor
from tests.property.lineage_walk import check_everything, check_in_order, ends, group_of
from tests.property.strategies import History, counts, histories, key_ranges, tilings

ACTIONS = 40
slot_counts = st.sampled_from((1, 1, 1, 2, 3, 5, 64))


def _slots(count: int) -> list[KeyRange]:
    return [slot_range(i, count) for i in range(count)]


@given(histories(), key_ranges())
def test_a_reader_of_any_range_delivers_every_record_once_and_after_its_predecessors(
    history: History, range_: KeyRange
) -> None:
    group = group_of(history, [Cursor.at_start(range_)])
    group.read_all(history.last.lineage)
    check_everything(group, {}, range_)
    assert group.cursors[0].drained(history.last.lineage)


def _some(data: st.DataObject) -> Callable[[int], int]:
    """Choose a number from 0 to ``most``, often the greatest."""
    return lambda most: data.draw(st.just(most) | st.integers(0, most))


def _ordinary(lineage: Lineage) -> st.SearchStrategy[dict[PhysicalPartition, int]]:
    """Offsets of some physical partitions, of any size."""
    return st.dictionaries(st.sampled_from(lineage.sources()), counts | st.integers(0, 2000))


def _begun(lineage: Lineage, offsets: dict[PhysicalPartition, int]) -> dict[int, int]:
    return {s.id: min(offsets.get(s.source, s.start), ends(lineage)[s.id]) for s in lineage}


@given(histories(least=8), slot_counts, st.data())
def test_a_group_that_is_interrupted_anywhere_delivers_every_record_once_and_in_order(
    history: History, slots: int, data: st.DataObject
) -> None:
    """At any time: other slots, lanes in slots, members with other (older) views, commits, compaction."""
    world = history.last.lineage
    offsets = data.draw(st.just({}) | _ordinary(world))
    begun = _begun(world, offsets)
    group = group_of(history, [Cursor.from_positions(world, r, offsets) for r in _slots(slots)])
    newest = len(history.states) - 1
    for _ in range(data.draw(st.integers(0, ACTIONS))):
        view = history.states[data.draw(st.just(newest) | st.integers(0, newest))].lineage
        reader = data.draw(st.integers(0, len(group.cursors) - 1))
        match data.draw(
            st.sampled_from(("read", "read", "read", "settle", "commit", "take over", "compact"))
        ):
            case "read":
                group.read(reader, view, _some(data))
            case "settle":
                group.cursors[reader] = group.cursors[reader].settled(view)
            case "commit":
                group.commit(reader, view)
            case "compact":
                group.compact()
            case "take over":
                for each in range(len(group.cursors)):
                    group.commit(each, view)
                group.take_over(data.draw(slot_counts.map(_slots) | tilings().map(list)), view)
    check_in_order(group, begun)
    group.read_all(world)
    check_everything(group, begun)


@given(histories(), key_ranges(), st.data())
def test_settling_changes_nothing_of_what_a_cursor_says_in_any_later_view(
    history: History, range_: KeyRange, data: st.DataObject
) -> None:
    group = group_of(history, [Cursor.at_start(range_)])
    newest = len(history.states) - 1
    for _ in range(data.draw(st.integers(0, ACTIONS))):
        group.read(0, history.last.lineage, _some(data))
    cursor = group.cursors[0]
    settled = cursor.settled(history.states[data.draw(st.integers(0, newest))].lineage)
    for state in history.states:
        if cursor.ahead_of(state.lineage):
            assert not cursor.readable(state.lineage)
            assert not cursor.drained(state.lineage)
            continue
        if settled.ahead_of(state.lineage):
            continue
        assert settled.readable(state.lineage) == cursor.readable(state.lineage)
        assert settled.pending(state.lineage) == cursor.pending(state.lineage)
        for segment in state.lineage:
            assert settled.complete(state.lineage, segment.id) == cursor.complete(state.lineage, segment.id)
        assert settled.settled(state.lineage) == cursor.settled(state.lineage)


@given(histories(), key_ranges(), st.data())
def test_a_settled_cursor_lists_what_is_readable_and_never_an_absent_one_that_is_not_drained(
    history: History, range_: KeyRange, data: st.DataObject
) -> None:
    lineage = history.last.lineage
    group = group_of(history, [Cursor.at_start(range_)])
    for _ in range(data.draw(st.integers(0, ACTIONS))):
        group.read(0, lineage, _some(data))
    settled = group.cursors[0].settled(lineage)
    assert settled.readable(lineage).items() <= settled.positions.items()
    for segment in lineage:
        begun = segment.range.overlaps(range_) and segment.id not in settled.positions
        if begun and not settled.complete(lineage, segment.id):
            assert not any(s.id in settled.positions for s in lineage.successors(segment.id))


@given(histories(), key_ranges(), st.data())
def test_from_ordinary_offsets_every_segment_is_read_from_its_own_offset_in_order(
    history: History, range_: KeyRange, data: st.DataObject
) -> None:
    """A partition without an offset is read from its start, whatever the others say."""
    lineage = history.last.lineage
    known = data.draw(_ordinary(lineage))
    begun = _begun(lineage, known)
    group = group_of(history, [Cursor.from_positions(lineage, range_, known)])
    group.read_all(lineage)
    check_everything(group, begun, range_)


@given(histories(), key_ranges(), st.integers(0, 20_000) | st.integers(0, 50))
def test_from_a_logical_offset_exactly_the_records_from_there_on_are_read(
    history: History, range_: KeyRange, logical: int
) -> None:
    lineage = history.last.lineage
    begun = {}
    for segment in lineage:
        below = (o for o in range(segment.start, ends(lineage)[segment.id]) if segment.logical(o) < logical)
        begun[segment.id] = max(below, default=segment.start - 1) + 1
    group = group_of(history, [Cursor.from_logical(lineage, range_, logical, ends(lineage))])
    group.read_all(lineage)
    check_everything(group, begun, range_)


@given(histories(), key_ranges())
def test_a_reader_at_the_end_reads_nothing_that_is_there_and_everything_that_comes(
    history: History, range_: KeyRange
) -> None:
    lineage = history.last.lineage
    open_ends = {s.id: s.start + 2 for s in lineage if s.is_open}
    group = group_of(history, [Cursor.at_end(lineage, range_, open_ends)])
    group.read_all(lineage)
    check_everything(group, {s.id: open_ends.get(s.id, s.end or 0) for s in lineage}, range_)


@given(histories(least=3), key_ranges(), st.data())
def test_a_reader_that_began_at_the_end_in_an_old_view_reads_whatever_was_opened_since(
    history: History, range_: KeyRange, data: st.DataObject
) -> None:
    old = history.states[data.draw(st.integers(0, len(history.states) - 1))].lineage
    world = history.last.lineage
    open_ends = {s.id: ends(world)[s.id] for s in old if s.is_open}
    group = group_of(history, [Cursor.at_end(old, range_, open_ends)])
    group.read_all(world)
    begun = {s.id: open_ends.get(s.id, s.end or 0) for s in world if s.id <= old.segments[-1].id}
    check_everything(group, begun, range_)


@given(histories(), key_ranges())
def test_a_cursor_never_goes_back(history: History, range_: KeyRange) -> None:
    lineage = history.last.lineage
    cursor = Cursor.at_end(lineage, range_, {s.id: s.start + 2 for s in lineage})
    for segment, at in cursor.positions.items():
        with pytest.raises(InvariantError):
            cursor.moved(segment, at - 1)


@given(key_ranges(), key_ranges())
def test_a_cursor_is_narrowed_to_a_part_of_its_range_only(one: KeyRange, other: KeyRange) -> None:
    if one.covers(other):
        assert Cursor.at_start(one).narrowed(other).range == other
    else:
        with pytest.raises(InvariantError):
            Cursor.at_start(one).narrowed(other)
    assert Cursor.at_start(WHOLE).narrowed(one) == Cursor.at_start(one)
