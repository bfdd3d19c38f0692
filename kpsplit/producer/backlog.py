"""What waits to be sent, of one logical partition, pure: held records and strays, per segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A record with the sequence number that it is sent under."""

    sequence: int


R = TypeVar("R", bound=Numbered)
SegmentOf = Callable[[R], int]
"""Returns the id of the open segment that takes a record now."""


class Tally:
    """How many records of a Producer wait, in all its backlogs and for topics that are not looked up yet."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Backlog(Generic[R]):
    """See the module. ``queues``: per segment id what waits for it, held records and strays.

    A queue is sent in the order of the sequence numbers. So what went astray goes before anything newer of
    its key, and what is sent is always the head of its queue. ``tally`` counts the records of several
    backlogs together.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.queues: dict[int, deque[R]] = {}
        self._unsorted: set[int] = set()

    def __len__(self) -> int:
        """Return how many records wait."""
        return sum(map(len, self.queues.values()))

    def waits_for(self, segment: int) -> bool:
        """Return whether anything waits for a segment."""
        return bool(self.queues.get(segment))

    def queue_of(self, segment: int) -> deque[R]:
        """Return what waits for a segment; callers add the newest record, and count it in ``tally``."""
        return self.queues.setdefault(segment, deque())

    def add_strays(self, records: list[R], segment_of: SegmentOf[R]) -> None:
        """Keep records that must be sent again."""
        for record in records:
            segment = segment_of(record)
            queue = self.queue_of(segment)
            # Sorted only when it is read: thousands of strays may come one after the other.
            if queue and queue[-1].sequence > record.sequence:
                self._unsorted.add(segment)
            queue.append(record)
        self.tally.count += len(records)

    def waiting_for(self, segment: int) -> Iterable[R]:
        """Return what waits for a segment, in the order of sending."""
        if segment in self._unsorted:
            self._unsorted.discard(segment)
            self.queues[segment] = deque(_in_order(self.queues.get(segment, ())))
        return self.queues.get(segment, ())

    def remove_sent(self, records: Iterable[R]) -> None:
        """Forget records that were handed out by ``waiting_for``: the first of their segments."""
        before = len(self)
        gone = {r.sequence for r in records}
        for queue in self.queues.values():
            while queue and queue[0].sequence in gone:
                queue.popleft()
        self._tidy()
        self.tally.count -= before - len(self)

    def drop(self, keep: Callable[[R], bool]) -> list[R]:
        """Remove and return what is not to be kept."""
        dropped = [r for queue in self.queues.values() for r in queue if not keep(r)]
        if dropped:
            self.queues = {i: deque(r for r in queue if keep(r)) for i, queue in self.queues.items()}
            self._tidy()
            self.tally.count -= len(dropped)
        return dropped

    def assign(self, segments: set[int], segment_of: SegmentOf[R]) -> None:
        """Give what waits to the segments of a new layout."""
        if set(self.queues) <= segments:
            return
        # One order over all old queues: a new segment may take records of several of them.
        everything = _in_order(r for queue in self.queues.values() for r in queue)
        self.queues, self._unsorted = {}, set()
        for record in everything:
            self.queue_of(segment_of(record)).append(record)

    def leave(self) -> None:
        """Stop counting in the shared tally: nothing of this will be sent."""
        self.tally.count -= len(self)
        self.tally = Tally()
        self.tally.count = len(self)

    def _tidy(self) -> None:
        self.queues = {segment: queue for segment, queue in self.queues.items() if queue}


def _in_order(records: Iterable[R]) -> list[R]:
    return sorted(records, key=lambda r: r.sequence)
