"""What happens when: operations, fences, log ends, what the group drains; and figures from the journals.

Two threads look at the cluster while the demo runs: ``Watch`` and ``DrainWatch``. The rest is pure.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Self

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.status import Report, Spread
from kpsplit.demo.records import JournalEntry
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.offset_log import OffsetTail, offset_log_partitions
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import offsets_partition

FENCE_ON, FENCE_OFF = "Fence", "Commit"


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time, in seconds of the monotonic clock that all processes of the machine share."""

    label: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def overlaps(self, began: float, ended: float) -> bool:
        return began <= self.ended and self.began <= ended


@dataclass(slots=True)
class OperationTimeline:
    """One operation as the demo saw it. ``steps``: when each ended, and what it was."""

    label: str
    detail: str = ""
    steps: list[tuple[float, StepDone]] = field(default_factory=list)
    report: Report | None = None

    @property
    def fence(self) -> TimeSpan | None:
        """From when the fence was being recorded until the commit was; None if there was none."""
        on = next((at - step.seconds for at, step in self.steps if step.name == FENCE_ON), None)
        off = next((at for at, step in self.steps if step.name == FENCE_OFF), None)
        return None if on is None or off is None else TimeSpan(self.label, on, off)


@dataclass(slots=True)
class Timeline:
    """All that the demo noted. ``began``: when all writers wrote, ``ended``: when all had ended."""

    began: float
    topic: str
    ended: float = 0.0
    hot: PhysicalPartition | None = None
    operations: list[OperationTimeline] = field(default_factory=list)
    suspension: TimeSpan | None = None

    @property
    def fences(self) -> list[TimeSpan]:
        return [fence for operation in self.operations if (fence := operation.fence) is not None]


# -- figures from journals -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of records: *in a fence* is one if any moment between produce() and its report lies in one."""

    affected_in: Spread
    affected_outside: Spread
    others_in: Spread
    others_outside: Spread


def latencies(entries: Iterable[JournalEntry], hot: int, fences: Sequence[TimeSpan]) -> Latencies:
    """Return the latencies of all reported records; ``hot``: the affected logical partition."""
    found: dict[tuple[bool, bool], list[float]] = {(a, b): [] for a in (True, False) for b in (True, False)}
    for entry in entries:
        if entry.reported_at is None:
            continue
        began, ended = entry.sent_at, entry.reported_at
        inside = any(fence.overlaps(began, ended) for fence in fences)
        found[entry.partition == hot, inside].append((ended - began) * 1000)
    spreads = {which: Spread.of(values) for which, values in found.items()}
    return Latencies(spreads[True, True], spreads[True, False], spreads[False, True], spreads[False, False])


def until_caught_up(entries: Iterable[JournalEntry], suspension: TimeSpan) -> TimeSpan:
    """Return the suspension with what followed it: until all that was sent before its end was reported."""
    reports = (
        e.reported_at
        for e in entries
        if e.reported_at is not None and suspension.overlaps(e.sent_at, e.reported_at)
    )
    return replace(suspension, ended=max(reports, default=suspension.ended))


def without_suspended(entries: Iterable[JournalEntry], suspension: TimeSpan | None) -> list[JournalEntry]:
    """Leave out the records that were under way while their own writer was suspended: no fence did that."""
    if suspension is None:
        return list(entries)
    return [e for e in entries if e.reported_at is None or not suspension.overlaps(e.sent_at, e.reported_at)]


def longest_waits(entries: Iterable[JournalEntry], hot: int, fences: Sequence[TimeSpan]) -> list[float]:
    """Return for each fence the longest latency (ms) of records for the affected partition."""
    longest = [0.0] * len(fences)
    for entry in entries:
        if entry.partition != hot or entry.reported_at is None:
            continue
        for index, fence in enumerate(fences):
            if fence.overlaps(entry.sent_at, entry.reported_at):
                longest[index] = max(longest[index], (entry.reported_at - entry.sent_at) * 1000)
    return longest


@dataclass(frozen=True, slots=True)
class Series:
    """Values in equal bins of time; ``width`` in seconds, the first bin begins at 0. None: nothing known."""

    name: str
    width: float
    values: tuple[float | None, ...]


def by_time(
    name: str,
    samples: Iterable[tuple[float, float]],
    began: float,
    seconds: float,
    width: float,
    reduce: Callable[[list[float]], float | None],
) -> Series:
    """Return one value per bin from (time, value) samples; the value of an empty bin is ``reduce([])``."""
    bins: list[list[float]] = [[] for _ in range(max(1, ceil(seconds / width)))]
    for at, value in samples:
        index = int((at - began) / width)
        if 0 <= index < len(bins):
            bins[index].append(value)
    return Series(name, width, tuple(map(reduce, bins)))


def throughput(name: str, times: Iterable[float], began: float, seconds: float, width: float) -> Series:
    """Return records per second from the times at which they were reported."""
    return by_time(name, ((at, 1.0) for at in times), began, seconds, width, lambda found: len(found) / width)


def slowest(values: list[float]) -> float | None:
    return max(values, default=None)


# -- threads that look at the cluster --------------------------------------------------------------


class Background(ABC):
    """A context manager: its thread runs ``_run`` until ``_stop`` is set, which the end of the block does."""

    def __init__(self, name: str, join_seconds: float) -> None:
        self._stop = threading.Event()
        self._join_seconds = join_seconds
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        for place, end in ends.items():
            self._times.setdefault(place, []).append(at)
            self._ends.setdefault(place, []).append(end)

    def reach(self, places: Iterable[PhysicalPartition], at: float) -> bool:
        return all(place in self._times and self._times[place][-1] >= at for place in places)

    def grown(self, place: PhysicalPartition, since: float) -> int:
        times = self._times.get(place)
        if not times:
            return 0
        first = max(0, bisect_left(times, since) - 1)
        return self._ends[place][-1] - self._ends[place][first]

    def rate(self, place: PhysicalPartition, seconds: float) -> float:
        times = self._times.get(place, [])
        if len(times) < 2:
            return 0.0
        first = max(0, min(bisect_left(times, times[-1] - seconds), len(times) - 2))
        return (self._ends[place][-1] - self._ends[place][first]) / (times[-1] - times[first])

    def hottest(self, places: Iterable[PhysicalPartition], since: float) -> list[PhysicalPartition]:
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
            with suppress(KpsplitError):  # the picture has a hole; the next operation shows the error
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

    def __init__(self, connection: Connection, group: str, say: Callable[[str], None]) -> None:
        self.drains: list[SegmentDrain] = []
        self.partitions = offset_log_partitions(ClusterAdmin(connection))
        self._connection = connection
        self._group = group
        self._say = say
        self._state: PartitionState | None = None
        self._tail: OffsetTail | None = None
        self._lock = threading.Lock()
        super().__init__("demo-drain", READ_SECONDS)

    def closed(self, state: PartitionState, at: float) -> None:
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
            with suppress(KpsplitError):  # the table has a hole; the next operation shows the error
                self._look()
        if self._tail is not None:
            self._tail.close()

    def _look(self) -> None:
        waiting, state = self.waiting, self._state  # in this order: the state knows all that are closed
        if state is None or not waiting:
            return
        if self._tail is None:  # kept whatever goes wrong: connecting may take longer than one look
            place = offsets_partition(state.parent, self.partitions)
            self._tail = OffsetTail(self._connection, self.partitions, [place], self._group)
        left = undrained(self._tail.read_all(Deadline(READ_SECONDS)), self._group, state)
        now = monotonic()
        for drain in waiting:
            if drain.segment.id not in left:
                drain.drained_at = now
                self._say(drained_line(drain))


def drained_line(drain: SegmentDrain) -> str:
    segment = drain.segment
    return (
        f"    the group has drained segment {segment.id} ({segment.source}, {segment.length():,} offsets) "
        f"{drain.seconds or 0:.1f} s after the cut"
    )
