"""What programs ask a Consumer, on a partition that was split, split again and merged: all in logical terms.

The records are read once along the lineage by the reader that ``kpsplit read`` uses; everything is compared
with those.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from kpsplit import Producer, SeekTarget, Whence
from kpsplit.admin import Admin
from kpsplit.splitter.key_range import KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import consumer, drain, shared
from tests.broker.operating import merge, split
from tests.broker.producing import records_of

pytestmark = [pytest.mark.broker]

EACH = 60


@dataclass(frozen=True)
class Read:
    """One record of the partition."""

    logical: int
    segment: int
    key: bytes
    value: bytes
    timestamp: int


@dataclass(frozen=True)
class Lived:
    """A topic whose one partition has lived, and its records in the order of the lineage."""

    topic: str
    parent: PhysicalPartition
    records: list[Read]

    @property
    def part(self) -> TopicPartition:
        return self.at()

    def at(self, offset: int = OFFSET_BEGINNING) -> TopicPartition:
        return TopicPartition(self.topic, 0, offset)

    def values_from(self, logical: int) -> set[bytes]:
        """The values at and behind a logical offset."""
        return {record.value for record in self.records if record.logical >= logical}

    @property
    def middle(self) -> Read:
        """A record of a phantom."""
        phantoms = [
            r for r in self.records if r.segment not in (self.records[0].segment, self.records[-1].segment)
        ]
        return phantoms[len(phantoms) // 2]


@pytest.fixture(scope="module")
def lived(operations: Admin, bootstrap: str, admin: Any) -> Lived:
    topic = f"logical-{time.time_ns()}"
    admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=30)[topic].result(30)
    parent = shared(operations, topic, slots=8)
    steps: list[Callable[[], object]] = [
        lambda: split(operations, parent, 4),
        lambda: merge(operations, parent),
        lambda: None,
    ]
    number = 0
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for step in steps:
            for _ in range(EACH):
                producer.produce(topic, b"%d" % number, b"key-%d" % (number % 13))
                number += 1
            assert producer.flush(60) == 0
            step()
    found = [
        Read(r.logical_offset, r.segment, r.key or b"", r.value or b"", r.timestamp)
        for r in records_of(operations, bootstrap, parent)[0]
    ]
    assert len(found) == 3 * EACH
    assert len({r.segment for r in found}) == 6, "two of the parent, four phantoms"
    return Lived(topic, parent, found)


@pytest.fixture
def member(bootstrap: str, lived: Lived, request: pytest.FixtureRequest) -> Any:
    """A member that has all slots, and commits only when it is told to."""
    with consumer(bootstrap, f"g-{request.node.name[:40]}-{time.time_ns()}", enable_auto_commit=False) as one:
        one.subscribe([lived.topic])
        yield one


def all_of(member: Any, lived: Lived) -> list[Any]:
    return drain(member, len(lived.records))


def test_every_record_comes_with_its_logical_offset_and_keys_in_order(member: Any, lived: Lived) -> None:
    read = all_of(member, lived)
    assert {(m.offset(), m.value()) for m in read} == {(r.logical, r.value) for r in lived.records}
    assert {(m.topic(), m.partition()) for m in read} == {(lived.topic, 0)}
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in read:
        by_key[message.key()].append(int(message.value()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    places = {m.value(): member.place(m) for m in read}
    assert {v: p.segment for v, p in places.items()} == {r.value: r.segment for r in lived.records}


def test_position_and_committed_go_along_the_lineage(member: Any, lived: Lived) -> None:
    read = all_of(member, lived)
    behind = max(r.logical for r in lived.records) + 1
    assert member.position([lived.part])[0].offset == behind
    assert member.committed([lived.part])[0].offset < 0
    first = min(m.offset() for m in read)
    [part] = member.commit(offsets=[lived.at(first + 10)], asynchronous=False)
    assert part.offset == first + 10
    assert member.committed([lived.part])[0].offset == first + 10
    [part] = member.commit(asynchronous=False)
    assert part.offset == behind
    assert member.committed([lived.part])[0].offset == behind


def test_the_slots_of_a_member_say_what_is_handed_out_and_what_is_committed(
    member: Any, lived: Lived
) -> None:
    drain(member, 1)
    begun = member.slots()
    assert [(s.topic, s.partition, s.index, s.count) for s in begun] == [
        (lived.topic, 0, index, 8) for index in range(8)
    ]
    assert tuple(s.range for s in begun) == KeyRange(0, 1 << 32).split_evenly(8)
    assert all(lived.parent in s.positions for s in begun if s.stage == "reading")
    drain(member, len(lived.records) - 1)
    (end,) = {tuple(s.positions.items()) for s in member.slots()}
    assert [place for place, _ in end] == [lived.parent], "the phantoms are left"
    assert [s.committed for s in member.slots()] == [{}] * 8
    member.commit(asynchronous=False)
    assert all(s.committed == s.positions == dict(end) for s in member.slots())


def test_a_commit_of_a_phantoms_record_covers_it_and_what_comes_before_its_segment(
    member: Any, lived: Lived, bootstrap: str
) -> None:
    read = all_of(member, lived)
    wanted = lived.middle
    message = next(m for m in read if m.value() == wanted.value)
    member.commit(message=message, asynchronous=False)
    group = member._settings.group
    member.close()
    with consumer(bootstrap, group) as successor:
        successor.subscribe([lived.topic])
        same = [r for r in lived.records if r.segment == wanted.segment]
        before = [r for r in lived.records if r.segment == lived.records[0].segment]
        covered = {r.value for r in same if r.logical <= wanted.logical} | {
            r.value for r in before if r.key in {s.key for s in same}
        }
        left = {r.value for r in lived.records} - covered
        again: set[bytes] = set()
        while not left <= again:
            again.update(m.value() or b"" for m in drain(successor, 1))
        assert wanted.value not in again
        assert not {r.value for r in same if r.logical <= wanted.logical} & again


@pytest.mark.parametrize("where", ["beginning", "phantom", "end", "last"])
def test_seek_reads_from_a_logical_offset_on(member: Any, lived: Lived, where: str) -> None:
    all_of(member, lived)
    last = max(r.logical for r in lived.records)
    target = {"beginning": OFFSET_BEGINNING, "phantom": lived.middle.logical, "end": OFFSET_END, "last": last}
    member.seek(lived.at(target[where]))
    from_ = {"beginning": 0, "phantom": lived.middle.logical, "end": last + 1, "last": last}[where]
    wanted = lived.values_from(from_)
    assert {m.value() for m in drain(member, len(wanted))} == wanted
    assert member.poll(0.5) is None


def test_watermarks_are_the_least_and_the_next_logical_offset(member: Any, lived: Lived) -> None:
    drain(member, 1)
    low, high = member.get_watermark_offsets(lived.part, timeout=30)
    offsets = [r.logical for r in lived.records]
    assert low == min(offsets)
    assert high > max(offsets)


def test_times_are_found_along_the_lineage(member: Any, lived: Lived) -> None:
    drain(member, 1)
    for record in (lived.records[0], lived.middle, lived.records[-1]):
        [found] = member.offsets_for_times([lived.at(record.timestamp)], timeout=30)
        wanted = min(r.logical for r in lived.records if r.timestamp >= record.timestamp)
        assert found.offset <= wanted
        assert not [r for r in lived.records if r.timestamp >= record.timestamp and r.logical < found.offset]
    [late] = member.offsets_for_times([lived.at(lived.records[-1].timestamp + 3_600_000)], timeout=30)
    assert late.offset == OFFSET_END


def test_a_paused_partition_goes_on_where_it_was_in_every_segment(member: Any, lived: Lived) -> None:
    read = drain(member, EACH + 7)
    member.pause([lived.part])
    assert member.poll(0.5) is None
    member.resume([lived.part])
    read += drain(member, len(lived.records) - len(read))
    values = [m.value() for m in read]
    assert len(set(values)) == len(values) == len(lived.records)


def test_a_partition_assigned_by_hand_is_read_from_a_logical_offset(bootstrap: str, lived: Lived) -> None:
    with consumer(bootstrap, f"g-hand-{time.time_ns()}") as alone:
        alone.assign([lived.at(lived.middle.logical)])
        wanted = lived.values_from(lived.middle.logical)
        assert {m.value() for m in drain(alone, len(wanted))} == wanted


def test_the_end_is_told_behind_the_last_record_of_all_segments(bootstrap: str, lived: Lived) -> None:
    with consumer(bootstrap, f"g-eof-{time.time_ns()}", enable_partition_eof=True) as one:
        one.subscribe([lived.topic])
        records, ends = 0, []
        while not ends:
            message = one.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                records += 1
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ends.append(message.offset())
        assert records == len(lived.records)
        assert ends == [max(r.logical for r in lived.records) + 1]


def test_a_pattern_sees_the_topic_and_none_of_its_sub_topics(bootstrap: str, lived: Lived) -> None:
    with consumer(bootstrap, f"g-pattern-{time.time_ns()}") as one:
        one.subscribe([f"^{lived.topic}.*"])
        read = all_of(one, lived)
        assert {m.topic() for m in read} == {lived.topic}
        assert one.poll(1.0) is None


def test_stored_offsets_of_a_phantom_are_committed_and_nothing_else(bootstrap: str, lived: Lived) -> None:
    group = f"g-store-{time.time_ns()}"
    with consumer(bootstrap, group, enable_auto_commit=False, enable_auto_offset_store=False) as one:
        one.subscribe([lived.topic])
        read = all_of(one, lived)
        with pytest.raises(KafkaException):
            one.commit(asynchronous=False)
        one.store_offsets(message=max(read, key=lambda m: m.offset()))
        [part] = one.commit(asynchronous=False)
        assert part.offset == max(r.logical for r in lived.records) + 1


def test_what_is_sought_back_for_a_range_that_cuts_slots_is_read_again_and_nothing_else(
    operations: Admin, bootstrap: str, lived: Lived
) -> None:
    group, range_ = f"g-sought-{time.time_ns()}", KeyRange(0x30000000, 0x90000000)
    with consumer(bootstrap, group, enable_auto_commit=False) as one:
        one.subscribe([lived.topic])
        all_of(one, lived)
        one.commit(asynchronous=False)
    operations.seek(operations.plan_seek(group, lived.parent, range_, SeekTarget(Whence.EARLIEST)))
    wanted = {r.value for r in lived.records if key_hash(r.key) in range_}
    assert 0 < len(wanted) < len(lived.records)
    with consumer(bootstrap, group) as again:
        again.subscribe([lived.topic])
        assert {m.value() for m in drain(again, len(wanted))} == wanted
        assert again.poll(1.0) is None
    [progress] = operations.offsets(group, lived.topic)
    assert progress.lag == 0
