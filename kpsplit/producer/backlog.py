"""What waits to be sent, of one logical partition, pure: held records per segment, and strays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from kpsplit.producer.segment_writer import Outgoing

P = TypeVar("P")
SegmentOf = Callable[[Outgoing[P]], int]
"""Tells the id of the open segment that takes a record now."""


class Tally:
    """How many records of a Producer wait, in all its backlogs and elsewhere: nobody has to add them up."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Backlog(Generic[P]):
    """See the module. ``held``: per segment id, in order; ``strays``: in any order.

    ``tally`` counts the records of several backlogs together.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.held: dict[int, deque[Outgoing[P]]] = {}
        self.strays: list[Outgoing[P]] = []

    def __len__(self) -> int:
        """Return how many records wait."""
        return sum(map(len, self.held.values())) + len(self.strays)

    def queue_of(self, segment: int) -> deque[Outgoing[P]]:
        """Return what is held for a segment; who adds to it counts that in ``tally``."""
        return self.held.setdefault(segment, deque())

    def add_strays(self, records: list[Outgoing[P]]) -> None:
        """Keep records that must be sent again."""
        self.strays += records
        self.tally.count += len(records)

    def strays_by_segment(self, segment_of: SegmentOf[P]) -> dict[int, list[Outgoing[P]]]:
        """Return which strays go to which segment now, in the order in which they were first sent."""
        found: dict[int, list[Outgoing[P]]] = {}
        for record in sorted(self.strays, key=lambda r: r.sequence):
            found.setdefault(segment_of(record), []).append(record)
        return found

    def waiting_for(self, segment: int, astray: dict[int, list[Outgoing[P]]]) -> Iterator[Outgoing[P]]:
        """Return what waits for a segment, in the order of sending: strays come first."""
        return chain(astray.get(segment, ()), self.held.get(segment, ()))

    def remove_sent(self, records: Iterable[Outgoing[P]]) -> None:
        """Forget records that were handed out; of the held ones those are the first of their segments."""
        before = len(self)
        gone = {r.sequence for r in records}
        self.strays = [r for r in self.strays if r.sequence not in gone]
        for held in self.held.values():
            while held and held[0].sequence in gone:
                held.popleft()
        self._tidy()
        self.tally.count -= before - len(self)

    def drop(self, keep: Callable[[Outgoing[P]], bool]) -> list[Outgoing[P]]:
        """Remove and return what is not to be kept."""
        dropped = [r for r in self._all() if not keep(r)]
        if dropped:
            self.strays = [r for r in self.strays if keep(r)]
            self.held = {i: deque(r for r in held if keep(r)) for i, held in self.held.items()}
            self._tidy()
            self.tally.count -= len(dropped)
        return dropped

    def assign(self, segments: set[int], segment_of: SegmentOf[P]) -> None:
        """Give what is held to the segments of a new layout."""
        if set(self.held) <= segments:
            return
        everything = sorted((r for held in self.held.values() for r in held), key=lambda r: r.sequence)
        self.held = {}
        for record in everything:
            self.queue_of(segment_of(record)).append(record)

    def leave(self) -> None:
        """Count for nobody from now on: nothing of this will be sent."""
        self.tally.count -= len(self)
        self.tally = Tally()
        self.tally.count = len(self)

    def _all(self) -> Iterator[Outgoing[P]]:
        return chain(self.strays, *self.held.values())

    def _tidy(self) -> None:
        self.held = {segment: held for segment, held in self.held.items() if held}
