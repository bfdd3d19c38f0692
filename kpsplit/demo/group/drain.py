"""Notes when the group has drained each segment that an operation closed: its range commits say so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kpsplit.demo.background import Background
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.partition_state import PartitionState

INTERVAL_SECONDS = 0.2
READ_SECONDS = 10.0


@dataclass(slots=True)
class Drain:
    """A closed segment: when it was closed and, once it is, when the group had read all of it."""

    segment: Segment
    closed_at: float
    drained_at: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took, None while it is not done."""
        return None if self.drained_at is None else max(0.0, self.drained_at - self.closed_at)


def undrained(fold: CommitFold, group: str, state: PartitionState) -> set[int]:
    """Return the closed segments that some key range of the group still has before it."""
    closed = {s.id: s for s in state.lineage if not s.is_open}
    left: set[int] = set()
    for range_, cursor in fold.cursor(group, state.parent, WHOLE, state.lineage):
        if cursor is None:
            left.update(s.id for s in closed.values() if s.range.overlaps(range_))
        else:
            left.update(closed.keys() & cursor.pending(state.lineage).keys())
    return left


class DrainWatch(Background):
    """A thread that follows a group's range commits in one logical partition; ``told`` gets lines of text."""

    def __init__(
        self, connection: Connection, group: str, partitions: int, told: Callable[[str], None]
    ) -> None:
        self.drains: list[Drain] = []
        self._connection = connection
        self._group = group
        self._partitions = partitions
        self._told = told
        self._state: PartitionState | None = None
        self._tail: OffsetTail | None = None
        self._lock = threading.Lock()
        super().__init__("demo-drain", READ_SECONDS)

    def closed(self, state: PartitionState, at: float) -> None:
        """Take the state behind an operation that ended at a point in time."""
        with self._lock:
            known = {drain.segment.id for drain in self.drains}
            new = [s for s in state.lineage if not s.is_open and s.id not in known]
            self.drains += [Drain(segment, at) for segment in new]
            self._state = state

    @property
    def waiting(self) -> list[Drain]:
        """The closed segments that are not drained yet."""
        with self._lock:
            return [drain for drain in self.drains if drain.drained_at is None]

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            with suppress(KpsplitError):  # the table has a hole; whoever runs operations sees the error
                self._look()
        if self._tail is not None:
            self._tail.close()

    def _look(self) -> None:
        state = self._state
        if state is None or not self.waiting:
            return
        if self._tail is None:  # kept whatever goes wrong: connecting may take longer than one look
            place = offsets_partition(state.parent, self._partitions)
            self._tail = OffsetTail(self._connection, [place], self._group)
        self._note(self._tail.read_all(Deadline(READ_SECONDS)), state)

    def _note(self, fold: CommitFold, state: PartitionState) -> None:
        left, now = undrained(fold, self._group, state), monotonic()
        for drain in self.waiting:
            if drain.segment.id not in left:
                drain.drained_at = now
                self._told(told(drain))


def told(drain: Drain) -> str:
    """Return a line about a drained segment."""
    segment = drain.segment
    return (
        f"    the group has drained segment {segment.id} ({segment.source}, {segment.length():,} offsets) "
        f"{drain.seconds or 0:.1f} s after the cut"
    )
