"""The public interface as a typed application uses it. ``make lint`` checks it with mypy; nothing runs it.

Each ``type: ignore`` is a mistake that a type checker must find: mypy reports one that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message, TopicPartition

import kpsplit
from kpsplit import (
    TEXT,
    UNSIGNED,
    Admin,
    Consumer,
    DeadLetter,
    DeserializingConsumer,
    KeyRange,
    LayoutStats,
    Output,
    Partitioner,
    PhysicalPartition,
    Plan,
    Producer,
    Report,
    Retry,
    RunStats,
    Segment,
    Serde,
    SerializingProducer,
    Skip,
    SlotView,
    StateStore,
    StepDone,
    Stop,
)
from kpsplit.errors import CheckFailedError, KpsplitError
from kpsplit.testing import HistoryReport, check_history

CONFIG = {"bootstrap.servers": "localhost:9092", "group.id": "billing"}


def report(error: KafkaError | None, message: Message) -> None:
    print(error, message.topic())


def produces() -> None:
    producer = Producer({**CONFIG, "linger.ms": 5})
    producer.produce("invoices", b"1", "key", on_delivery=report, headers={"h": b"1"})
    producer.produce("invoices", 1)  # type: ignore[arg-type]
    accepted: int = producer.produce_batch("invoices", [{"key": b"a", "value": b"b"}])
    left: int = producer.flush(1.0)
    stats: LayoutStats = producer.layout_stats()
    waiting: dict[str, int] = {name: partition.waiting for name, partition in stats.partitions.items()}
    stats.held = 0  # type: ignore[misc]
    closed: bool = producer.close()
    original: confluent_kafka.Producer = producer
    serializing: SerializingProducer[Any, Any] = SerializingProducer(CONFIG)
    serializing.produce("invoices", key=1, value=object())
    print(accepted, left, waiting, closed, original)


def consumes() -> None:
    with Consumer(CONFIG) as consumer:
        consumer.subscribe(["invoices"], on_assign=lambda _consumer, _partitions: None)
        message: Message | None = consumer.poll(1.0)
        message.offset()  # type: ignore[union-attr]
        messages: list[Message] = consumer.consume(10, 1.0)
        committed: list[TopicPartition] | None = consumer.commit(asynchronous=False)
        consumer.assign_slots([("invoices", 0, 1)])
        consumer.assign_slots(["invoices"])  # type: ignore[list-item]
        original: confluent_kafka.Consumer = consumer
    deserializing: DeserializingConsumer[Any, Any] = DeserializingConsumer(
        {**CONFIG, "key.deserializer": None}
    )
    print(messages, committed, original, deserializing)


def works() -> None:
    def handle(record: Any) -> Output:
        return Output("paid", key=record.key(), value=b"1")

    final: Stop | Skip | DeadLetter = DeadLetter("failed")
    with Consumer(CONFIG) as consumer:
        stats: RunStats = consumer.run(
            handle, workers=4, transactional=True, on_error=Retry(attempts=3, on=(ValueError,), then=final)
        )
        consumer.run(handle, worker=4)  # type: ignore[call-arg]
        consumer.run(handle, on_error=Retry)  # type: ignore[arg-type]
    processed: int = stats.processed
    Retry(attempts="3")  # type: ignore[arg-type]
    Retry(then=Retry())  # type: ignore[arg-type]
    Output(1)  # type: ignore[arg-type]
    print(processed)


def remembers(message: Message) -> None:
    with StateStore("/var/lib/billing", standbys=1) as store, Consumer(CONFIG, state=store):
        counts: SlotView[str, int] = store.for_record(message).typed(TEXT, UNSIGNED)
        counts.put("key", (counts.get("key") or 0) + 1)
        counts.put("key", "1")  # type: ignore[arg-type]
        seen: int | None = counts.get("key")
        pairs: list[tuple[str, int]] = list(counts.items())
        own: Serde[float] = Serde(lambda number: str(number).encode(), float)
        share: float | None = store.for_record(message).typed(TEXT, own).get("key")
    Consumer(CONFIG, state="store")  # type: ignore[arg-type]
    print(seen, pairs, share)


def operates() -> None:
    def observe(step: StepDone) -> None:
        print(step.name, step.seconds, step.detail)

    hot = PhysicalPartition("invoices", 0)
    with Admin(CONFIG, timeout_seconds=60) as admin:
        created: list[str] = admin.initialise()
        admin.enrol("invoices", Partitioner.CONSISTENT_RANDOM, observe)
        admin.enrol("invoices", "murmur2")  # type: ignore[arg-type]
        plan: Plan = admin.plan_split(hot, 4)
        again: Plan = Plan.decode(plan.encode())
        try:
            result: Report = admin.run(again, max_pause_ms=1000)
        except CheckFailedError as error:
            hint: str | None = error.hint
            base: KpsplitError = error
            print(hint, base.changed)
        segments: tuple[Segment, ...] = tuple(admin.lineage(hot).open_segments())
        ranges: list[KeyRange] = [segment.range for segment in segments]
        admin.split(("invoices", 0), 4)  # type: ignore[arg-type]
        print(created, result, ranges)


def tests_a_history() -> None:
    history: HistoryReport = check_history([], [], {})
    print(history)


def finds_nothing_else() -> None:
    kpsplit.Engine  # type: ignore[attr-defined]  # noqa: B018
    callback: Callable[[StepDone], None] = kpsplit.ignore_steps
    version: str = kpsplit.__version__
    print(callback, version)
