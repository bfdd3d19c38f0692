"""State comes back from the changelog: all of it, only what moved, and nothing that was not committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer

from kpsplit import TEXT, UNSIGNED, SlotId, StateStore
from kpsplit.clock import Deadline
from kpsplit.consumer.commit.writes import CommitCoverage, Processed
from kpsplit.errors import ConflictError
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE, key_hash, slot_index
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.broker.state_member import (
    SECONDS,
    Member,
    contents,
    open_store,
    restored,
    take,
    transact,
    transactional_producer,
    until,
)
from tests.conftest import MakeTopic

pytestmark = pytest.mark.broker


def flush(store: StateStore) -> None:
    store.flush(Deadline(SECONDS))


def fill(store: StateStore, slot: SlotId, keys: range, value: bytes = b"v") -> None:
    for number in keys:
        store.slot(slot).put(b"%04d" % number, value)


def test_a_lost_directory_is_restored_from_the_changelog(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(2), 1, 2, 4)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        fill(store, slot, range(100))
        store.slot(slot).put(b"", b"empty key")
        store.slot(slot).put(b"empty value", b"")
        flush(store)
        store.slot(slot).delete(b"0007")
        flush(store)
        before = contents(store, slot)
    with open_store(bootstrap, tmp_path / "b") as store:
        take(store, [slot])
        assert contents(store, slot) == before
        assert len(before) == 101
        assert restored(store) == 103
    with open_store(bootstrap, tmp_path / "b") as store:
        take(store, [slot])
        assert contents(store, slot) == before
        assert restored(store) == 0


def test_only_the_slots_that_move_are_restored_and_only_what_their_new_owner_does_not_hold(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    slots = [SlotId(topic, 0, index, 4) for index in range(4)]
    with open_store(bootstrap, tmp_path / "a") as a, open_store(bootstrap, tmp_path / "b") as b:
        take(a, slots)
        for slot in slots:
            fill(a, slot, range(50))
        flush(a)
        a.released(slots[2:3])
        take(b, slots[2:3])
        assert restored(b) == 50
        assert contents(a, slots[1]) == contents(b, slots[2])

        fill(b, slots[2], range(45, 55), b"of b")
        flush(b)
        b.released(slots[2:3])
        take(a, slots[2:3])
        assert restored(a) == 10
        assert len(contents(a, slots[2])) == 55


def test_writes_that_were_never_committed_are_gone_with_the_slot(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        fill(store, slot, range(3))
        store.released([slot])
        with pytest.raises(ConflictError, match="not owned"):
            store.slot(slot).get(b"0000")
        take(store, [slot])
        assert contents(store, slot) == {}


def test_a_member_killed_inside_a_transaction_leaves_no_state_ahead_of_the_last_commit(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    member = Member(bootstrap, tmp_path / "a", slot)
    for command in ("put k committed", "transact", "put k2 committed", "transact", "put k ahead", "produce"):
        member.tell(command)
    member.kill()
    transactional_producer(bootstrap, f"member-{slot.number}-{slot.topic}")  # its next life: the old one ends
    for directory in ("a", "b"):
        with open_store(bootstrap, tmp_path / directory) as store:
            take(store, [slot])
            assert contents(store, slot) == {b"k": b"committed", b"k2": b"committed"}
            assert restored(store) == (0 if directory == "a" else 2)


def test_without_transactions_a_member_killed_before_its_commit_leaves_what_the_changelog_has(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    member = Member(bootstrap, tmp_path / "a", slot)
    for command in ("put k flushed", "flush", "put k2 waits"):
        member.tell(command)
    member.kill()
    for directory in ("a", "b"):
        with open_store(bootstrap, tmp_path / directory) as store:
            take(store, [slot])
            assert contents(store, slot) == {b"k": b"flushed"}


@pytest.mark.parametrize("commits", [True, False])
def test_a_slot_is_not_ready_while_a_transaction_of_its_last_owner_is_undecided(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path, commits: bool
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    producer = transactional_producer(bootstrap, f"undecided-{slot.topic}")
    with open_store(bootstrap, tmp_path / "a") as a, open_store(bootstrap, tmp_path / "b") as b:
        take(a, [slot])
        a.slot(slot).put(b"k", b"before")
        transact(a, [slot], producer)
        a.slot(slot).put(b"k", b"undecided")
        commit = a.before_commit([slot])
        producer.begin_transaction()
        commit.write(producer, Deadline(SECONDS))
        assert producer.flush(SECONDS) == 0

        b.taken([slot])
        until(lambda: bool(b.stats()["slots"][str(slot)]["position"]), "what is decided to be read")
        assert not b.ready(slot)
        if commits:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)
        until(lambda: b.ready(slot), "the slot")
        assert contents(b, slot) == {b"k": b"undecided" if commits else b"before"}


def test_after_an_abort_writes_wait_and_behind_a_release_they_are_gone(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    producer = transactional_producer(bootstrap, f"abort-{slot.topic}")
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        store.slot(slot).put(b"k", b"1")
        transact(store, [slot], producer)
        store.slot(slot).put(b"k", b"2")
        commit = store.before_commit([slot])
        producer.begin_transaction()
        commit.write(producer, Deadline(SECONDS))
        producer.abort_transaction(SECONDS)
        commit.aborted()
        assert contents(store, slot) == {b"k": b"2"}
        with pytest.raises(ConflictError, match="not this process's"), store.work(slot):
            store.slot(slot).put(b"k", b"derived from what is gone")
            store.released([slot])
        take(store, [slot])
        assert contents(store, slot) == {b"k": b"1"}


def test_after_an_unknown_outcome_the_changelog_tells_what_was_committed(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    producer = transactional_producer(bootstrap, f"unknown-{slot.topic}")
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        store.slot(slot).put(b"k", b"1")
        commit = store.before_commit([slot])
        producer.begin_transaction()
        commit.write(producer, Deadline(SECONDS))
        producer.commit_transaction(SECONDS)  # the caller never hears of it
        store.slot(slot).put(b"k", b"later")
        store.released([slot])
        take(store, [slot])
        assert contents(store, slot) == {b"k": b"1"}
        assert restored(store) == 1


def test_handlers_find_the_state_of_their_record_whatever_its_slot(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    slots = [SlotId(topic, 0, index, 4) for index in range(4)]
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(40):
        producer.produce(topic, b"", f"key-{number % 10}")
    producer.flush(SECONDS)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "plain", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, slots)
        for _ in range(40):
            message = consumer.poll(SECONDS)
            assert message is not None
            counts = store.for_record(message).typed(TEXT, UNSIGNED)
            key = (message.key() or b"").decode()
            counts.put(key, (counts.get(key) or 0) + 1)
        consumer.close()
        flush(store)
        for slot in slots:
            keys = [f"key-{n}" for n in range(10) if slot_index(key_hash(b"key-%d" % n), 4) == slot.index]
            assert dict(store.slot(slot).typed(TEXT, UNSIGNED).items()) == dict.fromkeys(keys, 4)
        store.released(slots)
        with pytest.raises(ConflictError, match="not owned"):
            store.for_record(message)


def test_a_commit_takes_what_belongs_to_the_records_that_its_positions_cover(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    first, second = (Message(topic=slot.topic, partition=0, offset=n, key=b"k") for n in range(2))
    state = PartitionState.unsplit(slot.parent, "id")
    covers = CommitCoverage(Processed(state, Mode.SLOTS, (Cursor(WHOLE, {0: 1}),), (), slot.parent))
    producer = transactional_producer(bootstrap, f"units-{slot.topic}")
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        with store.work(first):
            store.slot(slot).put(b"a", b"1")
        store.for_record(second).put(b"b", b"1")
        commit = store.before_commit([slot], {slot.parent: covers})
        producer.begin_transaction()
        commit.write(producer, Deadline(SECONDS))
        producer.commit_transaction(SECONDS)
        commit.committed()
        assert contents(store, slot) == {b"a": b"1", b"b": b"1"}
        store.released([slot])
        take(store, [slot])
        assert contents(store, slot) == {b"a": b"1"}


def test_two_topics_and_many_slots_are_restored_together(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slots = [
        SlotId(topic, p, i, 8) for topic in (make_topic(2), make_topic(2)) for p in (0, 1) for i in range(8)
    ]
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, slots)
        for slot in slots:
            store.slot(slot).put(b"who", str(slot).encode())
        flush(store)
    with open_store(bootstrap, tmp_path / "b") as store:
        take(store, slots)
        assert [contents(store, slot) for slot in slots] == [{b"who": str(slot).encode()} for slot in slots]
