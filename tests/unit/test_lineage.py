"""Segments and lineages: where a record is, which number it has, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange, union_of_adjacent
from kpsplit.splitter.lineage import FIRST, Lineage, PhysicalPartition, Progression, Segment, SegmentKind
from kpsplit.splitter.records.control import segment_to_json
from tests.unit.samples import PARENT, life, phantom

LIFE = life()
VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/segments.json").read_text("utf-8"))


def test_the_worked_example_of_the_design() -> None:
    segments = LIFE.split.lineage.segments
    assert [s.progression for s in segments[1:]] == [Progression(1000 + j, 5) for j in range(5)]
    assert segments[1].start == 1001
    assert segments[4].logical(7) == 1038
    assert LIFE.split.lineage.find(1038) == (segments[4], 7)


def test_the_published_segments_are_those_that_the_machine_makes() -> None:
    assert VECTORS["segments"] == [segment_to_json(s) for s in LIFE.merged.lineage]


@pytest.mark.parametrize("vector", VECTORS["records"])
def test_a_published_place_has_the_published_logical_offset_both_ways(vector: dict[str, int | str]) -> None:
    source = PhysicalPartition(str(vector["source_topic"]), int(vector["source_partition"]))
    offset, logical = int(vector["source_offset"]), int(vector["logical_offset"])
    segment = LIFE.merged.lineage.at(source, offset)
    assert segment is not None
    assert segment.id == vector["segment"]
    assert vector["base"] == segment.progression.base
    assert logical == int(vector["base"]) + int(vector["stride"]) * (offset - int(vector["start"]))
    assert segment.logical(offset) == logical
    assert LIFE.merged.lineage.find(logical) == (segment, offset)


def test_no_segment_holds_a_marker() -> None:
    lineage = LIFE.merged.lineage
    for segment in lineage:
        if segment.end is not None:
            assert lineage.at(segment.source, segment.end) is None


def test_a_number_that_no_record_can_have_is_not_found() -> None:
    assert LIFE.merged.lineage.find(1000 + 5 * 2) is None  # the overflow held two records: 1000 and 1005
    assert LIFE.merged.lineage.find(1005) is not None


def test_a_split_and_a_merge_at_the_same_range_do_not_look_unchanged() -> None:
    first, last = LIFE.merged.lineage.segments[0], LIFE.merged.lineage.segments[-1]
    assert (first.range, first.source, first.kind) == (last.range, last.source, last.kind)
    assert first.id != last.id


def test_the_predecessors_of_the_reopened_parent_are_all_that_ended_in_it() -> None:
    assert LIFE.merged.lineage.segments[-1].predecessors == (1, 2, 3, 5, 6, 7, 8)
    assert [s.id for s in LIFE.merged.lineage.successors(4)] == [6, 7, 8]


def test_what_comes_before_a_segment_is_found_through_others() -> None:
    lineage = LIFE.merged.lineage
    assert lineage.ancestors(0) == set()
    assert lineage.ancestors(6) == {0, 4}
    assert lineage.ancestors(lineage.segments[-1].id) == set(range(9))


def test_sources_are_listed_once_in_the_order_of_first_use() -> None:
    assert LIFE.merged.lineage.sources()[:2] == (PARENT, phantom(0))
    assert len(LIFE.merged.lineage.sources()) == 7


def test_an_unknown_segment_is_an_error_not_a_guess() -> None:
    with pytest.raises(InvariantError):
        LIFE.merged.lineage.get(99)


def test_an_open_segment_has_no_length() -> None:
    with pytest.raises(InvariantError):
        LIFE.merged.lineage.segments[-1].length()


def first(**changes: object) -> Segment:
    return replace(Lineage.unsplit(PARENT).segments[0], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 5},
        {"closed_epoch": 5},
        {"start": 6, "end": 5, "closed_epoch": 1},
        {"end": 5, "closed_epoch": 0},
    ],
    ids=["end without epoch", "epoch without end", "end before start", "closed before it was opened"],
)
def test_a_segment_that_contradicts_itself_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvariantError):
        first(**changes)


def _second(**changes: object) -> Segment:
    """The parent's successor after a split and merge that nothing was written in."""
    made = Segment(1, SegmentKind.PARENT, WHOLE, PARENT, 11, Progression(10, 1), 1, (0,))
    return replace(made, **changes)  # type: ignore[arg-type]


CLOSED = first(end=10, closed_epoch=1)


def test_a_sound_lineage_has_no_problems() -> None:
    assert Lineage(PARENT, (CLOSED, _second())).problems() == []


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ((CLOSED,), "do not tile"),
        ((first(range=KeyRange(0, 5)),), "do not tile"),
        ((CLOSED, _second(opened_epoch=2)), "do not tile"),
        ((CLOSED, _second(start=10)), "overlap"),
        ((CLOSED, _second(id=0)), "ids do not rise"),
        ((CLOSED, _second(predecessors=(7,))), "unknown or open"),
        ((CLOSED, _second(progression=Progression(9, 1))), "does not begin beyond"),
        ((CLOSED, _second(source=phantom(0))), "cannot be stored"),
        ((CLOSED, _second(kind=SegmentKind.PHANTOM)), "cannot be stored"),
    ],
)
def test_a_lineage_that_breaks_an_invariant_is_refused(segments: tuple[Segment, ...], problem: str) -> None:
    with pytest.raises(InvariantError, match=problem):
        Lineage(PARENT, segments).check()


POINTS = (0, 1 << 30, 1 << 31, KEY_SPACE)


@st.composite
def _any_segments(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Segments whose ranges may cover the key space or not, in any epoch."""
    made = []
    for id_ in range(draw(st.integers(1, 5))):
        lo, hi = sorted(draw(st.lists(st.sampled_from(POINTS), min_size=2, max_size=2, unique=True)))
        opened = draw(st.integers(0, 2))
        closed = draw(st.none() | st.integers(opened + 1, 3))
        kind = draw(st.sampled_from((SegmentKind.PARENT, SegmentKind.OVERFLOW)))
        made.append(
            first(
                id=id_,
                kind=kind,
                range=KeyRange(lo, hi),
                opened_epoch=opened,
                closed_epoch=closed,
                end=None if closed is None else 10,
            )
        )
    return tuple(made)


@given(_any_segments())
def test_epochs_whose_open_ranges_do_not_tile_the_key_space_are_told_and_no_others(
    segments: tuple[Segment, ...],
) -> None:
    def tiled(epoch: int) -> bool:
        alive = (
            s.range
            for s in segments
            if s.kind is not SegmentKind.OVERFLOW
            and s.opened_epoch <= epoch < (math.inf if s.closed_epoch is None else s.closed_epoch)
        )
        return union_of_adjacent(alive) == WHOLE

    epochs = {e for s in segments for e in (s.opened_epoch, s.closed_epoch) if e is not None}
    told = [p for p in Lineage(PARENT, segments).problems() if "do not tile" in p]
    untiled = sorted(e for e in epochs if not tiled(e))
    assert told == [f"epoch {e}: the open ranges do not tile the key space" for e in untiled]


def test_checking_a_long_lineage_takes_time_in_proportion_to_it() -> None:
    """Three thousand segments are checked with a bounded number of comparisons of ids."""

    class CountingInt(int):
        compared = 0

        def __ge__(self, other: int) -> bool:
            CountingInt.compared += 1
            return int(self) >= other

        def __gt__(self, other: int) -> bool:
            CountingInt.compared += 1
            return int(self) > other

        __hash__ = int.__hash__

    chain = [
        Segment(
            CountingInt(i),
            SegmentKind.PARENT,
            WHOLE,
            PARENT,
            2 * i,
            FIRST.from_beyond(i),
            i,
            (),
            2 * i + 1,
            i + 1,
        )
        for i in range(300)
    ]
    list(Lineage(PARENT, tuple(chain))._order_problems())
    assert CountingInt.compared <= 2 * len(chain)
