"""A writer that may write data topics only: what it forges costs no record of an honest producer.

A legal history (splits, merges back, strays that are sent again) into whose logs forged records are mixed is
read by the code that all readers share. What is asserted is the bound in docs/security.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kpsplit.consumer.fetch.record_filter import read_headers
from kpsplit.errors import FutureVersionError
from kpsplit.kafka.markers import marker_of
from kpsplit.spark_jobs.snapshot import LogEnds, Snapshot
from kpsplit.spark_jobs.verification.counts import SegmentSpan, SequenceBlock
from kpsplit.spark_jobs.verification.sequences import absent, incomplete
from kpsplit.spark_jobs.verification.start import Extent, JudgedFrom, KnownProducers, extents
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Layout, PhysicalPartition, Segment
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Commit,
    Cut,
    Fence,
    Finish,
    OperationKind,
    PartitionState,
    Prepare,
)
from kpsplit.splitter.reading import Deliver, Foreign, SkipReason, SkipRecord, Wait, classify
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp, newest_of
from tests.property.strategies import PARENT, attempt_of, merge_of_all
from tests.unit.samples import UNSPLIT

PRODUCERS = (0xA1, 0xB2)
KEYS = tuple(b"key-%d" % i for i in range(8))
ATTEMPTS = 10
STEPS = 40

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Entry:
    """One record in a log. ``sent``: producer, number and key of an honest record, or of its stray copy."""

    headers: Headers
    sent: tuple[int, int, bytes] | None = None


@dataclass
class World:
    """One logical partition's logs, and all its states."""

    states: list[PartitionState] = field(default_factory=lambda: [UNSPLIT])
    logs: dict[PhysicalPartition, list[Entry]] = field(
        default_factory=lambda: defaultdict(list, {PARENT: []})
    )
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    forged: int = 0

    @property
    def state(self) -> PartitionState:
        """The newest state."""
        return self.states[-1]

    def segment_of(self, key: bytes) -> Segment:
        """The open segment that takes a key."""
        return Layout.of(self.state.lineage).segment_for(key_hash(key))

    def write(self, producer: int, key: bytes) -> None:
        """An honest producer writes its next record."""
        number = sum(1 for p, _, _ in self.sent if p == producer)
        self._place(producer, number, key)

    def stray(self, producer: int, key: bytes, old: Segment) -> None:
        """A record lands behind the end of a closed segment and is sent again, with the same number."""
        number = sum(1 for p, _, _ in self.sent if p == producer)
        stamp = Stamp(old.opened_epoch, producer, number, self.state.home(old.source))
        self.logs[old.source].append(Entry(((STAMP_HEADER, stamp.encode()),), (producer, number, key)))
        self._place(producer, number, key)

    def _place(self, producer: int, number: int, key: bytes) -> None:
        place = self.segment_of(key).source
        stamp = Stamp(self.state.epoch, producer, number, self.state.home(place))
        self.sent.append((producer, number, key))
        entry = Entry((("app", b"x"), (STAMP_HEADER, stamp.encode())), self.sent[-1])
        self.logs[place].append(entry)

    def copy(self, entry: Entry, place: PhysicalPartition) -> None:
        """Another program copies a record with all its headers."""
        self.forged += 1
        self.logs[place].append(Entry(entry.headers))

    def begin(self, prepare: Prepare) -> None:
        """An operation puts its fence on; its sub-topics can be written to by anybody from now on."""
        attempt = prepare.attempt
        self.states.append(apply(self.state, prepare))
        topic_id = None if attempt.subtopic is None else "id"
        self.states.append(apply(self.state, Fence(attempt.id, topic_id)))
        if attempt.subtopic is not None:
            for number in range(len(attempt.ranges)):
                self.logs[PhysicalPartition(attempt.subtopic, number)]

    def end(self) -> None:
        """The operation cuts, commits and finishes."""
        attempt = self.state.attempt
        assert attempt is not None
        cuts = []
        for number in self.state.closing_segments():
            log = self.logs[self.state.lineage.get(number).source]
            cuts.append(Cut(number, len(log), 1))
            log.append(Entry(marker_headers(attempt.id)))
        self.states.append(apply(self.state, Commit(attempt.id, tuple(cuts))))
        self.states.append(apply(self.state, Finish(attempt.id)))


def marker_headers(attempt_id: str, kind: MarkerKind = MarkerKind.SEAL) -> Headers:
    """The headers of a marker, genuine or not: nothing tells them apart."""
    return ((MARKER_HEADER, Marker(kind, PARENT, attempt_id).encode()),)


epochs = st.integers(0, 12) | st.sampled_from([2**31, 2**32 - 1])
numbers = st.integers(0, STEPS) | st.sampled_from([2**62, 2**64 - 1])
instances = st.sampled_from(PRODUCERS) | st.integers(0, 2**64 - 1)
homes = st.none() | st.builds(UNSPLIT.home, st.just(PARENT)) | st.integers(0, 2**64 - 1)
forged_stamps = st.builds(Stamp, epochs, instances, numbers, homes).map(
    lambda s: ((STAMP_HEADER, s.encode()),)
)
forged_markers = st.builds(
    marker_headers,
    st.integers(0, 4 * ATTEMPTS).map(lambda n: f"attempt-{n}")
    | st.from_regex(r"[a-zA-Z0-9._-]{1,5}", fullmatch=True),
    st.sampled_from(MarkerKind),
)
huge = st.sampled_from(
    [
        ((STAMP_HEADER, b"\x01" * 1_000_000),),
        ((MARKER_HEADER, b'{"v":1,' + b" " * 1_000_000),),
        tuple(("x", b"y") for _ in range(5000)),
        tuple((STAMP_HEADER, Stamp(n, PRODUCERS[0], n).encode()) for n in range(100)),
        ((MARKER_HEADER, b"[" * 100_000), (STAMP_HEADER, None)),
    ]
)
forged: st.SearchStrategy[Headers] = st.one_of(
    forged_stamps,
    forged_markers,
    huge,
    st.just(()),
    st.tuples(forged_stamps, forged_markers).map(lambda both: both[0] + both[1]),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A legal history, at rest at its end, with forged records anywhere in its logs."""
    world = World()
    for _ in range(draw(st.integers(5, STEPS))):
        state = world.state
        fenced = state.attempt is not None
        step = draw(st.sampled_from(("write", "write", "stray", "forge", "forge", "copy", "operate")))
        if step == "forge":
            place = draw(st.sampled_from(sorted(world.logs)))
            world.logs[place].append(Entry(draw(forged)))
            world.forged += 1
        elif step == "copy":
            written = [e for log in world.logs.values() for e in log if e.sent is not None]
            if written:
                world.copy(draw(st.sampled_from(written)), draw(st.sampled_from(sorted(world.logs))))
        elif step == "operate" and fenced:
            world.end()
        elif step == "operate" and len(state.lineage.segments) < ATTEMPTS:
            world.begin(draw(st.sampled_from(_operations(state))))
        elif not fenced:
            producer, key = draw(st.sampled_from(PRODUCERS)), draw(st.sampled_from(KEYS))
            old = [s for s in state.lineage if not s.is_open and key_hash(key) in s.range]
            if step == "stray" and old:
                world.stray(producer, key, draw(st.sampled_from(old)))
            else:
                world.write(producer, key)
    if world.state.attempt is not None:
        world.end()
    return world


def _operations(state: PartitionState) -> list[Prepare]:
    layout = state.lineage.open_segments()
    found = [
        Prepare(attempt_of(state, OperationKind.SPLIT, (s.id,), s.range.split_evenly(2))) for s in layout
    ]
    return [*found, merge_of_all(state)] if len(layout) > 1 else found


@dataclass
class Told:
    """What a reader made of the logs."""

    delivered: list[tuple[int, int, Entry]] = field(default_factory=list)
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    foreign: int = 0


def read(world: World, view: PartitionState) -> Told:
    """Read every log in its order, with an old view that is refreshed where the reader asks for it."""
    told = Told()
    for source in world.logs:
        state, fresh = view, False
        for offset, entry in enumerate(world.logs[source]):
            ours = read_headers(entry.headers)
            verdict = classify(state, source, offset, ours.stamp, ours.marker, refreshed=fresh)
            if isinstance(verdict, Wait):
                state, fresh = world.state, True
                verdict = classify(state, source, offset, ours.stamp, ours.marker, refreshed=True)
            match verdict:
                case Deliver(segment, logical):
                    told.delivered.append((segment.id, logical, entry))
                case SkipRecord(reason):
                    told.skipped[reason] += 1
                case Foreign():
                    told.foreign += 1
                case Wait():
                    raise AssertionError("waited for an outcome that was there")
    return told


@settings(max_examples=100)
@given(worlds(), st.integers(0, 10**6))
def test_no_honest_record_is_lost_doubled_or_out_of_order_whatever_is_forged(world: World, seed: int) -> None:
    told = read(world, world.states[seed % len(world.states)])
    honest = [entry.sent for *_, entry in told.delivered if entry.sent is not None]
    assert sorted(honest) == sorted(world.sent)
    paths: dict[tuple[int, bytes], list[tuple[int, int, int]]] = defaultdict(list)
    for segment, logical, entry in told.delivered:
        if entry.sent is not None:
            producer, number, key = entry.sent
            paths[producer, key].append((segment, logical, number))
    for path in paths.values():
        for before, after in pairwise(sorted(path)):
            assert before[1] < after[1]
            assert before[2] < after[2]


@settings(max_examples=100)
@given(worlds(), st.integers(0, 10**6), st.data())
def test_a_copy_of_a_record_that_stood_elsewhere_is_delivered_or_reported(
    world: World, seed: int, data: st.DataObject
) -> None:
    """MirrorMaker or a re-drive takes all headers along; a reader that took them at their word would skip."""
    for source, log in [(source, list(log)) for source, log in world.logs.items()]:
        for entry in log:
            elsewhere = sorted(set(world.logs) - {source})
            if entry.sent is not None and elsewhere and data.draw(st.booleans()):
                world.copy(entry, data.draw(st.sampled_from(elsewhere)))
    before = world.states[seed % len(world.states)]
    told = read(world, before)
    for place, log in world.logs.items():
        home = world.state.home(place)
        for offset, entry in enumerate(log):
            stamp = read_headers(entry.headers).stamp
            if stamp is not None and not stamp.is_at(home):
                log[offset] = Entry(tuple(h for h in entry.headers if h[0] != STAMP_HEADER))
    plain = read(world, before)
    assert [(s, n) for s, n, _ in told.delivered] == [(s, n) for s, n, _ in plain.delivered]
    assert (told.skipped, told.foreign) == (plain.skipped, plain.foreign)


@settings(max_examples=50)
@given(worlds(), st.integers(0, 10**6))
def test_a_forged_record_is_at_most_one_record_to_a_reader_and_never_a_boundary(
    world: World, seed: int
) -> None:
    told = read(world, world.states[seed % len(world.states)])
    closed = sum(1 for s in world.state.lineage if not s.is_open)
    assert told.skipped[SkipReason.MARKER] == closed
    records = sum(map(len, world.logs.values()))
    assert len(told.delivered) + sum(told.skipped.values()) + told.foreign == records
    logical = [number for _, number, _ in told.delivered]
    assert len(set(logical)) == len(logical)
    assert len(told.delivered) <= len(world.sent) + world.forged


@pytest.mark.parametrize("headers", [((STAMP_HEADER, b"\x03" * 21),), ((MARKER_HEADER, b'{"v":2}'),)])
def test_a_header_of_a_newer_version_stops_a_reader_instead_of_making_it_guess(headers: Headers) -> None:
    with pytest.raises(FutureVersionError):
        read_headers(headers)


def test_a_marker_that_is_read_back_is_the_last_of_its_kind() -> None:
    """One that was forged before the fence must not end the segment before records that count."""
    ours = Marker(MarkerKind.SEAL, PARENT, "a")
    others = [Marker(MarkerKind.SEAL, PARENT, "b"), Marker(MarkerKind.UNSEAL, PARENT, "a")]
    log = [
        Message(topic="orders", partition=3, offset=offset, headers=[(MARKER_HEADER, marker.encode())])
        for offset, marker in enumerate([ours, others[0], ours, others[1]], 10)
    ]
    found = [(message.offset() or 0, marker_of(message)) for message in log]
    assert newest_of(found, ours) == 12
    assert newest_of(found[1:2], ours) is None


@given(st.sampled_from([2**36, 2**40, 2**62, 2**63 - 1]), st.integers(1, 3))
def test_a_forged_number_costs_a_verification_nothing(top: int, records: int) -> None:
    """What is missing before it is one run of numbers, however far it reaches."""
    producer = "00000000000000a1"
    spans = [SegmentSpan(3, 0, producer, records, 0, 0, top)]
    snapshot = Snapshot("orders", (UNSPLIT,), {PARENT: LogEnds(0, 50, 50)})
    writers = KnownProducers(snapshot)
    judged = extents(snapshot, JudgedFrom(), writers, spans, {(3, producer): 0})
    assert judged == {(3, producer): Extent(0, top + 1)}
    there = {(3, producer, n): SequenceBlock(1, 1, 0) for n in {0, top >> 16}}
    assert incomplete(judged, there).keys() <= there.keys()
    assert absent(judged, there) == {(3, producer): [(1 << 16, (top >> 16 << 16) - 1)]}
