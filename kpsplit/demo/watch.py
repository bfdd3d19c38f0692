"""Watches the ends of all physical partitions: what is hot is measured, not assumed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress

from kpsplit.demo.background import Background
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition

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
        """Tell whether all these partitions were looked at since a point in time."""
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
