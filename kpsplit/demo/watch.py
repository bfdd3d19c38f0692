"""Threads that look at the cluster while the demo runs: log ends, the group's drain of closed segments."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import offsets_partition


class Background(ABC):
    """A context manager: its thread runs ``_run`` until ``_stop`` is set, which the end of the block does."""

    def __init__(self, name: str, join_seconds: float) -> None:
        self._stop = threading.Event()
        self._join_seconds = join_seconds
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(self._join_seconds)

    @abstractmethod
    def _run(self) -> None: ...


INTERVAL_SECONDS = 0.5
JOIN_SECONDS = 5.0


class Samples:
    """The log ends of some physical partitions over time. Pure."""

    def __init__(self) -> None:
        self._times: dict[PhysicalPartition, list[float]] = {}
        self._ends: dict[PhysicalPartition, list[int]] = {}

    def add(self, at: float, ends: dict[PhysicalPartition, int]) -> None:
        """Take the next sample."""
        for place, end in ends.items():
            self._times.setdefault(place, []).append(at)
            self._ends.setdefault(place, []).append(end)

    def reach(self, places: Iterable[PhysicalPartition], at: float) -> bool:
        """Return whether all these partitions were looked at since a point in time."""
        return all(place in self._times and self._times[place][-1] >= at for place in places)

    def end(self, place: PhysicalPartition) -> int:
        """Return the latest end, 0 for a partition that was never seen."""
        return self._ends[place][-1] if place in self._ends else 0

    def grown(self, place: PhysicalPartition, since: float) -> int:
        """Return by how many records a partition has grown since a point in time."""
        times = self._times.get(place)
        if not times:
            return 0
        first = max(0, bisect_left(times, since) - 1)
        return self._ends[place][-1] - self._ends[place][first]

    def rate(self, place: PhysicalPartition, seconds: float) -> float:
        """Return records per second during the latest seconds."""
        times = self._times.get(place, [])
        if len(times) < 2:
            return 0.0
        first = max(0, min(bisect_left(times, times[-1] - seconds), len(times) - 2))
        return (self._ends[place][-1] - self._ends[place][first]) / (times[-1] - times[first])

    def hottest(self, places: Iterable[PhysicalPartition], since: float) -> list[PhysicalPartition]:
        """Return partitions by how much they have grown since a point in time, the hottest first."""
        return sorted(places, key=lambda place: -self.grown(place, since))


class Watch(Background):
    """A thread that samples and then calls ``then``. ``places`` may be replaced at any time."""

    def __init__(
        self, connection: Connection, places: Iterable[PhysicalPartition], then: Callable[[], None]
    ) -> None:
        self.samples = Samples()
        self.places = tuple(places)
        self._connection = connection
        self._then = then
        super().__init__("demo-watch", JOIN_SECONDS)

    def _run(self) -> None:
        admin = ClusterAdmin(self._connection)
        while not self._stop.is_set():
            with suppress(KpsplitError):  # the picture has a hole; whoever runs operations sees the error
                ends = admin.end_offsets(self.places)
                self.samples.add(monotonic(), {place: end.offset for place, end in ends.items()})
            self._then()
            self._stop.wait(INTERVAL_SECONDS)


# -- the drain of closed segments by the group -----------------------------------------------------


DRAIN_INTERVAL_SECONDS = 0.2
READ_SECONDS = 10.0


@dataclass(slots=True)
class SegmentDrain:
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
    """A thread that follows a group's range commits in one logical partition; ``say`` gets lines of text."""

    def __init__(
        self, connection: Connection, group: str, partitions: int, say: Callable[[str], None]
    ) -> None:
        self.drains: list[SegmentDrain] = []
        self._connection = connection
        self._group = group
        self._partitions = partitions
        self._say = say
        self._state: PartitionState | None = None
        self._tail: OffsetTail | None = None
        self._lock = threading.Lock()
        super().__init__("demo-drain", READ_SECONDS)

    def closed(self, state: PartitionState, at: float) -> None:
        """Take the state after an operation that ended at a point in time."""
        with self._lock:
            known = {drain.segment.id for drain in self.drains}
            new = [s for s in state.lineage if not s.is_open and s.id not in known]
            self.drains += [SegmentDrain(segment, at) for segment in new]
            self._state = state

    @property
    def waiting(self) -> list[SegmentDrain]:
        """The closed segments that are not drained yet."""
        with self._lock:
            return [drain for drain in self.drains if drain.drained_at is None]

    def _run(self) -> None:
        while not self._stop.wait(DRAIN_INTERVAL_SECONDS):
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
            self._tail = OffsetTail(self._connection, self._partitions, [place], self._group)
        self._note(self._tail.read_all(Deadline(READ_SECONDS)), state)

    def _note(self, fold: CommitFold, state: PartitionState) -> None:
        left, now = undrained(fold, self._group, state), monotonic()
        for drain in self.waiting:
            if drain.segment.id not in left:
                drain.drained_at = now
                self._say(drained_line(drain))


def drained_line(drain: SegmentDrain) -> str:
    """Return a line about a drained segment."""
    segment = drain.segment
    return (
        f"    the group has drained segment {segment.id} ({segment.source}, {segment.length():,} offsets) "
        f"{drain.seconds or 0:.1f} s after the cut"
    )
