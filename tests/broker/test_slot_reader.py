"""Slots read real logs through splits and merges: each record once, in each key's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from kpsplit.consumer.fetch.gaps import Gap, GapFound, GapPolicy, Unreadable
from kpsplit.kafka.logical_message import LogicalMessage
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, GapReason
from kpsplit.splitter.records.data import MarkerKind
from tests.broker.operating import PAUSE_MS, enrolled, merge, state_of
from tests.broker.slot_reading import Member, Writer, slots_of
from tests.broker.test_lineage_reader import Log
from tests.nights import others_at_night

pytestmark = pytest.mark.broker


@pytest.fixture
def member(bootstrap, operations) -> Iterator[Callable[..., Member]]:
    """Makes members and closes them."""
    made: list[Member] = []

    def make(**settings: Any) -> Member:
        made.append(Member.of(bootstrap, operations, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def unsplit(bootstrap, make_topic) -> Iterator[Callable[..., Member]]:
    """Makes members that read topics that are not enrolled."""
    made: list[Member] = []

    def make(**settings: Any) -> Member:
        made.append(Member(bootstrap, lambda parent: PartitionState.unsplit(parent, ""), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def split(operations, parent: PhysicalPartition, ranges: int = 2) -> PartitionState:
    """Split the second open segment, or the only one. By force: a few keys are no load worth splitting."""
    layout = state_of(operations, parent).lineage.open_segments()
    of = layout[1].range if len(layout) > 1 else None
    plan = operations.plan_split(parent, ranges, of=of, even=True)
    return operations.run(plan, max_pause_ms=PAUSE_MS, force=True).state


@pytest.mark.parametrize("members", others_at_night([1, 2, 4], lambda members: members == 4))
def test_slots_read_a_partition_through_a_split_a_nested_split_and_a_merge(
    bootstrap, operations, make_topic, member, members
) -> None:
    """While it happens: the members read between the operations and after them."""
    parent = enrolled(operations, make_topic())
    writer = Writer(bootstrap, parent)
    writer.write(state_of(operations, parent), 5)
    readers = [member() for _ in range(members)]
    slots = slots_of(parent, 4)
    for number, slot in enumerate(slots):
        readers[number * members // 4].own(slot)
    for change in (
        lambda: split(operations, parent, 2),
        lambda: split(operations, parent, 2),
        lambda: merge(operations, parent),
    ):
        for reader in readers:
            reader.read_to_end()
        writer.write(change(), 5)
    total = sum(map(len, writer.sent.values()))
    together: dict[bytes, list[bytes]] = {}
    for reader in readers:
        mine = [
            key
            for key in writer.sent
            if any(key_hash(key) in s.range for s in reader.reader.fetch_states[parent]._cursors)
        ]
        reader.read(sum(len(writer.sent[key]) for key in mine))
        assert not set(reader.by_key()) & set(together)
        together.update(reader.by_key())
        assert not reader.troubles
    assert together == dict(writer.sent)
    assert sum(map(len, together.values())) == total


def test_a_group_that_was_away_for_a_split_and_a_merge_reads_everything_in_order_with_rising_numbers(
    bootstrap, operations, make_topic, member
) -> None:
    parent = enrolled(operations, make_topic())
    writer = Writer(bootstrap, parent)
    writer.write(state_of(operations, parent), 3)
    writer.write(split(operations, parent, 4), 3)
    writer.write(merge(operations, parent), 3)
    reader = member()
    for slot in slots_of(parent, 2):
        reader.own(slot)
    reader.read(sum(map(len, writer.sent.values())))
    assert reader.by_key() == dict(writer.sent)
    numbers: dict[bytes, int] = {}
    for message in reader.messages:
        assert (message.topic(), message.partition()) == (parent.topic, parent.partition)
        assert numbers.get(message.key() or b"", -1) < (message.offset() or 0)
        numbers[message.key() or b""] = message.offset() or 0
    places = reader.places(parent)
    assert {p.epoch for p in places if p} == {0, 1, 2}
    assert len({(p.source_topic, p.source_partition, p.source_offset) for p in places if p}) == len(places)


def test_a_slot_that_moves_in_the_middle_goes_on_where_it_was(
    bootstrap, operations, make_topic, member
) -> None:
    """The old owner reads on for its other slot, nothing twice; the new one goes back for it."""
    parent = enrolled(operations, make_topic())
    writer = Writer(bootstrap, parent)
    writer.write(state_of(operations, parent), 10)
    first, second = slots_of(parent, 2)
    one, other = member(), member()
    one.own(first)
    one.own(second)
    one.read(100)
    one.reader.pause([parent])
    cursor = one.reader.cursor(second)
    one.reader.disown([second])
    one.reader.resume([parent])
    writer.write(split(operations, parent, 2), 10)
    one.read_to_end()
    other.own(second, cursor)
    other.read_to_end()
    before = [m for m in one.messages if key_hash(m.key() or b"") in second.range]
    for key, values in writer.sent.items():
        if key_hash(key) in first.range:
            assert one.by_key()[key] == values
        else:
            early = [m.value() for m in before if m.key() == key]
            assert early + other.by_key().get(key, []) == values
    other.own(first, one.reader.cursor(first))
    one.reader.disown([first])
    writer.write(state_of(operations, parent), 1)
    other.read(len(other.messages) + 40)


def test_a_slot_that_arrives_further_back_makes_the_reader_go_back_for_it_alone(
    bootstrap, make_topic, unsplit
) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    writer = Writer(bootstrap, parent)
    writer.write(PartitionState.unsplit(parent, ""), 10)
    first, second = slots_of(parent, 2)
    reader = unsplit()
    reader.own(first)
    reader.read_to_end()
    reader.own(second)
    reader.read(400)
    assert reader.by_key() == dict(writer.sent)


def test_a_whole_unsplit_partition_passes_through_untouched(bootstrap, make_topic, unsplit) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    writer = Writer(bootstrap, parent)
    writer.write(PartitionState.unsplit(parent, ""), 100)
    reader = unsplit()
    reader.own(OwnedSlot(parent, 0, 1))
    reader.read(4000)
    assert [m.offset() for m in reader.messages] == list(range(4000))
    assert not any(isinstance(m, LogicalMessage) for m in reader.messages)
    assert sum(len(b.messages) > 100 for b in reader.batches) > 1
    assert all(b.leader_epoch is not None for b in reader.batches if b.messages)


def test_every_message_is_wrapped_on_request(bootstrap, make_topic, unsplit) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    writer = Writer(bootstrap, parent)
    writer.put(parent, b"k", b"v")
    writer.flush()
    reader = unsplit(wrap_all=True)
    reader.own(OwnedSlot(parent, 0, 1))
    reader.read(1)
    (message,) = reader.messages
    assert isinstance(message, LogicalMessage)
    assert (message.segment, message.epoch, message.source()) == (0, 0, (parent.topic, 0, 0))


def test_large_records_do_not_fill_more_room_than_there_is(bootstrap, make_topic, unsplit) -> None:
    """After the first record its size is known; jumps are bounded by what the client has fetched."""
    parent = PhysicalPartition(make_topic(), 0)
    writer = Writer(bootstrap, parent)
    for i in range(60):
        writer.put(parent, b"k", b"x" * 200_000)
        if i % 20 == 0:
            writer.flush()
    writer.flush()
    reader = unsplit(**{"queued.max.messages.kbytes": 1024, "fetch.message.max.bytes": 300_000})
    reader.own(OwnedSlot(parent, 0, 1))
    room = 1_000_000
    while len(reader.messages) < 60:
        assert sum(batch.bytes for batch in reader.step(room=room)) <= room
    assert reader.step(room=0) == []


def test_records_without_a_key_are_read_by_exactly_one_slot_before_and_after_a_split(
    bootstrap, operations, make_topic, member
) -> None:
    parent = enrolled(operations, make_topic())
    writer = Writer(bootstrap, parent)
    values = [b"%d" % i for i in range(300)]
    for value in values[:100]:
        writer.put(parent, None, value)
    writer.flush()
    state = split(operations, parent, 2)
    for number, value in enumerate(values[100:]):
        writer.put(state.lineage.open_segments()[number % 2].source, None, value)
    writer.flush()
    slots = slots_of(parent, 4)
    one, other = member(), member()
    for slot in slots[:3]:
        one.own(slot)
    other.own(slots[3])
    one.read_to_end()
    other.read_to_end()
    found = [m.value() for reader in (one, other) for m in reader.messages]
    assert sorted(found) == sorted(values)
    assert one.messages
    assert other.messages


def test_an_open_transaction_holds_up_its_partition_only_and_aborted_records_are_not_delivered(
    bootstrap, make_topic, unsplit
) -> None:
    topic = make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", b"k", 0)
    producer.flush(20)
    producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", b"k", 0)
    producer.flush(20)
    writer = Writer(bootstrap, PhysicalPartition(topic, 0))
    for partition in (0, 1):
        writer.put(PhysicalPartition(topic, partition), b"k", b"plain-%d" % partition)
    writer.flush()
    reader = unsplit()
    for partition in (0, 1):
        reader.own(OwnedSlot(PhysicalPartition(topic, partition), 0, 1))
    parents = {PhysicalPartition(topic, partition) for partition in (0, 1)}
    reader.read_until(lambda: {end.parent for end in reader.ends} == parents, "both ends")
    assert [m.value() for m in reader.messages] == [b"plain-1"]
    producer.commit_transaction(20)
    reader.read(3)
    assert [m.value() for m in reader.messages] == [b"plain-1", b"open", b"plain-0"]
    slot = OwnedSlot(PhysicalPartition(topic, 0), 0, 1)
    reader.read_until(
        lambda: reader.reader.cursor(slot).positions == {0: 5}, "the end behind the transaction's marker"
    )


@pytest.fixture
def log(bootstrap, admin, make_topic) -> Log:
    return Log(bootstrap, admin, make_topic())


@pytest.fixture
def follower(bootstrap, log) -> Iterator[Member]:
    """A member that owns the whole of the log, by the state that the test makes."""
    reader = Member(bootstrap, lambda _: log.state)
    reader.own(OwnedSlot(log.parent, 0, 1))
    yield reader
    reader.close()


def values(reader: Member) -> list[str]:
    return [(m.value() or b"").decode() for m in reader.messages]


def test_a_transaction_that_is_open_across_a_split_is_no_gap(bootstrap, log, follower) -> None:
    """The cut lies behind it: readers wait for its end, then go on to the phantoms."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": log.parent.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(log.parent.topic, b"open", b"k", 0)
    producer.flush(20)
    log.write(log.split()[0], "child", epoch=1)
    follower.refresh(log.parent)
    fetch_state = follower.reader.fetch_states[log.parent]
    follower.read_until(lambda: fetch_state.cut_short(log.parent), "the end that is held up")
    for _ in range(20):
        assert follower.step() == []
    producer.commit_transaction(20)
    follower.read(2)
    assert values(follower) == ["open", "child"]
    assert not follower.troubles


def test_a_reader_waits_for_the_outcome_of_an_operation_and_reads_on(log, follower) -> None:
    """Strays and the marker are skipped, records of other writers behind it delivered."""
    log.write(log.parent, "a", epoch=0)
    attempt = log.fence_split()
    end = log.mark(log.parent, MarkerKind.SEAL, attempt)
    log.write(log.parent, "stray", epoch=0)
    log.write(log.parent, "overflow")
    follower.read(1)
    for _ in range(10):
        assert follower.step() == []
    log.commit(attempt, {0: end})
    log.write(log.state.lineage.open_segments()[1].source, "child", epoch=1)
    follower.refresh(log.parent)
    follower.read(3)
    assert sorted(values(follower)) == ["a", "child", "overflow"]
    assert follower.reader.fetch_states[log.parent].tally.strays == 1
    assert not follower.troubles


def test_a_log_that_is_shorter_than_its_segment_is_reported_as_cut_off(log, follower) -> None:
    log.write(log.parent, "a", epoch=0)
    log.commit(log.fence_split(), {0: 1000})
    follower.refresh(log.parent)
    follower.read_until(lambda: follower.troubles, "the gap")
    (found,) = follower.troubles
    assert isinstance(found, GapFound)
    assert found.gap == Gap(0, log.parent, 1, 1000, GapReason.CUT_OFF)
    assert values(follower) == ["a"]


def test_what_retention_removed_stops_the_partition_until_somebody_seeks(
    bootstrap, admin, make_topic, unsplit
) -> None:
    parent = cut_log(bootstrap, admin, make_topic())
    reader = unsplit()
    slot = OwnedSlot(parent, 0, 1)
    reader.own(slot)
    reader.read_until(lambda: reader.troubles, "the gap")
    (found,) = reader.troubles
    assert isinstance(found, GapFound)
    assert found.gap == Gap(0, parent, 0, 25, GapReason.EXPIRED)
    assert "offsets 0 to 24" in str(found.error)
    for _ in range(5):
        assert reader.step() == []
    reader.reader.own(slot, reader.reader.cursor(slot).moved(0, 30))
    reader.read(10)
    assert [m.offset() for m in reader.messages] == list(range(30, 40))


def test_what_retention_removed_is_skipped_and_reported_once_on_request(
    bootstrap, admin, make_topic, unsplit
) -> None:
    parent = cut_log(bootstrap, admin, make_topic())
    reader = unsplit(on_gap=GapPolicy.SKIP_AND_REPORT)
    for slot in slots_of(parent, 4):
        reader.own(slot)
    reader.read(15)
    assert reader.troubles == [GapFound(parent, Gap(0, parent, 0, 25, GapReason.EXPIRED), 25, None)]
    first = reader.batches[0]
    assert (first.start, first.end, first.messages) == (0, 25, [])
    assert [m.offset() for m in reader.messages] == list(range(25, 40))


def cut_log(bootstrap, admin, topic: str) -> PhysicalPartition:
    """Forty records, of which the first 25 are deleted."""
    parent = PhysicalPartition(topic, 0)
    Writer(bootstrap, parent).write(PartitionState.unsplit(parent, ""), 1)
    for future in admin.delete_records([TopicPartition(topic, 0, 25)]).values():
        future.result(20)
    return parent


@pytest.mark.nightly
def test_a_sub_topic_that_is_gone_is_a_gap_of_its_segments(
    bootstrap, admin, operations, make_topic, member
) -> None:
    parent = enrolled(operations, make_topic())
    writer = Writer(bootstrap, parent)
    state = split(operations, parent, 2)
    writer.write(state, 1)
    phantoms = state.lineage.open_segments()
    merged = merge(operations, parent)
    writer.write(merged, 1)
    topic = phantoms[0].source.topic
    admin.delete_topics([topic])[topic].result(30)
    reader = member(on_gap=GapPolicy.SKIP_AND_REPORT)
    reader.own(OwnedSlot(parent, 0, 1))
    reader.read(40)
    gaps = [e.gap for e in reader.troubles if isinstance(e, GapFound)]
    ended = [merged.lineage.get(s.id) for s in phantoms]
    assert sorted(gaps, key=lambda g: g.segment) == [
        Gap(s.id, s.source, 0, s.end or 0, GapReason.MISSING) for s in ended
    ]


def test_a_topic_that_was_made_anew_is_not_read_as_the_old_one(bootstrap, make_topic, unsplit) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    Writer(bootstrap, parent).write(PartitionState.unsplit(parent, ""), 1)
    reader = Member(bootstrap, lambda place: PartitionState.unsplit(place, "AAAAAAAAAAAAAAAAAAAAAQ"))
    try:
        reader.own(OwnedSlot(parent, 0, 1))
        reader.read_until(lambda: reader.troubles, "the refusal")
        (refused,) = reader.troubles
        assert isinstance(refused, Unreadable)
        assert "made anew" in str(refused.error)
        assert not reader.messages
    finally:
        reader.close()


def test_a_paused_partition_goes_on_where_it_was_and_does_not_hold_up_others(
    bootstrap, make_topic, unsplit
) -> None:
    topic = make_topic(partitions=2)
    first, second = PhysicalPartition(topic, 0), PhysicalPartition(topic, 1)
    reader = unsplit()
    for parent in (first, second):
        reader.own(OwnedSlot(parent, 0, 1))
        Writer(bootstrap, parent).write(PartitionState.unsplit(parent, ""), 1)
    reader.read(80)
    reader.reader.pause([first])
    for parent in (first, second):
        Writer(bootstrap, parent).write(PartitionState.unsplit(parent, ""), 1)
    reader.read(120)
    assert {m.partition() for m in reader.messages[80:]} == {1}
    reader.reader.resume([first])
    reader.read(160)
    for partition in (0, 1):
        assert [m.offset() for m in reader.messages if m.partition() == partition] == list(range(80))


def test_the_applications_own_fetch_settings_are_taken(bootstrap, make_topic, unsplit) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"not committed", b"k", 0)
    producer.flush(20)
    reader = unsplit(**{"isolation.level": "read_uncommitted", "fetch.min.bytes": 1, "check.crcs": True})
    reader.own(OwnedSlot(PhysicalPartition(topic, 0), 0, 1))
    reader.read(1)
    producer.abort_transaction(20)


def test_a_seek_while_brokers_are_asked_what_a_log_has_lost_is_read_from_there(
    bootstrap, make_topic, admin, unsplit
) -> None:
    """The answer says nothing of the new place; what was held up for it is not forgotten."""
    topic = make_topic()
    writer = Writer(bootstrap, parent := PhysicalPartition(topic, 0))
    for number in range(30):
        writer.put(parent, b"key", b"%d" % number)
    writer.flush()
    reader = unsplit(on_gap=GapPolicy.SKIP_AND_REPORT)
    (slot,) = slots_of(parent, 1)
    for future in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        future.result(30)
    reader.own(slot, Cursor(slot.range, {0: 5}))
    reader.read_until(lambda: reader.reader._probes, "the question")
    reader.reader.own(slot, Cursor(slot.range, {0: 12}))
    reader.read(10)
    assert [int(m.value()) for m in reader.messages] == list(range(20, 30))
    gaps = [e.gap for e in reader.troubles if isinstance(e, GapFound)]
    assert gaps[-1] == Gap(0, parent, 12, 20, GapReason.EXPIRED)
