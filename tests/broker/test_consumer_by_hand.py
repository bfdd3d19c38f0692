"""Programs that assign slots themselves: their commits, and positions that they keep in their own store."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.splitter.records.control import Partitioner
from tests.broker.consuming import REMOTE, consumer, drain, shared, wait_for
from tests.broker.operating import merge, split
from tests.conftest import MakeTopic

pytestmark = pytest.mark.broker

PAGE = Path(__file__).parents[2] / "docs" / "consumer.md"
SLOTS = 4
KEYS = 40
EACH = 200
SECONDS = 60.0

Sent = dict[bytes, list[bytes]]


class Sender:
    """Sends numbered records of some keys; ``sent``: by key, in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: Sent = defaultdict(list)
        self.count = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap})

    def send(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            key, value = b"key-%d" % (number % KEYS), b"%d" % number
            self.sent[key].append(value)
            self._producer.produce(self._topic, value, key, 0)
        self.count += count
        assert self._producer.flush(SECONDS) == 0

    def close(self) -> None:
        self._producer.close()


def committed(member: Consumer, topic: str) -> int:
    [part] = member.committed([TopicPartition(topic, 0)], timeout=SECONDS)
    return part.offset


@pytest.mark.parametrize(
    ("protocol", "single_slots"),
    [
        ("consumer", False),
        ("classic", True),
        pytest.param("classic", False, marks=pytest.mark.nightly),
        pytest.param("consumer", True, marks=pytest.mark.nightly),
    ],
    ids=["consumer-assign", "classic-assign_slots", "classic-assign", "consumer-assign_slots"],
)
def test_a_group_with_members_refuses_the_commits_of_a_consumer_that_was_assigned_by_hand(
    protocol: str, single_slots: bool, bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(), make_topic()
    group = f"g-{topic}"
    shared(operations, topic, SLOTS)
    with closing(Sender(bootstrap, topic)) as sender:
        sender.send(40)
    own = {"enable_auto_commit": False}
    remote = REMOTE if protocol == "consumer" else {}
    with consumer(bootstrap, group, **own) as by_hand:
        with consumer(bootstrap, group, **own, **remote) as live:
            live.subscribe([topic, other])
            drain(live, 40)
            live.commit(asynchronous=False)
            assert committed(live, topic) == 40
            if single_slots:
                by_hand.assign_slots([(topic, 0, index) for index in range(SLOTS)])
                by_hand.seek(TopicPartition(topic, 0, 0))
            else:
                by_hand.assign([TopicPartition(topic, 0, 0)])
            drain(by_hand, 10)
            with pytest.raises(KafkaException) as refused:
                by_hand.commit(asynchronous=False)
            assert refused.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
            assert f"group {group} has members" in refused.value.args[0].str()
            assert committed(live, topic) == 40
            assert by_hand.stats()["commits_rejected"] == 1
            drain(by_hand, 10)  # it reads on
        [part] = by_hand.commit(asynchronous=False) or []
        assert committed(by_hand, topic) == part.offset == 20


def test_a_consumer_that_was_assigned_a_partition_by_hand_subscribes_when_it_has_let_it_go(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(), make_topic()
    shared(operations, topic, SLOTS)
    with (
        closing(Sender(bootstrap, topic)) as sender,
        consumer(bootstrap, f"g-{topic}", enable_auto_commit=False) as member,
    ):
        sender.send(40)
        member.assign([TopicPartition(topic, 0)])
        drain(member, 10)
        for names in ([other], [topic]):
            with pytest.raises(KafkaException) as refused:
                member.subscribe(names)
            assert refused.value.args[0].code() == KafkaError._STATE
            assert refused.value.args[0].str().endswith("nothing was changed; call unassign() first")
        drain(member, 10)
        member.commit(asynchronous=False)
        assert committed(member, topic) == 20
        member.unassign()
        member.subscribe([topic, other])
        drain(member, 20)
        member.commit(asynchronous=False)
        assert committed(member, topic) == 40


def test_a_partition_by_hand_is_read_on_after_the_subscription_beside_which_its_topic_was_enrolled(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(), make_topic()
    events: list[KafkaError] = []
    with (
        closing(Sender(bootstrap, topic)) as sender,
        consumer(bootstrap, f"g-{topic}", enable_auto_commit=False) as member,
    ):
        member.subscribe([other])
        wait_for(lambda: member.poll(0.1) is None and member.stats()["state"] == "stable", "the subscription")
        member.incremental_assign([TopicPartition(topic, 0, 0)])
        sender.send(10)
        drain(member, 10)
        operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)

        def held() -> bool:
            message = member.poll(0.1)
            if message is not None and (error := message.error()) is not None:
                events.append(error)
            return bool(events)

        wait_for(held, "the event")
        assert "call unsubscribe() to read on" in events[0].str()
        member.commit(asynchronous=False)  # what was processed, in the way of before
        sender.send(10)
        assert member.poll(1.0) is None
        member.unsubscribe()
        drain(member, 10)

        def commits() -> bool:
            try:
                return bool(member.commit(asynchronous=False))
            except KafkaException as refused:  # the coordinator has the member until it has left
                assert refused.args[0].code() == KafkaError.ILLEGAL_GENERATION
                return False

        wait_for(commits, "the end of the membership")
        assert committed(member, topic) == 20


def program(bootstrap: str, topic: str, store: Path, slots: int) -> str:
    """The program of the page, for a topic, a store and a number of slots; with few records in hand."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "sqlite3" in block]
    for there, here in (
        ("b1:9092", bootstrap),
        ('"group.id": "billing"', f'"group.id": "g-{topic}"'),
        ("invoices", topic),
        ("/var/lib/billing/store.db", str(store)),
        ("range(4)", f"range({slots})"),
        ("consume(100, ", "consume(7, "),
    ):
        assert there in found
        found = found.replace(there, here)
    return found


def results(store: Path) -> list[tuple[bytes, bytes]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute("SELECT key, value FROM results ORDER BY rowid").fetchall()


def by_key(rows: list[tuple[bytes, bytes]]) -> Sent:
    found: Sent = defaultdict(list)
    for key, value in rows:
        found[key].append(value)
    return found


class Killed:
    """The program, until it is killed; what it had stored by then is at least ``until``."""

    def __init__(self, text: str, store: Path, until: int) -> None:
        running = subprocess.Popen([sys.executable, "-c", text])

        def far_enough() -> bool:
            assert running.poll() is None, "it ended by itself"
            return store.exists() and len(results(store)) >= until

        try:
            wait_for(far_enough, f"{until} results")
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait(SECONDS)


@pytest.mark.nightly
def test_positions_in_the_programs_own_store_hold_through_kills_a_split_a_merge_and_another_number_of_slots(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    store = tmp_path / "store.db"
    sqlite3.connect(store).execute("CREATE TABLE results (key, value)").connection.close()
    parent = shared(operations, topic, SLOTS)
    with closing(Sender(bootstrap, topic)) as sender:
        sender.send(EACH)
        Killed(program(bootstrap, topic, store, SLOTS), store, EACH // 2)
        split(operations, parent, 3)
        sender.send(EACH)
        Killed(program(bootstrap, topic, store, SLOTS), store, EACH + EACH // 2)
        merge(operations, parent)
        sender.send(EACH)
        operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS - 1)
        Killed(program(bootstrap, topic, store, SLOTS - 1), store, 3 * EACH)
        assert by_key(results(store)) == sender.sent


def test_a_store_that_fails_before_the_first_bookmark_loses_nothing(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    store = tmp_path / "store.db"
    shared(operations, topic, SLOTS)
    text = program(bootstrap, topic, store, SLOTS)
    with closing(Sender(bootstrap, topic)) as sender:
        sender.send(EACH)
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("CREATE TABLE results (key, value)")
            database.execute(
                "CREATE TRIGGER away BEFORE INSERT ON results BEGIN SELECT RAISE(ABORT, 'store is away'); END"
            )
        failed = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert failed.returncode != 0
        assert "store is away" in failed.stderr
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("DROP TRIGGER away")
        Killed(text, store, EACH)
        assert by_key(results(store)) == sender.sent


@pytest.mark.nightly
def test_programs_that_begin_at_bookmarks_keep_the_ordinary_offset_right(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    shared(operations, topic, SLOTS)
    halves = [[(topic, 0, index) for index in some] for some in ((0, 1), (2, 3))]
    saved: list[str] = []
    with closing(Sender(bootstrap, topic)) as sender:
        for end in (EACH, 2 * EACH):
            sender.send(EACH)
            seen = 0
            for half in halves:
                with consumer(bootstrap, f"g-{topic}", enable_auto_commit=False) as program:
                    program.assign_slots(half, saved)
                    wait_for(lambda: all(s.stage == "reading" for s in program.slots()), "the slots")
                    while messages := program.consume(EACH, 2.0):
                        seen += len(messages)
                    program.commit(asynchronous=False)
                    saved += [slot.bookmark for slot in program.slots() if slot.bookmark]
                    at = committed(program, topic)
            assert (seen, at) == (EACH, end)


class Keeper(threading.Thread):
    """A member of a group that keeps what it read, and its bookmarks, in a store that all members share."""

    def __init__(self, bootstrap: str, topic: str, rows: list[Any], bookmarks: dict[Any, str]) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer(bootstrap, f"g-{topic}", enable_auto_commit=False)
        self.arrived: list[set[Any]] = []
        self._topic, self._rows, self._bookmarks = topic, rows, bookmarks
        self._over = threading.Event()
        self.error: BaseException | None = None

    def on_assign(self, member: Any, _partitions: Any) -> None:
        slots = member.slots()
        self.arrived.append({s.range for s in slots if s.stage == "found"})
        member.assign_slots([(s.topic, s.partition, s.index) for s in slots], list(self._bookmarks.values()))

    def run(self) -> None:
        try:
            self.consumer.subscribe([self._topic], on_assign=self.on_assign)
            while not self._over.is_set():
                messages = self.consumer.consume(7, 0.1)
                self._rows += [(m.key(), m.value()) for m in messages]
                assert not any(m.error() for m in messages)
                self._bookmarks |= {s.range: s.bookmark for s in self.consumer.slots() if s.bookmark}
            self.consumer.close()
        except BaseException as error:  # noqa: BLE001 - stop() tells
            self.error = error

    def reading(self) -> int:
        return sum(slot.stage == "reading" for slot in self.consumer.slots())

    def stop(self) -> None:
        self._over.set()
        self.join(SECONDS)
        assert self.error is None, repr(self.error)


def test_members_of_a_group_begin_each_slot_that_arrives_at_its_bookmark(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    rows: list[tuple[bytes, bytes]] = []
    bookmarks: dict[Any, str] = {}
    parent = shared(operations, topic, SLOTS)
    with closing(Sender(bootstrap, topic)) as sender:
        sender.send(EACH)
        first, second = (Keeper(bootstrap, topic, rows, bookmarks) for _ in range(2))
        first.start()
        wait_for(lambda: len(rows) >= EACH // 2, "half of it")
        second.start()
        wait_for(lambda: first.reading() == second.reading() == SLOTS // 2, "the slots to be shared")
        split(operations, parent, 3)
        sender.send(EACH)
        wait_for(lambda: len(rows) >= EACH + EACH // 2, "more of it")
        second.stop()
        wait_for(lambda: first.reading() == SLOTS, "the other slots to come back")
        sender.send(EACH)
        wait_for(lambda: len(rows) >= 3 * EACH, "all of it")
        first.stop()
    assert by_key(rows) == sender.sent
    assert set().union(*first.arrived) == set(bookmarks), "on_assign saw the range of each slot"
