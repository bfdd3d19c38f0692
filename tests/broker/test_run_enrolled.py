"""``Consumer.run()`` on enrolled topics: by slot, through splits and merges, exactly once between topics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kpsplit import Output, Producer, RunStats
from kpsplit.admin import Admin
from kpsplit.consumer.client import Consumer
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.records.control import Partitioner
from tests.broker.operating import enrolled, merge, split
from tests.broker.producing import Journal, Writer, assert_same, eventually, records_of
from tests.broker.running import Seen, config, number_of, read, write
from tests.conftest import MakeTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
NO_SETTINGS: Mapping[str, Any] = {}


class Running(threading.Thread):
    """A member of a group in a thread, inside ``run()``."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        handle: Callable[[Any], Any],
        settings: Mapping[str, Any] = NO_SETTINGS,
        **options: Any,
    ) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(config(bootstrap, group, **settings))
        self.stats: RunStats | None = None
        self.error: BaseException | None = None
        self._topic, self._handle, self._options = topic, handle, options
        self.start()

    def run(self) -> None:
        try:
            self.consumer.subscribe([self._topic])
            self.stats = self.consumer.run(self._handle, **self._options)
            self.consumer.close()
        except BaseException as error:  # noqa: BLE001 - told by stop()
            self.error = error

    def stop(self) -> RunStats:
        """End the run, close, and tell what went wrong."""
        self.consumer.stop()
        self.join(180)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()
        assert self.stats is not None
        return self.stats


def test_members_that_run_share_one_partition_and_hand_slots_over_without_doubling(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=8)
    values = write(bootstrap, topic, 600)
    seen, by_member = Seen(), Counter[str]()

    def handle(name: str) -> Callable[[Any], None]:
        def call(record: Any) -> None:
            time.sleep(0.005)
            by_member[name] += 1
            seen.add(record)

        return call

    first = Running(bootstrap, f"g-{topic}", topic, handle("first"), workers=4)
    eventually(lambda: len(seen.values) > 100, "the first member at work")
    second = Running(bootstrap, f"g-{topic}", topic, handle("second"), workers=4)

    def second_works() -> int:
        values.extend(write(bootstrap, topic, 200, first=len(values)))
        eventually(lambda: len(set(seen.values)) == len(values), "all so far")
        return by_member["second"]

    eventually(second_works, "the second member at work")
    eventually(lambda: len(set(seen.values)) == len(values), "all records")
    first.stop()
    second.stop()
    assert Counter(seen.values) == Counter(values)
    assert seen.in_order()


def test_a_stuck_key_with_a_backlog_beyond_the_buffer_holds_up_its_own_range_only(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    """Its phantom waits; the other phantoms of the partition, and the other partition, go on."""
    topic, each, size = make_topic(partitions=2), 2000, 1000
    parent = enrolled(operations, topic)
    split(operations, parent, 2)
    low, high = (key_in(half) for half in WHOLE.split_evenly(2))
    places = {b"stuck": (0, low), b"beside": (0, high), b"other": (1, b"any")}
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        for _ in range(each):
            for name, (partition, key) in places.items():
                producer.produce(topic, name.ljust(size), key, partition)
            producer.poll(0)
        assert producer.flush(60) == 0
    go, done = threading.Event(), Counter[bytes]()

    def handle(record: Any) -> None:
        name = record.value().strip()
        if name == b"stuck":
            go.wait()
        done[name] += 1

    bound = {"kpsplit_fetch_buffer_bytes": each * size // 2}
    member = Running(bootstrap, f"g-{topic}", topic, handle, bound, workers=4)
    eventually(lambda: done[b"beside"] == done[b"other"] == each, "the others to be worked off")
    assert not done[b"stuck"]
    go.set()
    eventually(lambda: done[b"stuck"] == each, "the stuck key's records")
    assert member.stop().processed == 3 * each


def key_in(range_: KeyRange) -> bytes:
    """A key whose hash is in a range."""
    return next(key for n in range(1000) if key_hash(key := b"key-%d" % n) in range_)


def test_a_run_goes_through_a_split_and_a_merge_without_noticing(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    parent = enrolled(operations, make_topic())
    producer, journal = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}), Journal()
    writer = Writer(producer, parent.topic, journal, "w")
    order: dict[bytes, list[bytes]] = defaultdict(list)
    lock = threading.Lock()

    def handle(record: Any) -> None:
        with lock:
            order[record.key()].append(record.value())

    member = Running(bootstrap, f"g-{parent.topic}", parent.topic, handle, workers=8)
    writer.start()
    for operate in (split, merge):
        before = sum(map(len, order.values()))
        eventually(lambda before=before: sum(map(len, order.values())) > before + 300, "records to flow", 60)
        operate(operations, parent)
    writer.stop()
    assert producer.flush(60) == 0
    eventually(lambda: sum(map(len, order.values())) >= len(journal.values), "the rest")
    member.stop()
    producer.close()
    assert_same(order, {key: sent for (_, key), sent in journal.sent.items()})


def test_a_transactional_run_that_is_killed_has_each_record_in_the_output_once(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    source, target = make_topic(), make_topic()
    operations.enrol(source, Partitioner.CONSISTENT_RANDOM, slots=4)
    values = write(bootstrap, source, 3000)
    first = _child(bootstrap, source, target)
    _wait_for_lines(first, 900)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    second = _child(bootstrap, source, target)
    _read_lines(second)
    try:
        copied = read(bootstrap, target, len(values))
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(180)
    assert second.returncode == 0
    copied = read(bootstrap, target, len(values))
    assert Counter(m.value() for m in copied) == Counter(values)
    _check_order([(m.key() or b"", m.value() or b"") for m in copied])


@pytest.mark.nightly
def test_a_transactional_run_over_a_plain_topic_is_exactly_once_as_well(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """All keys share one committed offset: what is processed beyond it waits with its outputs."""
    source, target = make_topic(), make_topic()
    values = write(bootstrap, source, 2000)
    first = _child(bootstrap, source, target)
    _wait_for_lines(first, 700)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    second = _child(bootstrap, source, target)
    _read_lines(second)
    try:
        read(bootstrap, target, len(values))
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(180)
    copied = read(bootstrap, target, len(values))
    assert Counter(m.value() for m in copied) == Counter(values)
    _check_order([(m.key() or b"", m.value() or b"") for m in copied])


def test_outputs_of_a_transactional_run_follow_the_split_of_their_topic(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    source = make_topic()
    target = enrolled(operations, make_topic())
    values = write(bootstrap, source, 200)
    done = Counter[bytes]()

    def copy(record: Any) -> list[Output]:
        time.sleep(0.002)
        done[record.value()] += 1
        return [Output(target.topic, record.key(), record.value())]

    member = Running(
        bootstrap, f"g-{source}", source, copy, workers=4, transactional=True, commit_seconds=0.1
    )
    eventually(lambda: len(done) > 100, "the run to begin")
    split(operations, target)
    for first in range(200, 1000, 200):
        values += write(bootstrap, source, 200, first=first)
    eventually(lambda: len(done) == len(values), "all records")
    member.stop()
    copied, _ = records_of(operations, bootstrap, target)
    assert Counter(r.value for r in copied) == Counter(values)
    _check_order([(r.key or b"", r.value or b"") for r in copied])


def _child(bootstrap: str, source: str, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.broker.run_child", bootstrap, f"g-{source}", source, target]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE)


def _wait_for_lines(child: subprocess.Popen[bytes], count: int) -> None:
    assert child.stdout is not None
    for _ in range(count):
        assert child.stdout.readline(), "the member ended"


def _read_lines(child: subprocess.Popen[bytes]) -> None:
    """Keep the pipe empty."""
    assert child.stdout is not None
    threading.Thread(target=child.stdout.read, daemon=True).start()


def _check_order(copied: list[tuple[bytes, bytes]]) -> None:
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for key, value in copied:
        by_key[key].append(number_of(value))
    assert all(found == sorted(found) for found in by_key.values())
