"""``Consumer.run()`` on topics that are not enrolled, against real brokers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import tenacity
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import DeadLetter, HandlerError, Output, Retry
from kpsplit.consumer.client import Consumer
from kpsplit.consumer.run.handlers import OutputError
from kpsplit.errors import KpsplitError
from kpsplit.splitter.key_range import WHOLE
from tests.broker.producing import eventually
from tests.broker.running import Seen, committed, config, read, send, write
from tests.conftest import MakeTopic
from tests.unit.lane_samples import keys_in
from tests.unit.run_handlers import touch

pytestmark = pytest.mark.broker


def test_each_record_is_worked_on_once_in_the_order_of_its_key_and_committed(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    values = write(bootstrap, topic, 2000)
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen(consumer, len(values))
        stats = consumer.run(seen.add, workers=8)
    assert Counter(seen.values) == Counter(values)
    assert seen.in_order()
    assert stats.processed == len(values)
    assert committed(bootstrap, f"g-{topic}", topic) == len(values)


def test_an_async_handler_works_on_several_keys_at_once(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    values = write(bootstrap, topic, 400)
    together, most = 0, 0
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen(consumer, len(values))

        async def handle(record: Any) -> None:
            nonlocal together, most
            together += 1
            most = max(most, together)
            await asyncio.sleep(0.001)
            seen.add(record)
            together -= 1

        consumer.run(handle, workers=16)
    assert Counter(seen.values) == Counter(values)
    assert seen.in_order()
    assert most > 4


def test_records_after_the_run_are_polled_from_where_it_stopped(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    values = write(bootstrap, topic, 300)
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen(consumer, 100)
        consumer.run(seen.add, workers=4)
        polled = []

        def all_there() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                polled.append(message.value())
            return len(seen.values) + len(polled) >= len(values)

        eventually(all_there, "the rest")
    assert Counter(seen.values + polled) == Counter(values)


def test_stop_is_the_default_policy_and_nothing_behind_the_record_is_committed(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    values = write(bootstrap, topic, 200)
    bad = values[50]

    def handle(record: Any) -> None:
        if record.value() == bad:
            raise ValueError("content that must not be told")

    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(HandlerError) as raised:
            consumer.run(handle, workers=4)
    assert f"{topic}/0 at offset 50: ValueError" in str(raised.value)
    assert "content" not in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)
    assert committed(bootstrap, f"g-{topic}", topic) <= 50


def test_a_record_that_fails_for_good_is_in_the_dead_letter_topic_and_the_others_go_on(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, letters = make_topic(), make_topic()
    values = write(bootstrap, topic, 200)
    bad = values[50]
    tries = 0
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen(consumer, len(values) - 1)

        def handle(record: Any) -> None:
            nonlocal tries
            if record.value() == bad:
                tries += 1
                raise ValueError("content")
            seen.add(record)

        wait = tenacity.wait_fixed(0.02)
        stats = consumer.run(
            handle, workers=4, on_error=Retry(attempts=3, wait=wait, then=DeadLetter(letters))
        )
        # The last records may be done before the third attempt; then the letter comes in the next run.
        if stats.dead_letters == 0:
            threading.Timer(1.0, consumer.stop).start()
            stats = consumer.run(
                handle, workers=4, on_error=Retry(attempts=3, wait=wait, then=DeadLetter(letters))
            )
    assert stats.dead_letters == 1
    assert tries >= 3
    [letter] = read(bootstrap, letters, 1)
    assert (letter.key(), letter.value()) == (bad.split(b":")[0], bad)
    assert dict(letter.headers() or ()) == {
        "kpsplit.failed.error": b"ValueError",
        "kpsplit.failed.topic": topic.encode(),
        "kpsplit.failed.partition": b"0",
        "kpsplit.failed.offset": b"50",
    }
    assert committed(bootstrap, f"g-{topic}", topic) == len(values)


def test_ctrl_c_ends_the_run_in_order(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    values = write(bootstrap, topic, 100)
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen()

        def handle(record: Any) -> None:
            seen.add(record)
            if len(seen.values) == len(values):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        consumer.run(handle, workers=2)
    assert Counter(seen.values) == Counter(values)
    assert committed(bootstrap, f"g-{topic}", topic) == len(values)


def test_a_record_that_is_not_finished_in_time_is_not_committed(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """Everything else is done when the run is ended, before it and after it, in lanes of their own."""
    topic, (low, high) = make_topic(), WHOLE.split_evenly(2)
    [stuck], others = keys_in(low, 1), keys_in(high, 20)
    values = send(bootstrap, topic, [*others[:10], stuck, *others, *others])
    let_go = threading.Event()
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen()

        def handle(record: Any) -> None:
            if record.key() == stuck:
                let_go.wait(180)
            else:
                seen.add(record)

        def stuck_alone() -> bool:
            return len(seen.values) == len(values) - 1 and consumer.stats()["run"]["busy"] == 1

        def stop() -> None:
            eventually(stuck_alone, "all others to be done")
            consumer.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        stats = consumer.run(handle, workers=4, drain_seconds=0.2)
        stopper.join()
    let_go.set()
    assert (stats.busy, stats.processed) == (1, len(values) - 1)
    assert committed(bootstrap, f"g-{topic}", topic) == 10


def test_while_it_runs_it_is_seen_in_the_statistics_and_other_commits_are_refused(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(bootstrap, topic, 10)
    told: list[Any] = []
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])

        def handle(_record: Any) -> None:
            told.append(consumer.stats()["run"]["busy"])
            for refused in (consumer.commit, lambda: consumer.run(print)):
                with pytest.raises(KpsplitError, match="under way"):
                    refused()
            consumer.stop()

        consumer.run(handle, workers=1)
        assert consumer.stats()["run"] is None
    assert told[0] == 1


def test_a_handler_in_processes_works_on_all_records(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    values = [str(tmp_path / str(number)).encode() for number in range(20)]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"%d" % number)
    assert producer.flush(30) == 0
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])

        def stop_when_done() -> None:
            eventually(lambda: len(list(tmp_path.iterdir())) == len(values), "a file for each record", 90)
            consumer.stop()

        watcher = threading.Thread(target=stop_when_done, daemon=True)
        watcher.start()
        stats = consumer.run(touch, workers=2, executor="process")
    assert stats.processed == len(values)
    assert committed(bootstrap, f"g-{topic}", topic) == len(values)


def test_an_output_that_is_too_large_ends_the_run_and_the_next_writes_each_output_once(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, target = make_topic(), make_topic()
    values = write(bootstrap, topic, 200)
    mended = False
    with Consumer(config(bootstrap, f"g-{topic}")) as consumer:
        consumer.subscribe([topic])
        seen = Seen()

        def handle(record: Any) -> Output:
            seen.add(record)
            if record.value() == values[50] and not mended:
                return Output(target, value=b"x" * 2_000_000)
            return Output(target, value=record.value())

        with pytest.raises(OutputError, match="too large"):
            consumer.run(handle, workers=4, transactional=True)
        mended = True
        first = len(seen.values)

        def all_committed() -> bool:
            return committed(bootstrap, f"g-{topic}", topic) == len(values)

        stopper = threading.Thread(
            target=lambda: (eventually(all_committed, "the last commit"), consumer.stop())
        )
        stopper.start()
        consumer.run(handle, workers=4, transactional=True)
        stopper.join()
    assert len(seen.values) > first
    assert Counter(m.value() for m in read(bootstrap, target, len(values))) == Counter(values)


def test_an_output_for_a_topic_that_is_not_there_is_told_at_once_and_written_when_it_is(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    target = f"{topic}-late"
    values = write(bootstrap, topic, 100)
    told: list[str] = []
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {**config(bootstrap, f"g-{topic}"), "error_cb": lambda error: told.append(error.str())}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        positions: list[int] = []

        def handle(record: Any) -> Output:
            positions.extend(p.offset for p in consumer.position([TopicPartition(topic, 0)]))
            return Output(target, value=record.value())

        def then() -> None:
            eventually(lambda: [text for text in told if "does not exist" in text], "error_cb")
            admin.create_topics([NewTopic(target, 1, 1)])[target].result(30)
            eventually(lambda: committed(bootstrap, f"g-{topic}", topic) == len(values), "the commit")
            consumer.stop()

        stopper = threading.Thread(target=then)
        stopper.start()
        consumer.run(handle, workers=1, transactional=True)
        stopper.join()
    assert len([text for text in told if "does not exist" in text]) == 1
    assert Counter(m.value() for m in read(bootstrap, target, len(values))) == Counter(values)
    assert len(positions) == len(values)
