"""Outputs of processed records until the transaction that commits these records, pure (design, section 10).

Every output knows the place of the record that it was made from. Which outputs go into a transaction is
decided by that place and by what the transaction commits, and by nothing else: those, and only those, whose
records the committed cursors call processed. So it does not matter when a commit was put together, what was
processed since, or how often it was tried; lanes need not wait for each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kpsplit.consumer.committing import Processed
from kpsplit.consumer.run.lanes import Entry, Home
from kpsplit.consumer.run.output import Output
from kpsplit.consumer.subscriptions import Mode
from kpsplit.errors import InvariantError
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.key_range import WHOLE

WANTED_SHARE = 2
"""A commit is wanted when one part in so many of the room is taken."""


class Kept(NamedTuple):
    """What one record gave. ``hash``, ``segment`` and ``offset`` are its place."""

    hash: int
    segment: int
    offset: int
    outputs: tuple[Output, ...]
    size: int


Place = tuple[int, int]
"""Segment and physical offset: unique within a slot."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Outputs that go into one transaction, in an order that keeps that of every lane."""

    taken: tuple[tuple[Home, Kept], ...]

    def outputs(self) -> Iterator[Output]:
        """Return the records to be written."""
        return (output for _, kept in self.taken for output in kept.outputs)


class Outbox:
    """Not thread safe.

    Args:
        room: in bytes. When it is used up nothing more may be processed before a commit (``full``).
    """

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._room = room
        self._kept: dict[Home, dict[Place, Kept]] = {}

    @property
    def full(self) -> bool:
        """Tell whether there is no room for more."""
        return self.bytes >= self._room

    @property
    def wants_commit(self) -> bool:
        """Tell whether a commit should not wait for its time."""
        return self.bytes >= self._room // WANTED_SHARE

    def add(self, home: Home, entry: Entry, outputs: tuple[Output, ...]) -> None:
        """Keep what a record gave."""
        offset = physical_offset(entry.message)
        kept = Kept(entry.hash, entry.segment, offset, outputs, sum(output.size for output in outputs))
        self._kept.setdefault(home, {})[kept.segment, offset] = kept
        self.bytes += kept.size

    def forget(self, home: Home) -> None:
        """A slot has left: whoever gets it processes its records again from the committed cursor."""
        self.bytes -= sum(kept.size for kept in self._kept.pop(home, {}).values())

    def covered(self, processed: Sequence[Processed]) -> Transfer:
        """Return the outputs of the records that a commit calls processed."""
        covers = {p.parent: _Cover(p) for p in processed}
        return Transfer(
            tuple(
                (home, kept)
                for home, found in self._kept.items()
                if home.slot.parent in covers
                for kept in found.values()
                if covers[home.slot.parent].holds(kept)
            )
        )

    def committed(self, transfer: Transfer) -> None:
        """Forget what was committed."""
        for home, kept in transfer.taken:
            found = self._kept.get(home)
            if found is not None and found.pop((kept.segment, kept.offset), None) is not None:
                self.bytes -= kept.size
                if not found:
                    del self._kept[home]


class _Cover:
    """What one commit calls processed of a logical partition."""

    def __init__(self, processed: Processed) -> None:
        cursors = sorted(processed.cursors, key=lambda cursor: cursor.range)
        if any(cursor.ahead_of(processed.lineage) for cursor in cursors):
            raise InvariantError(f"{processed.parent} was read beyond the lineage that is known")
        self._ranges = [cursor.range for cursor in cursors]
        self._left = [cursor.pending(processed.lineage) for cursor in cursors]
        if processed.mode is Mode.PLAIN:
            self._ranges, self._left = [WHOLE], [_least(self._left)]

    def holds(self, kept: Kept) -> bool:
        """Tell whether a record is processed by what is committed."""
        index = bisect_right(self._ranges, kept.hash, key=lambda range_: range_.lo) - 1
        if index < 0 or kept.hash not in self._ranges[index]:
            return False
        left = self._left[index].get(kept.segment)
        return left is None or kept.offset < left


def _least(left: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return what one ordinary offset says: it stands for all keys, and so for the slowest."""
    offsets: dict[int, int] = {}
    for found in left:
        for segment, offset in found.items():
            offsets[segment] = min(offset, offsets.get(segment, offset))
    return offsets
