"""The end of a Producer: every record is reported once, and the certificate says what is true."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.producer import client
from kpsplit.producer.client import Producer
from kpsplit.producer.lease import Registration
from kpsplit.splitter.records.producers import Certificate
from tests.unit.samples import fenced
from tests.unit.test_producer_interrupts import whole_producer
from tests.unit.test_producer_state import SPLIT, UNSPLIT, Ground

pytestmark = pytest.mark.usefixtures("both_paths")


class Library:
    """The library's thread at the end: what it was given to publish."""

    def __init__(self) -> None:
        self.certificates: dict[str, Certificate] | None = None
        self.registration = self
        self.alive = False

    def stop(self, timeout: float | None) -> None: ...

    def is_alive(self) -> bool:
        return self.alive

    def certify(self, certificates: dict[str, Certificate], deadline: Deadline) -> None:
        self.certificates = certificates


def closing_producer(ground: Ground) -> tuple[Producer, Library]:
    producer, library = whole_producer(ground), Library()
    producer._background = library  # type: ignore[assignment]
    return producer, library


def test_every_record_that_close_found_waiting_is_reported_once_by_the_closing_thread() -> None:
    ground = Ground()
    told: list[tuple[Any, Any]] = []

    def callback(error: Any, message: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((error and error.code(), message.value()))

    ground.send(b"pending", callback=callback)
    ground.observe(fenced(UNSPLIT, SPLIT))
    ground.rdkafka.report(0, offset=5)
    ground.hold(b"held", callback=callback)
    ground.held.hold_unrouted("other", ground.content(b"unrouted", callback=callback), -1)
    producer, library = closing_producer(ground)
    assert not producer.close(0)
    assert sorted(told, key=lambda t: t[1]) == [
        (KafkaError._PURGE_QUEUE, b"held"),
        (KafkaError._PURGE_INFLIGHT, b"pending"),
        (KafkaError._PURGE_QUEUE, b"unrouted"),
    ]
    assert library.certificates == {"orders/0": Certificate(2, {"0": 0}, (0, 1), "id")}


def test_a_record_that_librdkafka_reports_while_it_is_closed_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    ground.send(b"acknowledged late")
    producer, library = closing_producer(ground)

    def end_lease_then_report(timeout: float | None) -> None:
        with ground.state.lock:
            ground.state.end()
        ground.rdkafka.report(0, offset=5)

    monkeypatch.setattr(library, "stop", end_lease_then_report)
    producer.close(0)
    assert ground.told == [(KafkaError._PURGE_INFLIGHT, b"acknowledged late")]
    assert library.certificates == {"orders/0": Certificate(1, {"0": 0}, (0,), "id")}


def test_there_is_no_certificate_where_the_fate_of_a_number_is_not_known() -> None:
    """A certificate that names neither it nor a delivery would tell of a loss that is none."""
    ground = Ground()
    ground.send(b"no report comes")
    producer, library = closing_producer(ground)
    producer.close(0)
    assert library.certificates == {}


def registered(meanwhile: Callable[[], None]) -> tuple[Registration, list[bytes]]:
    """Return a registration and what it writes; ``meanwhile`` is called before a write arrives."""
    registration = Registration(
        Connection({"bootstrap.servers": "127.0.0.1:1"}), 7, "client", None, lambda: 5.0
    )
    written: list[bytes] = []

    class Writer:
        def write_all(self, topic: str, records: Any, deadline: Any) -> list[int]:
            meanwhile()
            written.extend(value for _, value in records)
            return [len(written)]

    registration._writer = Writer()  # type: ignore[assignment]
    return registration, written


def test_nothing_is_written_behind_the_certificate() -> None:
    """Neither a write that was under way, nor one that begins: each would open the registration again."""
    begun, go_on = threading.Event(), threading.Event()

    def meanwhile() -> None:
        begun.set()
        assert go_on.wait(30)

    registration, written = registered(meanwhile)
    library = threading.Thread(target=registration.add_topic, args=("orders", {}, Deadline(1)))
    library.start()
    assert begun.wait(30)
    close = threading.Thread(target=registration.certify, args=({}, Deadline(1)))
    close.start()
    close.join(0.05)
    go_on.set()
    library.join()
    close.join()
    with pytest.raises(KpsplitError, match="closed"):
        registration.answer_ready("orders/0", "attempt", (), Deadline(1))
    assert registration.record.closed and written[-1] == registration.record.encode()
    assert len(written) == 2


def test_a_producer_whose_library_is_in_a_write_leaves_its_registration_to_the_lease() -> None:
    ground = Ground()
    producer, library = closing_producer(ground)
    library.alive = True
    producer.close(0)
    assert library.certificates is None and ground.state.ended


def test_a_producer_with_more_failures_than_a_record_can_name_says_that_it_closed() -> None:
    """Each later operation would wait a lease for it otherwise; partitions with few keep theirs."""
    registration, written = registered(lambda: None)
    registration.add_topic("orders", {}, Deadline(1))
    few, many = Certificate(2, {"0": 1}, (1,)), Certificate(300_000, {"0": 0}, tuple(range(300_000)))
    registration.certify({"orders/0": many, "orders/1": few, "orders/2": many}, Deadline(1))
    assert registration.record.closed and registration.record.certificates == {"orders/1": few}
    assert written[-1] == registration.record.encode()


def test_what_a_last_callback_raises_comes_out_of_close_behind_everything_else() -> None:
    ground = Ground()
    ground.state.lapse()

    def raising(error: Any, message: Any) -> None:
        raise ZeroDivisionError

    ground.hold(b"a", callback=raising)
    ground.hold(b"b")
    producer, library = closing_producer(ground)
    with pytest.raises(ZeroDivisionError):
        producer.close(0)
    assert ground.told == [(KafkaError._PURGE_QUEUE, b"b")]
    assert library.certificates == {"orders/0": Certificate(2, {"0": 0}, (0, 1), "id")}
    assert producer.close()


@pytest.mark.parametrize("topic", ["orders", "plain", "other"])
def test_a_record_that_comes_while_the_producer_is_closed_is_refused(topic: str) -> None:
    ground = Ground()
    producer, _ = closing_producer(ground)
    produce = ground.producing(producer._held.produce, ground.callback)
    ground.state.fast_plain.add("plain")
    refused: list[Exception] = []

    def late(error: Any, message: Any) -> None:
        with pytest.raises(KpsplitError, match="closed") as caught:
            produce(topic, b"late", b"k")
        refused.append(caught.value)

    ground.state.lapse()
    ground.hold(b"held", callback=late)
    producer.close(0)
    assert len(refused) == 1 and not ground.rdkafka.given
    assert ground.state.unresolved() == 0


def test_reports_of_what_librdkafka_has_are_waited_for_with_the_lease_on() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 1500})
    state, told = producer._state, list[Any]()
    ground = Ground()
    state.routes.update(ground.state.routes)
    state.fast_routes.update(ground.state.fast_routes)
    state.renew(monotonic() + 1000)
    for _ in range(3):
        producer.produce("orders", b"v", b"k", on_delivery=lambda e, _: told.append((e.code(), state.ended)))
    assert not producer.close(0)
    assert told == [(KafkaError._MSG_TIMED_OUT, False)] * 3
    assert ground.fence.statistics.failed.numbers() == [0, 1, 2]


def test_the_exit_ends_a_producer_that_was_left_open_without_waiting_for_brokers() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    producer.produce("orders", b"v")
    deadline = Deadline(0.2)
    producer._leave(deadline)
    assert not producer._state.accepting and producer._state.ended
    producer._leave(deadline)
    with pytest.raises(KpsplitError, match="closed"):
        producer.produce("orders", b"v")


def test_the_exit_leaves_a_producer_alone_that_is_its_parents() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    producer.produce("orders", b"v")
    producer._state.forked = True
    producer._leave(Deadline(0.2))
    assert producer._state.accepting
    producer._state.forked = False
    producer._leave(Deadline(0.2))


def test_whatever_goes_wrong_at_the_exit_the_others_are_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    class Open:
        def __init__(self, name: str) -> None:
            self.name = name

        def _leave(self, deadline: Deadline) -> None:
            left.append(self.name)
            raise ZeroDivisionError

    both = [Open("a"), Open("b")]
    monkeypatch.setattr(client, "_producers", WeakSet(both))
    client._leave_all()
    assert sorted(left) == ["a", "b"]


def test_a_transactional_producer_registers_for_nothing_outside_a_transaction() -> None:
    with contextlib.closing(Producer({"bootstrap.servers": "127.0.0.1:9", "transactional.id": "t"})) as one:
        with pytest.raises(KafkaException) as refused:
            one.produce("orders", b"v", b"k")
        assert refused.value.args[0].code() == KafkaError._STATE
        assert one._background is None
