"""State of handlers inside a group: counted once, whatever happens to members and partitions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kpsplit import JSON, TEXT, Consumer, Producer, StateStore
from kpsplit.admin import Admin
from kpsplit.errors import ConflictError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from tests.broker.consuming import drain
from tests.broker.operating import PAUSE_MS
from tests.broker.producing import Journal, Writer, eventually
from tests.broker.running import config, write
from tests.broker.state_counting import Kept, Member, changelog, count, expected
from tests.broker.state_member import changelog_ends
from tests.conftest import MakeTopic

pytestmark = [pytest.mark.broker]
LONG = 180.0
ROOT = Path(__file__).parents[2]
SLOTS = 4


@pytest.fixture
def topic(operations: Admin, make_topic: MakeTopic) -> str:
    """An enrolled topic."""
    name = make_topic()
    operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
    return name


def child(bootstrap: str, group: str, topic: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.broker.state_counting", bootstrap, group, topic, str(directory)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE)


class Lines:
    """Counts what a child prints, and keeps its pipe empty."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.count = 0
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for _ in self._process.stdout or ():
            self.count += 1


def kept(member: Member) -> Kept:
    """The state of the slots that a member owns."""
    found: Kept = {}
    for slot in list(member.store._owned):
        with suppress(ConflictError):  # it is being restored, or was given up just now
            found.update(member.store.slot(slot).typed(TEXT, JSON).items())
    return found


def total(state: Kept) -> int:
    return sum(seen for seen, _ in state.values())


@pytest.mark.slow
def test_counts_are_exact_through_a_split_a_killed_member_a_suspended_one_and_handlers_that_fail(
    operations: Admin, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    group, journal = f"g-{topic}", Journal()
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        writer = Writer(producer, topic, journal, "w", 40)
        stays = Member(bootstrap, group, topic, tmp_path / "stays", fails_every=50)
        writer.start()
        eventually(lambda: total(kept(stays)) > 200 and len(stays.slots()) == SLOTS, "the first", LONG)
        others = [child(bootstrap, group, topic, tmp_path / name) for name in ("dies", "sleeps")]
        lines = [Lines(one) for one in others]
        eventually(lambda: all(one.count > 50 for one in lines), "the others to work", LONG)
        plan = operations.plan_split(PhysicalPartition(topic, 0), 2, even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
        before = [one.count for one in lines]
        eventually(
            lambda: all(one.count > b + 50 for one, b in zip(lines, before, strict=True)),
            "all to go on",
            LONG,
        )
        others[0].kill()
        others[1].send_signal(signal.SIGSTOP)
        eventually(lambda: len(stays.slots()) == SLOTS, "the one that stays to have every slot", LONG)
        others[1].send_signal(signal.SIGCONT)
        eventually(lambda: len(stays.slots()) < SLOTS, "the sleeper to have slots again", LONG)
        before = [one.count for one in lines]
        eventually(lambda: lines[1].count > before[1] + 50, "the sleeper to work again", LONG)
        writer.stop()
        assert producer.flush(60) == 0
    others[1].send_signal(signal.SIGTERM)
    assert others[1].wait(180) == 0
    wanted = expected(journal.values)
    eventually(lambda: len(stays.slots()) == SLOTS, "every slot", LONG)
    eventually(lambda: total(kept(stays)) >= total(wanted), "every record", LONG)
    stays.stop()
    assert changelog(bootstrap, group, topic, tmp_path / "new", SLOTS) == wanted
    assert any(calls > 1 for calls in stays.handler.calls.values())


def test_only_slots_that_move_are_restored_and_before_their_first_record(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    values = write(bootstrap, topic, 400)
    first = Member(bootstrap, group, topic, tmp_path / "first")
    eventually(lambda: total(kept(first)) == len(values), "the first", LONG)
    second = Member(bootstrap, group, topic, tmp_path / "second")
    eventually(lambda: second.slots() and len(first.slots()) + len(second.slots()) == SLOTS, "both", LONG)
    moved = set(second.slots())
    assert all(told["restored"] > 0 for told in second.slots().values())
    assert all(told["restored"] == 0 for told in first.slots().values())
    values += write(bootstrap, topic, 400, first=400)
    eventually(lambda: total(kept(first)) + total(kept(second)) == len(values), "the rest", LONG)
    second.stop()
    eventually(lambda: len(first.slots()) == SLOTS, "the first to have every slot again", LONG)
    # What it gave up it has on disk: it reads what was written meanwhile.
    restored = {name for name, told in first.slots().items() if told["restored"]}
    assert restored == moved
    assert all(first.slots()[name]["position"] > 0 for name in moved)
    first.stop()
    assert changelog(bootstrap, group, topic, tmp_path / "new", SLOTS) == expected(values)


def test_warm_copies_follow_the_slots_of_others_and_take_over_with_nothing_left_to_read(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    values = write(bootstrap, topic, 200)
    one = Member(bootstrap, group, topic, tmp_path / "one", standbys=1)
    eventually(lambda: total(kept(one)) == len(values), "the first", LONG)
    eventually(lambda: one.store.stats()["pending_bytes"] == 0, "its commit", LONG)
    two = Member(bootstrap, group, topic, tmp_path / "two", standbys=1)
    eventually(lambda: two.slots() and len(one.slots()) + len(two.slots()) == SLOTS, "both", LONG)

    def warm(member: Member) -> set[str]:
        return set(member.store.stats()["standbys"])

    eventually(lambda: warm(two) == set(one.slots()) and warm(one) == set(two.slots()), "warm copies", LONG)
    ends = changelog_ends(bootstrap, group, one.store.slots())

    def whole() -> bool:
        at = two.store.stats()["standbys"]
        return all(at.get(slot, -1) >= end for slot, end in ends.items())

    eventually(whole, "the copies to be whole", LONG)
    restored = two.store.stats()["counts"].get("restored", 0)
    one.stop()
    eventually(lambda: len(two.slots()) == SLOTS, "the second to have every slot", LONG)
    assert two.store.stats()["counts"].get("restored", 0) == restored
    two.stop()
    assert changelog(bootstrap, group, topic, tmp_path / "new", SLOTS) == expected(values)


def test_a_member_that_lost_its_slots_cannot_write_their_state(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The second takes the first one's place in the group, which the first has not heard of yet."""
    values = write(bootstrap, topic, 40)
    settings = config(
        bootstrap,
        f"g-{topic}",
        enable_auto_commit=False,
        group_instance_id="the one",
        heartbeat_interval_ms=9000,
    )
    with (
        StateStore(tmp_path / "first", settings) as first_store,
        StateStore(tmp_path / "second", settings) as second_store,
        Consumer(settings, state=first_store) as first,
        Consumer(settings, state=second_store) as second,
    ):
        for consumer, store in ((first, first_store), (second, second_store)):
            consumer.subscribe([topic])
            for message in drain(consumer, len(values)):
                count(store, message)
        second.commit(asynchronous=False)
        with pytest.raises(KafkaException):
            first.commit(asynchronous=False)
        assert first_store.stats()["pending_bytes"] > 0 or not first_store.stats()["slots"]
    found = changelog(bootstrap, f"g-{topic}", topic, tmp_path / "new", SLOTS)
    assert found == expected(values)


def test_a_topic_that_was_never_enrolled_keeps_state_at_least_once(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(2)
    group = f"g-{topic}"
    values = write(bootstrap, topic, 1500)
    killed = child(bootstrap, group, topic, tmp_path / "killed")
    lines = Lines(killed)
    eventually(lambda: lines.count > 700, "the one that dies", LONG)
    killed.kill()
    killed.wait(30)
    member = Member(bootstrap, group, topic, tmp_path / "next")
    wanted = expected(values)

    def nothing_missing() -> bool:
        state = kept(member)
        return all(state.get(key, [0, 0])[0] >= seen for key, (seen, _) in wanted.items())

    eventually(nothing_missing, "every record", LONG)
    member.stop()
    found = changelog(bootstrap, group, topic, tmp_path / "new", 1, partitions=2)
    assert all(found[key][0] >= seen for key, (seen, _) in wanted.items())
    again = sum(calls for calls in member.handler.calls.values())
    assert total(found) <= 1500 + again


def test_whoever_polls_finds_the_state_of_what_was_committed(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    values = write(bootstrap, topic, 100)
    settings = config(bootstrap, f"g-{topic}", enable_auto_commit=False)
    with StateStore(tmp_path / "one", settings) as store, Consumer(settings, state=store) as consumer:
        consumer.subscribe([topic])
        for message in drain(consumer, 60):
            count(store, message)
        consumer.commit(asynchronous=False)
        last = drain(consumer, 20)
        for message in last:
            count(store, message)
        consumer.commit(message=last[9], asynchronous=False)
    with StateStore(tmp_path / "two", settings) as store, Consumer(settings, state=store) as consumer:
        consumer.subscribe([topic])
        rest = drain(consumer, 30)
        again = {m.value() for m in rest}
        for message in rest:
            count(store, message)
        consumer.commit(asynchronous=False)
        assert consumer.poll(1.0) is None
    assert {m.value() for m in last[10:]} <= again
    assert changelog(bootstrap, f"g-{topic}", topic, tmp_path / "new", SLOTS) == expected(values)


@pytest.mark.parametrize("transactional", [False, True])
def test_async_handlers_and_transactions_carry_state(
    bootstrap: str, topic: str, make_topic: MakeTopic, tmp_path: Path, transactional: bool
) -> None:
    values = write(bootstrap, topic, 200)
    settings = config(bootstrap, f"g-{topic}")
    done: list[bytes] = []
    with StateStore(tmp_path / "one", settings) as store, Consumer(settings, state=store) as consumer:

        async def handle(record: Any) -> None:
            state, key = store.for_record(record).typed(TEXT, JSON), record.key().decode()
            seen, sum_ = state.get(key) or [0, 0]
            await asyncio.sleep(0.001)
            state.put(key, [seen + 1, sum_ + int(record.value().split(b":")[1])])
            done.append(record.value())
            if len(done) == len(values):
                consumer.stop()

        consumer.subscribe([topic])
        consumer.run(handle, workers=8, transactional=transactional)
    assert changelog(bootstrap, f"g-{topic}", topic, tmp_path / "new", SLOTS) == expected(values)
