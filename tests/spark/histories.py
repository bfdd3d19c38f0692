"""Histories of one logical partition, written down record by record, in the shape in which Spark reads Kafka.

``World`` keeps the rules; a test breaks one of them by hand.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from kpsplit.spark_jobs.snapshot import LogEnds, LoggedCommit, Snapshot
from kpsplit.spark_jobs.verification.findings import Verdict
from kpsplit.spark_jobs.verification.start import Since, Stretches
from kpsplit.spark_jobs.verification.verifier import Verifier
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Attempt,
    Commit,
    Cut,
    Fence,
    Finish,
    OperationKind,
    PartitionState,
    Prepare,
    Target,
)
from kpsplit.splitter.reading import Cursor, GapReason
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, subtopic_name
from kpsplit.splitter.records.offsets import Boundary, Cause, CommitKey, Position, RangeCommit, boundaries
from kpsplit.splitter.records.producers import Certificate, ProducerRegistration

TOPIC = "orders"
RAW = """key binary, topic string, partition int, offset bigint,
    headers array<struct<key: string, value: binary>>"""
"""What verify needs of Kafka's source."""


@dataclass
class Record:
    """One record of a physical log. ``aborted``: only readers of uncommitted records see it."""

    key: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    aborted: bool = False


Hole = None
"""An offset without a record: a transaction's marker."""


class World:
    """A partition, its logs, its producers and its groups."""

    def __init__(self, partition: int) -> None:
        self.parent = PhysicalPartition(TOPIC, partition)
        self.anna, self.bert = 0xA11A0000 + partition, 0xFFFFFFFF00000000 + partition
        self.state = PartitionState.unsplit(self.parent, "id")
        self.logs: dict[PhysicalPartition, list[Record | None]] = {self.parent: []}
        self.adjust: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
        self.lows: dict[PhysicalPartition, int] = {}
        self.given: dict[int, int] = {}
        self.delivered: dict[int, dict[str, int]] = {}
        self.failed: dict[int, list[int]] = {}
        self.open: set[int] = set()
        self.plain: set[int] = set()
        self.retired: set[PhysicalPartition] = set()
        self.boundaries: list[Boundary] = []
        self.moment: dict[PhysicalPartition, int] | None = None
        self.asked: tuple[PartitionState, dict[PhysicalPartition, tuple[int, int]]] | None = None
        self.commits: list[LoggedCommit] = []
        self._attempts = count()

    # Writing

    def send(self, producer: int, key: bytes | None, *, times: int = 1) -> None:
        """Deliver records of one key."""
        for _ in range(times):
            self._deliver(producer, key, self.number(producer))

    def _deliver(self, producer: int, key: bytes | None, sequence: int) -> Record:
        segment = self.taking(key)
        counts = self.delivered[producer]
        counts[str(segment.id)] = counts.get(str(segment.id), 0) + 1
        return self.put(segment.source, key, self.state.epoch, producer, sequence)

    def number(self, producer: int) -> int:
        """Give the next sequence number."""
        self.delivered.setdefault(producer, {})
        sequence = self.given.get(producer, 0)
        self.given[producer] = sequence + 1
        return sequence

    def put(
        self, place: PhysicalPartition, key: bytes | None, epoch: int, producer: int, sequence: int
    ) -> Record:
        """Append a stamped record."""
        stamp = Stamp(epoch, producer, sequence, self.state.home(place))
        record = Record(key, [(STAMP_HEADER, stamp.encode())])
        self.logs[place].append(record)
        return record

    def stray(self, producer: int, key: bytes, place: PhysicalPartition, epoch: int) -> None:
        """A record lands behind its segment's end and is sent again to the segment that takes its key."""
        sequence = self.number(producer)
        self.put(place, key, epoch, producer, sequence)
        self._deliver(producer, key, sequence)

    def fail(self, producer: int) -> None:
        """A record's delivery fails, and it was not written."""
        self.failed.setdefault(producer, []).append(self.number(producer))

    def abort(self, producer: int, key: bytes, records: int = 3) -> None:
        """A transaction of kpsplit's producer is aborted; its records were delivered, and count so."""
        for _ in range(records):
            self._deliver(producer, key, self.number(producer)).aborted = True
        self.logs[self.taking(key).source].append(Hole)

    def foreign(self, key: bytes | None, place: PhysicalPartition | None = None) -> None:
        """Somebody writes without kpsplit."""
        self.logs[place or self.parent].append(Record(key, [("app", b"x")]))

    def copy(self, place: PhysicalPartition, offset: int, to: PhysicalPartition) -> None:
        """Another program writes a record again, with all its headers."""
        record = self.logs[place][offset]
        assert record is not None
        self.logs[to].append(Record(record.key, list(record.headers)))

    def taking(self, key: bytes | None) -> Segment:
        """The segment that takes a key."""
        layout = self.state.lineage.open_segments()
        return next(s for s in layout if key is None or key_hash(key) in s.range)

    # Admin

    def split(self, segment: int, parts: int = 2) -> None:
        source = self.state.lineage.get(segment)
        name = subtopic_name(self.parent, self.state.next_split)
        self._operate((segment,), source.range.split_evenly(parts), Target.PHANTOMS, name)

    def merge(self) -> None:
        """Merge everything back into the parent."""
        self._operate(tuple(s.id for s in self.state.lineage.open_segments()), (WHOLE,), Target.PARENT, None)

    def _operate(
        self, sources: tuple[int, ...], ranges: tuple[KeyRange, ...], target: Target, name: str | None
    ) -> None:
        kind = OperationKind.SPLIT if target is Target.PHANTOMS else OperationKind.MERGE
        attempt = Attempt(f"a{next(self._attempts)}", kind, "me", 0, sources, ranges, target, name, 1000)
        self.state = apply(apply(self.state, Prepare(attempt)), Fence(attempt.id, name and f"id-{name}"))
        cuts = []
        for number in self.state.closing_segments():
            place = self.state.lineage.get(number).source
            cuts.append(Cut(number, len(self.logs[place]), 0))
            self.mark(place, attempt.id)
        self.state = apply(apply(self.state, Commit(attempt.id, tuple(cuts))), Finish(attempt.id))
        for s in self.state.lineage:
            self.logs.setdefault(s.source, [])
        self.boundaries += boundaries(self.state)

    def mark(self, place: PhysicalPartition, attempt: str) -> None:
        """Append a marker."""
        self.logs[place].append(
            Record(None, [(MARKER_HEADER, Marker(MarkerKind.SEAL, self.parent, attempt).encode())])
        )

    # Groups

    def commit(
        self, group: str, range_: KeyRange, positions: dict[int, int], cause: Cause = Cause.PROGRESS
    ) -> None:
        """Append a range commit to the offset log."""
        listed = {segment: Position(next_, 0) for segment, next_ in positions.items()}
        commit = RangeCommit(group, self.parent, range_, listed, "m", 1, cause)
        self._log(CommitKey(group, self.parent, range_), commit)

    def withdraw(self, group: str, range_: KeyRange) -> None:
        """Append a record that withdraws a range commit."""
        self._log(CommitKey(group, self.parent, range_), None)

    def _log(self, key: CommitKey, commit: RangeCommit | None) -> None:
        log = PhysicalPartition(OFFSETS_TOPIC, self.parent.partition)
        self.commits.append(LoggedCommit(key, commit, log, len(self.commits)))

    def commit_all(self, group: str) -> None:
        """The group has processed everything."""
        ends = {s.id: len(self.logs[s.source]) for s in self.state.lineage}
        for range_ in WHOLE.split_evenly(4):
            cursor = Cursor.at_end(self.state.lineage, range_, ends)
            self.commit(group, range_, dict(cursor.positions))

    # Reading

    def since_now(self) -> None:
        """What is written from here on is what is judged."""
        log = PhysicalPartition(OFFSETS_TOPIC, self.parent.partition)
        self.moment = {place: len(records) for place, records in self.logs.items()} | {log: len(self.commits)}

    def ends_asked(
        self, earlier: Mapping[PhysicalPartition, int] = MappingProxyType({}), *, open_: bool = False
    ) -> None:
        """The ends of the logs are asked now.

        ``earlier``: where some logs ended when they were asked, or with ``open_`` where transactions were
        open.
        """
        ends = self._ends()
        stable = {place: (end, ends[place][1] if open_ else end) for place, end in earlier.items()}
        self.asked = self.state, ends | stable

    def _ends(self) -> dict[PhysicalPartition, tuple[int, int]]:
        """The last stable offset and the end of each log."""
        return {place: (len(log), len(log)) for place, log in self.logs.items()}

    def first_offsets(self) -> dict[PhysicalPartition, int]:
        """The first offset of each log that is not older than the moment; logs without one are left out."""
        ends = {place: len(records) for place, records in self.logs.items()}
        ends[PhysicalPartition(OFFSETS_TOPIC, self.parent.partition)] = len(self.commits)
        moment = self.moment or {}
        firsts = {place: max(moment.get(place, 0), self.lows.get(place, 0)) for place in ends}
        return {place: first for place, first in firsts.items() if first < ends[place]}

    def snapshot(self, *, later: bool = False) -> Snapshot:
        """What verify knows without the data; ``later``: when it looks again."""
        now = self.state, self._ends()
        state, asked = now if later or self.asked is None else self.asked
        ends = {
            place: LogEnds(self.lows.get(place, 0), *end)
            for place, end in asked.items()
            if place not in self.retired
        }
        producers = tuple(
            ProducerRegistration(
                instance,
                1,
                "test",
                transactional_id=None if instance in self.plain else "test",
                topics=("orders",),
                closed=instance not in self.open,
                certificates={
                    str(self.parent): Certificate(
                        given, self.delivered[instance], tuple(self.failed.get(instance, ()))
                    )
                },
            )
            for instance, given in self.given.items()
        )
        # As the gatherer: what an operation wrote after the control topic was read is not of this picture.
        known = tuple(b for b in self.boundaries if b.epoch <= state.epoch)
        snapshot = Snapshot(
            TOPIC,
            (state,),
            ends,
            dict.fromkeys(self.retired, GapReason.RETIRED),
            producers=producers,
            commits=tuple(self.commits),
            boundaries=known,
        )
        return self.adjust(snapshot)

    def rows(self) -> Iterator[tuple[bool, tuple[object, ...]]]:
        """What Kafka holds: whether it was aborted, and the row."""
        for place, log in self.logs.items():
            for offset, record in enumerate(() if place in self.retired else log):
                if record is not None and offset >= self.lows.get(place, 0):
                    yield record.aborted, (record.key, place.topic, place.partition, offset, record.headers)

    def change(self, segment: int, **fields: object) -> None:
        """Falsify one segment of the lineage."""
        lineage = self.state.lineage
        segments = tuple(replace(s, **fields) if s.id == segment else s for s in lineage)  # type: ignore[arg-type]
        self.state = replace(self.state, lineage=replace(lineage, segments=segments))


KEYS = [b"key-%d" % i for i in range(24)]


def busy(world: World, rounds: int = 4) -> None:
    """Two producers write all keys; some records have no key."""
    for _ in range(rounds):
        for key in KEYS:
            world.send(world.anna, key)
            world.send(world.bert, key)
        world.send(world.anna, None)
        world.send(world.bert, b"")


def lived(partition: int) -> World:
    """A clean history: splits, a merge, strays, foreign records, failures, aborted transactions."""
    world = World(partition)
    busy(world)
    world.foreign(b"before")
    world.abort(world.anna, KEYS[0])
    world.split(0, 2)
    world.stray(world.anna, KEYS[0], world.parent, 0)
    world.stray(world.bert, KEYS[1], world.parent, 0)
    world.foreign(b"overflow")
    world.foreign(None)
    busy(world)
    world.fail(world.anna)
    nested = world.state.lineage.open_segments()[0]
    world.split(nested.id, 3)
    world.stray(world.bert, next(k for k in KEYS if key_hash(k) in nested.range), nested.source, 1)
    world.mark(world.parent, "of-an-attempt-that-was-rolled-back")
    busy(world)
    world.abort(world.bert, KEYS[5])
    layout = world.state.lineage.open_segments()
    world.merge()
    late = layout[-1]
    world.stray(world.anna, next(k for k in KEYS if key_hash(k) in late.range), late.source, 1)
    busy(world)
    world.commit_all("readers")
    return world


def returned(world: World) -> None:
    """Back to plain clients: sub-topics are retired, range commits withdrawn, and nobody stamps."""
    world.retired |= set(world.state.lineage.sources()) - {world.parent}
    fold = CommitFold()
    for logged in world.commits:
        fold.take(logged.key, logged.commit, logged.log_offset)
    for group in fold.groups(world.parent):
        for key in fold.keys(group, world.parent):
            world.withdraw(group, key.range)
    for key in KEYS:
        world.foreign(key)


def judge(
    spark: SparkSession, worlds: Sequence[World], since: Since | None = None, **options: bool
) -> Verdict:
    """Judge some partitions of one topic. No executor may need Python for it."""
    rows = [row for world in worlds for row in world.rows()]

    context = spark.sparkContext
    python, context.pythonExec = context.pythonExec, "/no/such/python"
    with TemporaryDirectory() as folder:
        names = count()

        def read(stretches: Stretches, aborted: bool) -> DataFrame:
            wanted = [row for was, row in rows if (aborted or not was) and _inside(row, stretches)]
            path = Path(folder, f"{next(names)}.json")
            path.write_text("".join(map(_line, wanted)))
            return spark.read.schema(RAW).json(str(path))

        try:
            later = iter([_together(world.snapshot(later=True) for world in worlds)])
            snapshot = _together(world.snapshot() for world in worlds)
            return Verifier(spark, snapshot, read, since=since, later=later, **options).verdict()
        finally:
            context.pythonExec = python


def _together(worlds: Iterable[Snapshot]) -> Snapshot:
    snapshots = list(worlds)
    return Snapshot(
        TOPIC,
        tuple(state for s in snapshots for state in s.states),
        {place: bounds for s in snapshots for place, bounds in s.bounds.items()},
        {place: reason for s in snapshots for place, reason in s.gone.items()},
        producers=tuple(p for s in snapshots for p in s.producers),
        commits=tuple(c for s in snapshots for c in s.commits),
        boundaries=tuple(b for s in snapshots for b in s.boundaries),
    )


def _line(row: tuple[object, ...]) -> str:
    key, topic, partition, offset, headers = row
    record = {"topic": topic, "partition": partition, "offset": offset, "key": _text(key)}
    return json.dumps(record | {"headers": [{"key": k, "value": _text(v)} for k, v in headers]}) + "\n"


def _text(data: object) -> str | None:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else None


def _inside(row: tuple[object, ...], stretches: Stretches) -> bool:
    _, topic, partition, offset, _ = row
    first, behind = stretches.get(PhysicalPartition(topic, partition), (0, 0))
    return first <= offset < behind
