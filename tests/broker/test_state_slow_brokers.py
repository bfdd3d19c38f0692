"""State that is written faster than the brokers take it: the application waits, and commits succeed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit import Consumer, SlotId, StateStore
from kpsplit.admin import Admin
from kpsplit.splitter.records.control import Partitioner
from tests.broker.producing import eventually
from tests.broker.running import config, write
from tests.broker.state_member import contents, take
from tests.conftest import MakeTopic
from tests.fault.chaos.brokers import Brokers
from tests.nights import others_at_night

pytestmark = [pytest.mark.broker]
LONG = 180.0
COMMITS = "kpsplit-commits"
"""The client id of the producer that commits."""
BYTES_PER_SECOND = 1_000_000
"""Kafka lets pass what that makes in 11 s at once: no transaction, of at most 10 s, gets much more.

After that the brokers answer nobody for as long as the bytes too many stand for, and count them for 10 s
more: the first megabyte too many costs 1 s, the next 2 s. A transaction of four takes all of its time.
"""
RECORDS, VALUE_BYTES = 240, 100_000
BOUND = 1_000_000


@pytest.fixture
def slow_commits(bootstrap: str) -> Iterator[None]:
    """Brokers that accept little of the producer that commits, and of no other client."""
    brokers = Brokers(bootstrap)
    brokers.throttle(BYTES_PER_SECOND, 30, COMMITS)
    yield
    brokers.throttle(None, 30, COMMITS)


@pytest.mark.parametrize("how", others_at_night(["run", "poll"], lambda how: how == "run"))
@pytest.mark.usefixtures("slow_commits")
def test_state_that_comes_faster_than_brokers_take_it_is_committed_all_the_same(
    operations: Admin, bootstrap: str, make_topic: MakeTopic, tmp_path: Path, how: str
) -> None:
    """Each commit fits into the time of its transaction, because handlers wait for it."""
    topic = make_topic()
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=1)
    write(bootstrap, topic, RECORDS)
    failures: list[str] = []

    def on_commit(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error.str())

    settings = config(bootstrap, f"g-{topic}")
    most, handled = 0, 0
    with (
        StateStore(tmp_path / "s", max_pending_bytes=BOUND) as store,
        Consumer({**settings, "on_commit": on_commit}, state=store) as consumer,
    ):

        def handle(message: Any) -> None:
            nonlocal most, handled
            store.for_record(message).put(b"%d" % message.offset(), os.urandom(VALUE_BYTES))
            most, handled = max(most, store.stats()["pending_bytes"]), handled + 1

        def committed() -> bool:
            return handled == RECORDS and not store.stats()["pending_bytes"]

        def stop_then() -> None:
            try:
                eventually(committed, "every record", LONG)
            finally:
                consumer.stop()

        consumer.subscribe([topic])
        if how == "run":
            watcher = threading.Thread(target=stop_then)
            watcher.start()
            consumer.run(handle, workers=1)
            watcher.join()
        else:
            eventually(lambda: handled_one(consumer, handle) and committed(), "every record", LONG)
        assert committed()
    assert failures == []
    assert most < 2 * BOUND
    with StateStore(tmp_path / "new", settings) as again:
        slot = SlotId(topic, 0, 0, 1)
        take(again, [slot])
        assert len(contents(again, slot)) == RECORDS


def handled_one(consumer: Consumer, handle: Any) -> bool:
    """Poll, and handle what comes."""
    message = consumer.poll(0.1)
    if message is not None:
        assert message.error() is None, message.error()
        handle(message)
    return True
