"""What happened when (operations, steps, fences, the suspension), and figures from the journals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from kpsplit.control.status import Report
from kpsplit.demo.journal import JournalEntry
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition

FENCE_ON, FENCE_OFF = "Fence", "Commit"


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time, in seconds of the monotonic clock that all processes of the machine share."""

    label: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended - self.began

    def overlaps(self, began: float, ended: float) -> bool:
        """Return whether another stretch of time has a moment in common with this one."""
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
        """The fences of all operations, in their order."""
        return [fence for operation in self.operations if (fence := operation.fence) is not None]


# -- figures from journals -------------------------------------------------------------------------


MEDIAN, TAIL = 0.5, 0.99


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of values in rising order, 0 if there are none."""
    return values[max(0, ceil(share * len(values)) - 1)] if values else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """How some durations are spread, in milliseconds."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, milliseconds: Iterable[float]) -> Spread:
        """Return the spread of durations in any order."""
        values = sorted(milliseconds)
        most = values[-1] if values else 0.0
        return cls(len(values), percentile(values, MEDIAN), percentile(values, TAIL), most)


@dataclass(frozen=True, slots=True)
class Latencies:
    """From produce() to the delivery report, nothing subtracted, by partition and time.

    A record counts as *in a fence* if any moment between the two lies in one.
    """

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


def throughput(name: str, times: Iterable[float], began: float, seconds: float, width: float) -> Series:
    """Return records per second from the times at which they were reported."""
    counts = [0] * max(1, ceil(seconds / width))
    for at in times:
        index = int((at - began) / width)
        if 0 <= index < len(counts):
            counts[index] += 1
    return Series(name, width, tuple(count / width for count in counts))


def by_time(
    name: str,
    samples: Iterable[tuple[float, float]],
    began: float,
    seconds: float,
    width: float,
    reduce: Callable[[list[float]], float],
) -> Series:
    """Return one value per bin from (time, value) samples; None for an empty bin."""
    bins: list[list[float]] = [[] for _ in range(max(1, ceil(seconds / width)))]
    for at, value in samples:
        index = int((at - began) / width)
        if 0 <= index < len(bins):
            bins[index].append(value)
    return Series(name, width, tuple(reduce(values) if values else None for values in bins))
