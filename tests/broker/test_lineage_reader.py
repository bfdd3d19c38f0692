"""Reading a logical partition along its lineage, on logs that are written here record by record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LogicalRecord
from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
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
    Retire,
    Target,
)
from kpsplit.splitter.reading import ForeignReason, GapReason, SkipReason
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp

pytestmark = pytest.mark.broker
ME = 7


class Log:
    """Writes records to one logical partition and its sub-topics, and moves its state along."""

    def __init__(self, bootstrap: str, admin: AdminClient, topic: str) -> None:
        self.connection = Connection({"bootstrap.servers": bootstrap})
        self.parent = PhysicalPartition(topic, 0)
        self._admin = admin
        self.state = PartitionState.unsplit(self.parent, self.topic_id(topic))
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._sequence = 0

    def topic_id(self, topic: str) -> str:
        for _ in range(100):
            try:
                return str(self._admin.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)
            except KafkaException:
                time.sleep(0.05)  # the broker that was asked has not heard of the new topic yet
        raise AssertionError(f"no topic {topic}")

    def write(
        self,
        place: PhysicalPartition,
        value: str,
        *,
        key: str | None = "k",
        epoch: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> int:
        """Write one record, stamped if an epoch is given; return its offset."""
        ours = list(headers or [])
        if epoch is not None:
            ours.append((STAMP_HEADER, Stamp(epoch, ME, self._sequence).encode()))
            self._sequence += 1
        offsets: list[int] = []
        self._producer.produce(
            place.topic,
            value.encode(),
            None if key is None else key.encode(),
            place.partition,
            lambda error, message: offsets.append(message.offset()),
            headers=ours,
        )
        self._producer.flush(20)
        return offsets[0]

    def mark(self, place: PhysicalPartition, kind: MarkerKind, attempt: Attempt) -> int:
        marker = Marker(kind, self.parent, attempt.id).encode()
        return self.write(place, "marker", key=None, headers=[(MARKER_HEADER, marker)])

    def fence_split(self, ranges: int = 2) -> Attempt:
        """Create a sub-topic and raise the fence of a split of the whole partition."""
        name = f"{self.parent.topic}.split-0-{self.state.next_split}"
        new = NewTopic(name, num_partitions=ranges, replication_factor=3)
        self._admin.create_topics([new], operation_timeout=30)[name].result(30)
        source = self.state.lineage.open_segments()[0].id
        attempt = Attempt(
            id=f"split-{self.state.next_split}",
            kind=OperationKind.SPLIT,
            operator="test",
            started_ms=0,
            sources=(source,),
            ranges=WHOLE.split_evenly(ranges),
            target=Target.PHANTOMS,
            subtopic=name,
            max_pause_ms=1000,
        )
        prepared = apply(self.state, Prepare(attempt))
        self.state = apply(prepared, Fence(attempt.id, self.topic_id(name)))
        return attempt

    def commit(self, attempt: Attempt, ends: dict[int, int]) -> None:
        cuts = tuple(Cut(segment, end) for segment, end in ends.items())
        self.state = apply(apply(self.state, Commit(attempt.id, cuts)), Finish(attempt.id))

    def split(self) -> list[PhysicalPartition]:
        """Split an unsplit partition in two; return the phantom partitions."""
        attempt = self.fence_split()
        self.commit(attempt, {attempt.sources[0]: self.mark(self.parent, MarkerKind.SEAL, attempt)})
        return [s.source for s in self.state.lineage.open_segments()]

    def merge(self) -> None:
        """Merge everything back into the parent."""
        open_ids = tuple(s.id for s in self.state.lineage.open_segments())
        attempt = Attempt(
            "merge", OperationKind.MERGE, "test", 0, open_ids, (WHOLE,), Target.PARENT, None, 1000
        )
        self.state = apply(apply(self.state, Prepare(attempt)), Fence(attempt.id, None))
        ends = {}
        for segment_id in self.state.closing_segments():
            place = self.state.lineage.get(segment_id).source
            kind = MarkerKind.UNSEAL if place == self.parent else MarkerKind.SEAL
            ends[segment_id] = self.mark(place, kind, attempt)
        self.commit(attempt, ends)

    def reader(
        self, refresh: Callable[[], PartitionState] | None = None, patience: float = 20.0
    ) -> LineageReader:
        return LineageReader(self.connection, self.state, refresh, patience)


@pytest.fixture
def log(bootstrap, admin, make_topic) -> Iterator[Log]:
    return Log(bootstrap, admin, make_topic(config={"min.insync.replicas": "2"}))


def values(records: list[LogicalRecord]) -> list[str]:
    return [(r.value or b"").decode() for r in records]


def test_until_the_first_split_a_logical_offset_is_kafkas_own(log) -> None:
    for i in range(5):
        log.write(log.parent, f"v{i}", headers=[("mine", b"1")], epoch=0)
    with log.reader() as reader:
        records = list(reader.records())
    assert [(r.logical_offset, r.source_offset) for r in records] == [(i, i) for i in range(5)]
    assert values(records) == [f"v{i}" for i in range(5)]
    assert records[0].headers == (("mine", b"1"),)
    assert records[3].stamp == Stamp(0, ME, 3)
    assert records[0].timestamp is not None


def test_reading_can_begin_at_any_logical_offset(log) -> None:
    for i in range(4):
        log.write(log.parent, f"before{i}")
    log.write(log.split()[0], "child0", epoch=1)
    log.write(log.state.lineage.open_segments()[0].source, "child1", epoch=1)
    child = log.state.lineage.open_segments()[0]
    with log.reader() as reader:
        assert values(list(reader.records(2))) == ["before2", "before3", "child0", "child1"]
    with log.reader() as reader:
        assert values(list(reader.records(child.logical(1)))) == ["child1"]


def test_a_split_and_merged_partition_is_read_once_and_in_order(log) -> None:
    """Strays, markers and foreign records are counted, everything else is delivered, numbers rise."""
    log.write(log.parent, "a0", epoch=0)
    log.write(log.parent, "a1", key=None)
    first, second = log.split()
    log.write(log.parent, "stray", epoch=0)
    log.write(log.parent, "overflow")
    log.write(first, "b0", epoch=1)
    log.write(second, "c0", epoch=1)
    log.write(first, "b1", epoch=1)
    log.merge()
    log.write(first, "behind the end", key="z")
    log.write(log.parent, "late stray", epoch=1)
    log.write(log.parent, "d0", epoch=2)
    with log.reader() as reader:
        records = list(reader.records())
    assert values(records) == ["a0", "a1", "overflow", "b0", "b1", "c0", "d0"]
    assert [r.keyless for r in records] == [False, True, False, False, False, False, False]
    numbers = [r.logical_offset for r in records]
    assert len(set(numbers)) == len(numbers)
    assert numbers[:2] == [0, 1]
    assert min(numbers[2:]) > 1
    assert numbers[-1] == max(numbers)
    assert [r.epoch for r in records] == [0, 0, 1, 1, 1, 1, 2]
    assert reader.tally.strays == 2
    assert reader.tally.skipped[SkipReason.MARKER] == 0
    assert reader.tally.foreign == {ForeignReason.BEHIND_THE_END: 1}
    assert reader.tally.gaps == []
    assert reader.tally.delivered == 7


def test_a_reader_waits_for_the_outcome_of_an_operation_and_reads_on(log) -> None:
    log.write(log.parent, "a", epoch=0)
    attempt = log.fence_split()
    end = log.mark(log.parent, MarkerKind.SEAL, attempt)
    log.write(log.parent, "overflow")
    with log.reader(refresh=lambda: log.state) as reader:
        records = reader.records()
        assert next(records).value == b"a"
        log.commit(attempt, {0: end})
        log.write(log.state.lineage.open_segments()[1].source, "child", epoch=1)
        assert values(list(records)) == ["overflow", "child"]


def test_a_marker_of_an_attempt_that_was_rolled_back_means_nothing(log) -> None:
    log.write(log.parent, "a")
    before = log.state
    attempt = log.fence_split()
    log.mark(log.parent, MarkerKind.SEAL, attempt)
    log.write(log.parent, "b")
    log.state = before
    with log.reader() as reader:
        assert values(list(reader.records())) == ["a", "b"]
    assert reader.tally.skipped == {SkipReason.ORPHAN_MARKER: 1}


def test_an_operation_that_does_not_end_is_reported_as_a_timeout(log) -> None:
    attempt = log.fence_split()
    log.mark(log.parent, MarkerKind.SEAL, attempt)
    with log.reader(patience=5) as reader, pytest.raises(DeadlineExceededError, match="waited"):
        list(reader.records())


def test_records_of_aborted_transactions_are_not_delivered(log, bootstrap) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": log.parent.topic})
    producer.init_transactions(20)
    for value, commits in (("lost", False), ("kept", True), ("lost too", False)):
        producer.begin_transaction()
        producer.produce(log.parent.topic, value, "k", 0)
        producer.flush(20)
        (producer.commit_transaction if commits else producer.abort_transaction)(20)
    with log.reader() as reader:
        assert values(list(reader.records())) == ["kept"]
    assert reader.tally.gaps == []


def test_what_retention_removed_is_reported_with_its_extent(log, admin) -> None:
    for i in range(6):
        log.write(log.parent, f"v{i}")
    deleted = admin.delete_records([TopicPartition(log.parent.topic, 0, 4)])
    for future in deleted.values():
        future.result(20)
    with log.reader() as reader:
        assert values(list(reader.records())) == ["v4", "v5"]
    assert reader.tally.gaps == [Gap(0, log.parent, 0, 4, GapReason.EXPIRED)]


def test_a_sub_topic_that_is_gone_is_a_gap(log, admin) -> None:
    first, _ = log.split()
    log.write(first, "gone", epoch=1)
    log.merge()
    log.write(log.parent, "here", epoch=2)
    admin.delete_topics([first.topic])[first.topic].result(30)
    with log.reader() as reader:
        assert values(list(reader.records())) == ["here"]
    assert reader.tally.gaps == [Gap(2, first, 0, 1, GapReason.MISSING)]
    log.state = apply(log.state, Retire(first.topic))
    with log.reader() as reader:
        assert values(list(reader.records())) == ["here"]
    assert [gap.reason for gap in reader.tally.gaps] == [GapReason.RETIRED]


def test_a_topic_that_was_made_anew_is_not_read_as_the_old_one(log) -> None:
    log.write(log.parent, "something else")
    log.state = replace(log.state, topic_id="id-of-the-old-topic")
    with log.reader() as reader:
        assert list(reader.records()) == []
    assert [gap.reason for gap in reader.tally.gaps] == [GapReason.MADE_ANEW]


def test_many_records_come_through_in_order(log) -> None:
    producer = Producer({"bootstrap.servers": ",".join(log.connection.bootstrap.split(","))})
    for i in range(20_000):
        producer.produce(log.parent.topic, str(i), f"k{i % 7}", 0)
        producer.poll(0)
    producer.flush(60)
    with log.reader() as reader:
        assert [r.logical_offset for r in reader.records()] == list(range(20_000))
