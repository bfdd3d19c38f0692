"""A group of simulated readers that follow their cursors, and what they must have delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import Lineage, Segment
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.property.strategies import PARENT, History

GROUP = "readers"
OPEN_RECORDS = 5


@dataclass(frozen=True, slots=True)
class Delivery:
    """One reader was given the records of its range in [first, last) of a segment."""

    range: KeyRange
    segment: int
    first: int
    last: int


def ends(lineage: Lineage) -> dict[int, int]:
    """Where the records of every segment end in this world; a view may know less."""
    return {s.id: s.start + OPEN_RECORDS if s.end is None else s.end for s in lineage}


@dataclass(slots=True)
class Group:
    """Readers whose ranges tile a key range, and the offset log that they commit to."""

    world: Lineage
    cursors: list[Cursor]
    deliveries: list[Delivery] = field(default_factory=list)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def read(self, reader: int, view: Lineage, choose: Callable[[int], int]) -> None:
        """Let one reader process some records of one readable segment.

        ``choose(n)`` picks a number from 0 to n.
        """
        cursor = self.cursors[reader]
        readable = sorted(cursor.readable(view).items())
        if readable:
            segment, first = readable[choose(len(readable) - 1)]
            self._process(reader, segment, first, first + choose(max(0, ends(self.world)[segment] - first)))

    def read_all(self, view: Lineage) -> None:
        """Let every reader process everything that a view lets it read."""
        limits = ends(self.world)
        for reader in range(len(self.cursors)):
            while left := [
                (s, at) for s, at in self.cursors[reader].readable(view).items() if at < limits[s]
            ]:
                for segment, first in left:
                    self._process(reader, segment, first, limits[segment])

    def commit(self, reader: int, view: Lineage) -> None:
        """Write one reader's range commit and withdraw what it makes superfluous, as a member does."""
        cursor = self.cursors[reader].settled(view)
        record = RangeCommit(
            GROUP, PARENT, cursor.range, {s: Position(n) for s, n in cursor.positions.items()}, "m", 1
        )
        stale = self.fold().stale_keys(GROUP, PARENT, [cursor.range])
        self.log += [(record.key, record.encode()), *((key.encode(), None) for key in stale)]

    def fold(self) -> CommitFold:
        """Read the offset log from its start."""
        fold = CommitFold()
        for offset, (key, value) in enumerate(self.log):
            fold.fold(key, value, offset)
        assert not fold.garbage
        return fold

    def compact(self) -> None:
        """Keep the latest record of each key, and no withdrawal."""
        latest = {key: offset for offset, (key, _) in enumerate(self.log)}
        self.log = [
            (key, value)
            for offset, (key, value) in enumerate(self.log)
            if latest[key] == offset and value is not None
        ]

    def take_over(self, ranges: Iterable[KeyRange], view: Lineage) -> None:
        """Let new owners of other ranges start from what is committed."""
        fold = self.fold()
        self.cursors = [
            cursor or Cursor.at_start(piece)
            for range_ in ranges
            for piece, cursor in fold.cursor(GROUP, PARENT, range_, view)
        ]

    def _process(self, reader: int, segment: int, first: int, last: int) -> None:
        if first < last:
            cursor = self.cursors[reader]
            self.deliveries.append(Delivery(cursor.range, segment, first, last))
            self.cursors[reader] = cursor.moved(segment, last)


def group_of(history: History, cursors: Iterable[Cursor]) -> Group:
    """Return readers of the world that a history ends with."""
    return Group(history.last.lineage, list(cursors))


def check_in_order(group: Group, begun: Mapping[int, int], whole: KeyRange = WHOLE) -> None:
    """Every record of every key was delivered at most once, and after everything before it along the lineage.

    ``begun`` is the offset at which the group began, by segment.
    """
    for hash_ in _witnesses(group, whole):
        _check_key(group, hash_, begun)


def check_everything(group: Group, begun: Mapping[int, int], whole: KeyRange = WHOLE) -> None:
    """As ``check_in_order``, and nothing is left."""
    limits = ends(group.world)
    for hash_ in _witnesses(group, whole):
        reached = _check_key(group, hash_, begun)
        left = [s.id for s in group.world if hash_ in s.range and reached[s.id] < limits[s.id]]
        assert not left, f"key hash {hash_:#x}: not read to the end: {left}"


def _witnesses(group: Group, whole: KeyRange) -> set[int]:
    """One key hash of each interval that no reader and no segment divides."""
    ranges = [whole, *(s.range for s in group.world), *(d.range for d in group.deliveries)]
    return {r.lo for r in ranges if r.lo in whole} | {r.hi for r in ranges if r.hi in whole}


def _check_key(group: Group, hash_: int, begun: Mapping[int, int]) -> dict[int, int]:
    segments: dict[int, Segment] = {s.id: s for s in group.world if hash_ in s.range}
    at = {i: max(s.start, begun.get(i, s.start)) for i, s in segments.items()}
    for delivery in group.deliveries:
        if hash_ not in delivery.range or delivery.segment not in segments:
            continue
        segment = segments[delivery.segment]
        assert delivery.first == at[segment.id], f"{hash_:#x}: {delivery}, but stood at {at[segment.id]}"
        before = [p for p in segment.predecessors if p in segments and at[p] < (segments[p].end or 0)]
        assert not before, f"{hash_:#x}: {delivery} before {before} were drained"
        at[segment.id] = delivery.last
    return at
