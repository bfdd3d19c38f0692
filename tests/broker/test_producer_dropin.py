"""The Producer in place of confluent_kafka's: the same calls, the same answers."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.serialization import StringSerializer

from kpsplit import Producer, SerializingProducer
from kpsplit.admin import Admin
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.errors import ConfigurationError, KpsplitError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC
from tests.broker.operating import records
from tests.broker.producing import eventually
from tests.conftest import MakeTopic

pytestmark = [pytest.mark.broker]


@pytest.fixture(params=["plain", "enrolled"])
def topic(request: pytest.FixtureRequest, operations: Admin, make_topic: MakeTopic) -> str:
    """A topic that is not enrolled, and one that is: what applications see is the same."""
    name = make_topic(partitions=3)
    if request.param == "enrolled":
        operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=2)
    return name


def read_all(bootstrap: str, topic: str, partitions: int = 3) -> list[Message]:
    found = [records(bootstrap, PhysicalPartition(topic, p)) for p in range(partitions)]
    return [message for part in found for message in part]


def own_headers(message: Message) -> list[tuple[str, bytes]]:
    return [(k, v) for k, v in message.headers() or [] if k != "kps"]  # type: ignore[misc]


def test_it_works_before_any_topic_of_kpsplit_exists(kafka_runtime: Any) -> None:
    with DevCluster(brokers=1) as bare:
        new = NewTopic("somewhere", num_partitions=1, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": bare.bootstrap})
        admin.create_topics([new])["somewhere"].result(60)
        told: list[Any] = []
        with Producer({"bootstrap.servers": bare.bootstrap}) as producer:
            producer.produce(
                "somewhere", b"v", on_delivery=lambda e, m: told.append((e, m.topic(), m.offset()))
            )
            assert producer.flush(60) == 0
            assert CONTROL_TOPIC not in producer.list_topics(timeout=10).topics
            stats = producer.layout_stats()
        assert told == [(None, "somewhere", 0)]
        assert stats.partitions == {} and stats.lease_valid


def test_records_arrive_as_they_were_given_and_reports_say_where(bootstrap: str, topic: str) -> None:
    told: dict[bytes, tuple[Any, ...]] = {}

    def report(error: Any, message: Any) -> None:
        told[message.value()] = (error, message.topic(), message.partition(), message.offset(), message.key())

    with Producer({"bootstrap.servers": bootstrap, "on_delivery": report}) as producer:
        assert producer and len(producer) == 0
        producer.produce(topic, "text", "key", timestamp=1_700_000_000_123, headers={"a": "1"})
        producer.produce(topic, b"explicit", None, 2, headers=[("b", b"2"), ("b", None)])
        producer.produce(topic, value=b"no key")
        producer.produce(topic, b"empty key", b"")
        assert len(producer) == 4
        eventually(lambda: producer.poll(0.1) or len(told) == 4, "reports")
        assert producer.flush(30) == 0 and len(producer) == 0
    found = {m.value(): m for m in read_all(bootstrap, topic)}
    assert set(found) == set(told) == {b"text", b"explicit", b"no key", b"empty key"}
    for value, (error, *place, key) in told.items():
        message = found[value]
        assert error is None
        assert place == [topic, message.partition(), message.offset()] and key == message.key()
    assert found[b"text"].timestamp() == (1, 1_700_000_000_123)
    assert found[b"text"].partition() == confluent_kafka.consistent(b"key", 3)
    assert own_headers(found[b"text"]) == [("a", b"1")]
    assert own_headers(found[b"explicit"]) == [("b", b"2"), ("b", None)]
    assert found[b"explicit"].partition() == 2 and found[b"empty key"].key() == b""


def test_the_constructor_takes_keywords_as_well(bootstrap: str, topic: str) -> None:
    with Producer(**{"bootstrap.servers": bootstrap, "client.id": "mine"}) as producer:
        producer.produce(topic, b"v")
        assert producer.flush(30) == 0


def test_a_batch_keeps_its_headers_and_tells_what_was_not_taken(bootstrap: str, topic: str) -> None:
    each: list[bytes] = []
    others: list[bytes] = []
    with Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 3}) as producer:
        producer.produce(topic, b"first", on_delivery=lambda *_: None)
        producer.flush(30)
        messages: list[dict[str, Any]] = [
            {
                "value": b"a",
                "key": "k",
                "headers": {"h": b"1"},
                "callback": lambda _, m: each.append(m.value()),
            },
            {"value": b"b", "partition": 1},
            {"value": b"c"},
            {"value": b"d"},
        ]
        taken = producer.produce_batch(topic, messages, on_delivery=lambda _, m: others.append(m.value()))
        assert taken == 3
        assert messages[3]["_error"].code() == KafkaError._QUEUE_FULL and "_error" not in messages[0]
        assert producer.flush(30) == 0
    assert each == [b"a"] and sorted(others) == [b"b", b"c"]
    found = {m.value(): m for m in read_all(bootstrap, topic)}
    assert own_headers(found[b"a"]) == [("h", b"1")] and found[b"b"].partition() == 1


def test_the_serializing_producer_routes_on_the_serialised_key(bootstrap: str, topic: str) -> None:
    told: list[Any] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "key.serializer": StringSerializer("utf_8"),
        "value.serializer": lambda value, _: str(value).encode(),
    }
    producer = SerializingProducer(settings)
    assert isinstance(producer, confluent_kafka.SerializingProducer) and isinstance(producer, Producer)
    producer.produce(
        topic, key="schlüssel", value=17, headers={"h": b"1"}, on_delivery=lambda e, _: told.append(e)
    )
    producer.produce(topic, "positional", 18)
    assert producer.flush(30) == 0
    producer.close()
    found = {m.value(): m for m in read_all(bootstrap, topic)}
    assert found[b"17"].key() == "schlüssel".encode() and found[b"18"].key() == b"positional"
    assert found[b"17"].partition() == confluent_kafka.consistent("schlüssel".encode(), 3)
    assert own_headers(found[b"17"]) == [("h", b"1")] and told == [None]


def test_purge_fails_what_is_queued(bootstrap: str, topic: str) -> None:
    told: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000})
    for _ in range(3):
        producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error.name()))
    producer.purge()
    assert producer.flush(10) == 0 and len(producer) == 0
    assert told == ["_PURGE_QUEUE"] * 3
    producer.close()


def test_a_closed_producer_refuses_everything(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v")
    assert producer.close() and producer.close()
    with pytest.raises(KpsplitError, match="closed"):
        producer.produce(topic, b"v")
    assert not [
        t for t in threading.enumerate() if t.name == "kpsplit-background" and t is producer._background
    ]


def test_a_callback_that_raises_reaches_the_application_after_all_others_ran(
    bootstrap: str, topic: str
) -> None:
    told: list[bytes] = []

    def report(_: Any, message: Any) -> None:
        told.append(message.value())
        raise ValueError(message.value())

    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for n in range(3):
            producer.produce(topic, b"%d" % n, b"k", on_delivery=report)
        with pytest.raises(ValueError, match="0"):
            producer.flush(30)
        assert told == [b"0", b"1", b"2"]
        assert producer.flush(30) == 0


def test_polling_inside_a_callback_is_refused_and_producing_is_not(bootstrap: str, topic: str) -> None:
    told: list[str] = []
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def report(*_: Any) -> None:
            for call in (producer.poll, producer.flush, producer.close):
                with pytest.raises(KpsplitError, match="inside a callback"):
                    call()
            producer.produce(topic, b"from a callback", on_delivery=lambda *_: told.append("inner"))
            told.append("outer")

        producer.produce(topic, b"v", on_delivery=report)
        assert producer.flush(30) == 0
    assert told == ["outer", "inner"]


def test_polling_in_one_thread_does_not_hinder_the_others(bootstrap: str, topic: str) -> None:
    """One thread waits in poll(); poll(0) in another returns at once and callbacks run somewhere."""
    told: list[bytes] = []
    over = threading.Event()
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def background() -> None:
            while not over.is_set():
                producer.poll(0.1)

        thread = threading.Thread(target=background)
        thread.start()
        for n in range(200):
            producer.produce(topic, b"%d" % n, b"k", on_delivery=lambda _, m: told.append(m.value()))
            producer.poll(0)
        eventually(lambda: len(told) == 200, "all reports")
        over.set()
        thread.join(10)
    assert told == [b"%d" % n for n in range(200)]


def test_only_errors_are_reported_on_request(bootstrap: str, topic: str) -> None:
    told: list[Any] = []
    with Producer({"bootstrap.servers": bootstrap, "delivery.report.only.error": True}) as producer:
        producer.produce(topic, b"v", on_delivery=lambda e, _: told.append(e))
        assert producer.flush(30) == 0
        with pytest.raises(KafkaException) as caught:
            while True:
                producer.produce(topic, b"x" * 2_000_000, on_delivery=lambda e, _: told.append(e))
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    # One that was held because the lease had just run out fails by its report, as the next test says.
    assert {error.code() if error else "a success" for error in told} <= {KafkaError.MSG_SIZE_TOO_LARGE}


def test_a_record_that_is_too_large_fails_by_its_report_while_the_topic_is_looked_up(
    bootstrap: str, topic: str
) -> None:
    told: list[Any] = []
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for value in (b"a", b"x" * 2_000_000, b"b"):
            producer.produce(
                topic, value, b"k", on_delivery=lambda e, m: told.append((e and e.name(), m.value()[:1]))
            )
        assert producer.flush(30) == 0
    assert sorted(told, key=lambda t: t[1]) == [(None, b"a"), (None, b"b"), ("MSG_SIZE_TOO_LARGE", b"x")]


def test_a_producer_with_another_partitioner_is_refused(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    operations.enrol(topic, Partitioner.MURMUR2_RANDOM, slots=2)
    told: list[str] = []
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.produce(topic, b"v", b"k", on_delivery=lambda e, _: told.append(e.str()))
        assert producer.flush(30) == 0
        assert "partitioner=murmur2_random" in told[0] and "partitioner=consistent_random" in told[0]
        with pytest.raises(ConfigurationError, match="murmur2_random"):
            producer.produce(topic, b"v", b"k")
    with Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}) as producer:
        producer.produce(topic, b"v", b"k", on_delivery=lambda e, _: told.append(e))
        assert producer.flush(30) == 0
    assert told[1:] == [None]


def test_a_topic_that_cannot_be_seen_does_not_keep_others_waiting(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, admin: Any
) -> None:
    gone, there = make_topic(), make_topic()
    for name in (gone, there):
        operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=2)
    admin.delete_topics([gone])[gone].result(30)
    told: list[Any] = []
    with Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 3000}) as producer:
        producer.produce(gone, b"v", on_delivery=lambda e, _: told.append(e.name()))
        producer.produce(there, b"v", on_delivery=lambda e, _: told.append(e))
        eventually(
            lambda: producer.poll(0.1) and any(e is None for e in told),
            "the report of the topic that is there",
        )
        assert told == [None]
        assert producer.flush(30) == 0
    assert told == [None, "_MSG_TIMED_OUT"]


def test_a_child_after_fork_gets_a_clear_error(bootstrap: str, topic: str) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.produce(topic, b"parent")
        assert producer.flush(30) == 0
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            gc.disable()  # clients that are garbage must not be destroyed without their threads
            os.write(write, "\n".join(_in_child(producer, topic)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read().split("\n")
        assert os.waitpid(child, 0)[1] == 0
        assert said[:-1] and all("made before fork()" in line for line in said[:-1])
        assert said[-1] == "closed"
        producer.produce(topic, b"parent again")
        assert producer.flush(30) == 0
    assert sorted(m.value() for m in read_all(bootstrap, topic)) == [b"parent", b"parent again"]  # type: ignore[type-var]


def _in_child(producer: Producer, topic: str) -> Iterator[str]:
    calls: list[Callable[[], Any]] = [
        lambda: producer.produce(topic, b"child", b"k"),
        lambda: producer.produce("another", b"child"),
        lambda: producer.poll(0),
        producer.flush,
        producer.purge,
        producer.list_topics,
        producer.init_transactions,
        producer.begin_transaction,
        producer.abort_transaction,
        producer.commit_transaction,
        lambda: producer.send_offsets_to_transaction([], None),  # type: ignore[arg-type]
    ]
    for call in calls:
        try:
            call()
        except KpsplitError as error:
            yield str(error)
        else:
            yield "no error"
    producer.close()
    yield "closed"


def test_a_producer_that_is_dropped_is_collected_and_its_thread_ends(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v", b"k", on_delivery=lambda *_: None)
    assert producer.flush(30) == 0
    alive, thread = weakref.ref(producer), producer._background
    assert thread is not None and thread.is_alive()
    del producer
    gc.collect()
    eventually(lambda: gc.collect() is not None and alive() is None and not thread.is_alive(), "its end")


def test_an_internal_error_is_told_and_does_not_end_the_librarys_thread(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kpsplit.producer.lease import LeaseTask

    real, failed = LeaseTask.renew, threading.Event()

    def broken(self: LeaseTask) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a defect")
        real(self)

    with Producer({"bootstrap.servers": bootstrap}) as producer:
        monkeypatch.setattr(LeaseTask, "renew", broken)
        producer.produce(topic, b"v", b"k")
        assert producer.flush(30) == 0
        assert failed.is_set()
        eventually(lambda: producer.layout_stats().last_error is None, "the error to pass")


def test_certificates_say_what_was_delivered(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "certified"})
    for _ in range(7):
        producer.produce(topic, b"v", b"k")
    assert producer.close()
    (record,) = [r for r in operations.producers().all() if topic in r.topics]
    assert record.closed and record.client_id == "certified"
    (certificate,) = record.certificates.values()
    assert (certificate.next_sequence, certificate.delivered, certificate.failed) == (7, {"0": 7}, ())
