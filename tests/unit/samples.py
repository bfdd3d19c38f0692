"""States of `orders/3` that several unit tests start from, each made by applying events."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Attempt,
    Commit,
    Cut,
    Fence,
    Finish,
    OperationKind,
    PartitionState,
    Prepare,
    Target,
)
from kpsplit.splitter.records.keys import subtopic_name

PARENT = PhysicalPartition("orders", 3)
UNSPLIT = PartitionState.unsplit(PARENT, "id-of-orders")


def phantom(index: int, split: int = 1) -> PhysicalPartition:
    """A phantom partition of the split with this number."""
    return PhysicalPartition(f"orders.split-3-{split}", index)


def split_attempt(
    state: PartitionState, segment: int, ranges: tuple[KeyRange, ...], name: str = "s"
) -> Attempt:
    """A split of one segment."""
    subtopic = subtopic_name(state.parent, state.next_split)
    return Attempt(
        name,
        OperationKind.SPLIT,
        "me@here",
        1_700_000_000_000,
        (segment,),
        ranges,
        Target.PHANTOMS,
        subtopic,
        500,
    )


def merge_attempt(
    state: PartitionState, segments: tuple[int, ...], range_: KeyRange, name: str = "m"
) -> Attempt:
    """A merge of some segments; one of the whole key space goes back into the parent."""
    target = Target.PARENT if range_ == WHOLE else Target.PHANTOMS
    subtopic = None if target is Target.PARENT else subtopic_name(state.parent, state.next_split)
    return Attempt(
        name, OperationKind.MERGE, "me@here", 1_700_000_000_000, segments, (range_,), target, subtopic, 500
    )


def fenced(state: PartitionState, attempt: Attempt) -> PartitionState:
    """The state in which the attempt's fence is on."""
    prepared = apply(state, Prepare(attempt))
    return apply(prepared, Fence(attempt.id, attempt.subtopic and f"topic-id-{state.next_split}"))


def committed(state: PartitionState, attempt: Attempt, ends: dict[int, int]) -> PartitionState:
    """The state right behind the commit point; ``ends`` are physical offsets by segment id."""
    cuts = tuple(Cut(segment, end, 4) for segment, end in ends.items())
    return apply(fenced(state, attempt), Commit(attempt.id, cuts))


def operated(state: PartitionState, attempt: Attempt, ends: dict[int, int]) -> PartitionState:
    """The state after the whole operation."""
    return apply(committed(state, attempt, ends), Finish(attempt.id))


def merged() -> PartitionState:
    """Split in halves at 0 and merged again.

    The parent holds its seal at 0, an overflow record at 1, the seal at 2, and then the merged segment; the
    first phantom holds one record, the second none.
    """
    split = operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 0})
    return operated(split, merge_attempt(split, (2, 3), WHOLE), {1: 2, 2: 1, 3: 0})


@dataclass(frozen=True, slots=True)
class Life:
    """Segments: 0 parent; 1 overflow, 2-5 phantoms; 6 overflow, 7-8 nested phantoms; 9 reopened parent."""

    split: PartitionState
    nested: PartitionState
    merged: PartitionState


def life() -> Life:
    """The worked example: split in four at 1000, third phantom split in two at 10, all merged back."""
    split = operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(4)), {0: 1000})
    third = split.lineage.get(4)
    nested = operated(split, split_attempt(split, 4, third.range.split_evenly(2), "n"), {4: 10})
    merge = merge_attempt(nested, (2, 3, 7, 8, 5), WHOLE)
    merged = operated(nested, merge, {1: 1003, 2: 8, 3: 5, 5: 6, 6: 12, 7: 3, 8: 2})
    return Life(split, nested, merged)
