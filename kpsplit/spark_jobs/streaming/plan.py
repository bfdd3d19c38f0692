"""What a streaming query asks, where it stands, how far a micro-batch goes, and who reads what of it. Pure.

**How far.** Two rules, and everything else follows:

1. A batch ends at a place that a reader along the lineage passes (``advance``): a segment is entered only
   when everything before it, for its keys, is read to the end. So no row comes in an earlier batch than a
   row of its key's predecessors; what an undecided fence may have ended is not passed, because its segments
   have no end to go to (``readable_ends``).
2. Within a batch, segments of which one comes after the other along the lineage are read by one task, in the
   lineage's order (``tasks``). So the rows of one key come out of one task, in order.

**Where it stands.** Spark keeps this in its checkpoint; it is versioned and strictly parsed:

    {"v":1,"topic":"orders","at":[{"p":3,"e":2,"s":{"4":1200,"5":7}}],"from":[]}

``at``: per logical partition ``p`` the epoch ``e`` of the view that the batch was planned with, and a cursor
of the whole key space ``s``, ``{segment id: next physical offset}`` (``splitter.reading``: what is absent and
has something listed after it is drained). An empty ``at`` is the place before the first batch. The end of
that batch says in ``from`` where the query began, because Spark asks for the beginning again when a query
died in its first batch, and "latest" would then be another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kpsplit.errors import RecordError
from kpsplit.spark_jobs.regions import Bound
from kpsplit.spark_jobs.snapshot import Lost
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState, Phase
from kpsplit.splitter.reading import Cursor, GapReason
from kpsplit.splitter.records.strict_json import Fields, decode, encode


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``properties``: the connection (librdkafka's); they may hold secrets.

    ``partitions``: the logical ones, all when None. ``patience`` in seconds. ``most``: offsets in a batch,
    None without a limit. ``fail_on_data_loss``: whether records that are gone before they were read end the
    query; else they are reported and passed over.
    """

    properties: Mapping[str, Any]
    topic: str
    partitions: tuple[int, ...] | None
    patience: float
    start: Bound
    most: int | None
    fail_on_data_loss: bool

    def __repr__(self) -> str:  # without properties
        return f"Query({self.topic!r})"


VERSION = 1
_SEGMENT = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_WHAT = "the offset of the streaming query"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where one logical partition stands, and the epoch of the view that said so."""

    epoch: int
    cursor: Cursor


StreamPositions = Mapping[int, StreamPosition]
"""By logical partition."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch (``at`` empty: before the first); ``begun``: where the first one begins."""

    topic: str
    at: StreamPositions = field(default_factory=dict)
    begun: StreamPositions = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as Spark wants it: the same values always give the same text."""
        lists = {"at": _as_list(self.at), "from": _as_list(self.begun)}
        found: dict[str, Any] = json.loads(encode({"v": VERSION, "topic": self.topic, **lists}))
        return found

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that Spark read from a checkpoint.

        Raises:
            RecordError: it is none. FutureVersionError: a newer kpsplit wrote it.
        """
        if not isinstance(value, Mapping):
            raise RecordError(f"{_WHAT}: not a JSON object")
        try:
            # As short as ``as_json`` made it: what was written is never too long to be read.
            text = json.dumps(dict(value), separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"{_WHAT}: not JSON ({type(error).__name__})") from None
        fields = decode(text.encode(), _WHAT, VERSION)
        offset = cls(fields.text("topic"), _positions(fields, "at"), _positions(fields, "from"))
        fields.done()
        return offset


def _as_list(positions: StreamPositions) -> list[dict[str, Any]]:
    return [
        {"p": partition, "e": s.epoch, "s": {str(i): n for i, n in s.cursor.positions.items()}}
        for partition, s in sorted(positions.items())
    ]


def _positions(fields: Fields, name: str) -> StreamPositions:
    found = fields.objects(name, _position)
    positions = dict(found)
    if len(positions) < len(found):
        fields.fail(f"a partition stands twice in {name}")
    return positions


def _position(fields: Fields) -> tuple[int, StreamPosition]:
    positions = fields.number_map("s")
    if not all(_SEGMENT.fullmatch(name) for name in positions):
        fields.fail("a segment is not named by its number")
    cursor = Cursor(WHOLE, {int(name): position for name, position in positions.items()})
    return fields.integer("p"), StreamPosition(fields.integer("e"), cursor)


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far a logical partition can be read now: per segment id the offset before which all is decided.

    A segment without one cannot be read on now.
    """

    lineage: Lineage
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SegmentStretch:
    """The offsets [first, behind) of a segment."""

    segment: Segment
    first: int
    behind: int


def readable_ends(state: PartitionState, stable: Mapping[PhysicalPartition, int]) -> dict[int, int]:
    """Return the ends of a frontier.

    A segment that the attempt under way may have ended has none until its outcome is known: a marker may
    stand before the log's end. A retired sub-topic counts as read: whether anything was lost by it is
    decided by whoever stands before its end (``without_lost``).

    Args:
        state: read from the control topic *after* the log ends.
        stable: the last stable offsets of logs.
    """
    undecided = state.closing_segments() if state.phase is Phase.FENCED else ()
    found: dict[int, int] = {}
    for s in state.lineage:
        if s.end is not None and state.is_retired(s.source.topic):
            found[s.id] = s.end
        elif s.source in stable and s.id not in undecided:
            found[s.id] = stable[s.source] if s.end is None else min(s.end, stable[s.source])
    return found


def advance(
    cursors: Mapping[int, Cursor], frontiers: Mapping[int, Frontier], most: int | None = None
) -> dict[int, Cursor]:
    """Return where the next batch ends, per logical partition; a partition without a frontier stays.

    Args:
        cursors: where the batch begins.
        frontiers: how far can be read.
        most: how many offsets it may hold (holes count as well); no limit when not given. What is readable
            at once shares it in proportion to what each has to read, as in Kafka's own source.
    """
    moved = dict(cursors)
    left = most
    while backlog := list(_backlog(moved, frontiers)):
        total = sum(stretch.behind - stretch.first for _, stretch in backlog)
        steps = _shares([s.behind - s.first for _, s in backlog], total if left is None else min(left, total))
        for (partition, stretch), step in zip(backlog, steps, strict=True):
            moved[partition] = moved[partition].moved(stretch.segment.id, stretch.first + step)
        if left is not None:
            left -= sum(steps)
            if left <= 0:
                break
    return {p: c.settled(frontiers[p].lineage) if p in frontiers else c for p, c in moved.items()}


def _backlog(
    cursors: Mapping[int, Cursor], frontiers: Mapping[int, Frontier]
) -> Iterator[tuple[int, SegmentStretch]]:
    """Yield what can be read without reading anything else before it."""
    for partition, frontier in sorted(frontiers.items()):
        for segment, first in cursors[partition].readable(frontier.lineage).items():
            behind = frontier.ends.get(segment, first)
            if first < behind:
                yield partition, SegmentStretch(frontier.lineage.get(segment), first, behind)


def _shares(wanted: list[int], most: int) -> list[int]:
    """Return parts of ``wanted`` in proportion whose sum is ``most``, which is not more than theirs."""
    total = sum(wanted)
    parts = [want * most // total for want in wanted]
    missing = most - sum(parts)
    for i in sorted(range(len(wanted)), key=lambda i: parts[i] - wanted[i]):
        more = min(missing, wanted[i] - parts[i])
        parts[i] += more
        missing -= more
    return parts


def reached(cursor: Cursor, lineage: Lineage) -> dict[int, int]:
    """Return the next offset of every segment; that of a complete one is its end."""
    pending = cursor.pending(lineage)
    return {s.id: pending.get(s.id, s.start if s.end is None else s.end) for s in lineage}


def between(lineage: Lineage, start: Cursor, end: Cursor) -> list[SegmentStretch] | None:
    """Return what lies between two cursors, predecessors first; None if the end lies before the start.

    The lineage may be newer than the cursors: they say the same in it.
    """
    first, behind = reached(start, lineage), reached(end, lineage)
    if any(behind[s.id] < first[s.id] for s in lineage):
        return None
    return [SegmentStretch(s, first[s.id], behind[s.id]) for s in lineage if first[s.id] < behind[s.id]]


def tasks(lineage: Lineage, stretches: Iterable[SegmentStretch]) -> list[tuple[SegmentStretch, ...]]:
    """Return what each task reads, in this order: stretches that come after one another stay together."""
    groups: list[list[SegmentStretch]] = []
    for stretch in sorted(stretches, key=lambda s: s.segment.id):
        before = lineage.ancestors(stretch.segment.id)
        joined = [g for g in groups if any(s.segment.id in before for s in g)]
        groups = [g for g in groups if g not in joined]
        groups.append([*(s for g in joined for s in g), stretch])
    return [tuple(sorted(g, key=lambda s: s.segment.id)) for g in groups]


def plain_starts(states: Iterable[PartitionState], cursors: Mapping[int, Cursor]) -> dict[int, int | None]:
    """Return from which offset of the topic itself plain readers go on where a query stands, per partition.

    None where it has not read everything before the latest merge: plain readers never see all of that.

    Args:
        states: none of them is split (protocol, section 10.16).
        cursors: where the query stands; a partition without one was not begun.
    """
    found: dict[int, int | None] = {}
    for state in states:
        number, now = state.parent.partition, state.lineage.open_segments()[0].id
        cursor = cursors.get(number, Cursor.at_start(WHOLE))
        left = cursor.pending(state.lineage)
        found[number] = left[now] if left.keys() == {now} and not cursor.ahead_of(state.lineage) else None
    return found


def without_lost(
    state: PartitionState,
    stretches: Iterable[SegmentStretch],
    lows: Mapping[PhysicalPartition, int],
    gone: Mapping[PhysicalPartition, GapReason],
) -> tuple[list[SegmentStretch], list[Lost]]:
    """Return what can still be read, and what cannot.

    ``lows``: the first offset that each log has; ``gone``: those that hold nothing of ours any more.
    """
    kept: list[SegmentStretch] = []
    lost: list[Lost] = []
    for stretch in stretches:
        source = stretch.segment.source
        if source in gone:
            lost.append(Lost(state, stretch.segment, stretch.first, stretch.behind, gone[source]))
            continue
        first = min(max(stretch.first, lows.get(source, 0)), stretch.behind)
        if first > stretch.first:
            lost.append(Lost(state, stretch.segment, stretch.first, first, GapReason.EXPIRED))
        if first < stretch.behind:
            kept.append(replace(stretch, first=first))
    return kept, lost
