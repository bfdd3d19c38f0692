"""The compiled calls of the Producer: built of today's source, chosen by a variable, and free of leaks."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from kpsplit import Producer, compiled
from kpsplit.clock import monotonic
from kpsplit.errors import ConfigurationError
from kpsplit.producer import sending
from kpsplit.producer.polling import Polling
from kpsplit.producer.state import PASS_THROUGH, TopicRoute
from kpsplit.splitter.records.data import STAMP_HEADER
from tests.unit.test_producer_state import Ground

needs_compiled = pytest.mark.skipif(compiled.fast is None, reason="the compiled part is not in use")
UNREACHABLE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


PARTS = {compiled.FAST: compiled.fast, compiled.MESSAGES: compiled.messages}
SOURCES = {name: compiled.source_of(name) for name in PARTS}
BUILT = [name for name, source in SOURCES.items() if list(source.parent.glob(f"{source.stem}.*.so"))]


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.skipif(os.environ.get(compiled.VARIABLE) == "0", reason="the version in Python is wanted")
def test_what_is_built_is_used_because_it_is_of_todays_source(name: str, tmp_path: Path) -> None:
    assert PARTS[name] is not None, "run: make setup"
    source = SOURCES[name]
    changed = tmp_path / source.name
    changed.write_bytes(source.read_bytes() + b"/* newer */")
    assert compiled.load(name, "", changed) is None
    with pytest.raises(ConfigurationError, match=f"built of another {source.name}"):
        compiled.load(name, "1", changed)
    assert compiled.load(name, "1", tmp_path / "in a wheel") is PARTS[name]


@pytest.mark.parametrize("name", PARTS)
def test_the_variable_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.load(name, "0") is None
    with pytest.raises(ConfigurationError, match="must be 0 or 1"):
        compiled.load(name, "yes")
    monkeypatch.setitem(sys.modules, name, None)
    assert compiled.load(name, "") is None
    with pytest.raises(ConfigurationError, match="without its compiled part"):
        compiled.load(name, "1")


@needs_compiled
def test_the_compiled_calls_have_the_signature_and_the_name_of_those_in_python() -> None:
    producer = Producer(UNREACHABLE)
    assert type(producer.produce).__name__ == "Call"
    (_, *parameters) = inspect.signature(Producer.produce).parameters
    assert list(inspect.signature(producer.produce).parameters) == parameters
    for name in ("produce", "poll"):
        call = getattr(producer, name)
        assert (call.__name__, call.__wrapped__.__name__) == (name, name)
        with pytest.raises(AttributeError, match="unknown"):
            call.unknown  # noqa: B018 - it raises
    producer.close(0)


@needs_compiled
def test_a_producer_that_is_dropped_with_records_under_way_is_collected() -> None:
    """A report that held the Producer would keep it for ever: nobody polls it any more."""
    producer = Producer({**UNREACHABLE, "message.timeout.ms": 60_000})
    state = producer._state
    ground = Ground()
    route = ground.state.routes["orders"]
    assert isinstance(route, TopicRoute)
    state.add_route("orders", route)
    state.renew(ground.state.lease_until)
    state.routes["plain"] = PASS_THROUGH
    state.fast_plain.add("plain")
    for topic in ("plain", "orders"):
        producer.produce(topic, b"v", b"k", on_delivery=lambda *_: None)
    assert state.rdkafka.queued() >= 2 and producer._background is None
    gone = weakref.ref(producer)
    del producer, state
    gc.collect()
    assert gone() is None


@needs_compiled
def test_the_compiled_calls_read_the_clock_of_leases_or_what_stands_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground, general = Ground(), list[Any]()
    ground.state.fast_plain.add("plain")
    ground.rdkafka.room = 10**9
    produce = ground.producing(lambda *_: general.append(monotonic()))
    ground.state.lease_until = until = monotonic() + 0.05
    while not general and monotonic() < until + 10:
        produce("plain", b"v")
    assert ground.rdkafka.given, "it passed while the lease was good"
    assert general and general[0] >= until, "Python asks the same clock, a moment later"
    ground.state.lease_until = until + 1000
    monkeypatch.setattr(sending, "monotonic", lambda: until + 1001)
    produce("plain", b"v")
    assert len(general) == 2


@needs_compiled
def test_a_record_under_way_is_nothing_that_the_garbage_collector_looks_at() -> None:
    """Otherwise records alone would start it every few hundred calls."""
    ground = Ground()
    ground.state.fast_plain.add("plain")
    produce = ground.producing(ground.held.produce)
    for topic in ("orders", "plain"):
        produce(topic, b"v", b"k", on_delivery=ground.callback)
        assert not gc.is_tracked(ground.rdkafka.given[-1][4])


@needs_compiled
def test_a_thread_is_inside_the_compiled_call_while_librdkafka_is_called_and_no_longer() -> None:
    ground, seen = Ground(), list[bool]()

    def send(*arguments: Any) -> None:
        seen.append(compiled.inside())
        if arguments[1] == b"bad":
            raise BufferError

    ground.rdkafka.produce = send  # type: ignore[method-assign]
    ground.state.fast_plain.add("plain")
    produce = ground.producing(ground.held.produce)
    for topic in ("orders", "plain"):
        produce(topic, b"v", b"k")
        with pytest.raises(BufferError):
            produce(topic, b"bad", b"k")
        assert not compiled.inside()
    assert seen == [True] * 4


class Echo:
    """librdkafka, which reports a record when it is asked to, or refuses it, and keeps nothing."""

    refuses = False
    error: Any = None
    message: Any = None
    report: Any = None

    def produce(self, *arguments: Any) -> None:
        """Take a record."""
        if self.refuses:
            raise BufferError("full")
        self.report = arguments[4]

    def poll(self, _: float) -> int:
        """Report it."""
        report, self.report = self.report, None
        if report is not None:
            report(self.error, self.message)
        return 1


@needs_compiled
def test_records_with_one_callback_share_the_report_only_while_librdkafka_has_it() -> None:
    ground, echo = Ground(), Echo()
    ground.rdkafka.produce = echo.produce  # type: ignore[method-assign]
    ground.state.fast_plain.add("plain")
    produce = ground.producing(ground.held.produce)
    callback = list[Any]().append
    for _ in range(2):
        produce("plain", b"v", callback=callback)
        first = echo.report
        produce("plain", b"v", callback=callback)
        assert echo.report is first
        count = sys.getrefcount(first)
        assert count == 3
        del first
        echo.report = None  # what was here is freed


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize(
    "case", ["delivered", "moved", "failed", "raises", "refused", "plain", "plain raises", "odd"]
)
def test_nothing_stays_of_a_record(case: str) -> None:
    ground, echo = Ground(), Echo()
    ground.rdkafka.produce = echo.produce  # type: ignore[method-assign]
    ground.state.routes["plain"] = PASS_THROUGH
    ground.state.fast_plain.add("plain")
    produce = ground.producing(lambda *_: None)
    echo.error = KafkaError(KafkaError._MSG_TIMED_OUT) if case == "failed" else None
    echo.message = Message(
        topic="orders",
        partition=0,
        offset=2**40,
        key=b"k",
        value=b"v",
        timestamp=(1, 2**40),
        error=echo.error,
    )
    echo.refuses = case == "refused"
    (writer,) = ground.fence.writers
    writer.identity = case != "moved"
    topic = "plain" if case.startswith("plain") else "orders"
    polling = Polling(ground.state)
    poll = polling.at_once(echo.poll, lambda seconds: polling.serve(echo.poll, seconds))
    headers: dict[str, Any] = {"headers": [("h", b"v" * 1000)]} if case == "odd" else {}

    def record(number: int) -> weakref.ref[Callable[..., None]]:
        def callback(error: Any, message: Any) -> None:
            if case.endswith("raises"):
                raise LookupError

        key, value = f"key-{number}", bytes(1000)
        calls: list[Callable[[], Any]] = [
            lambda: produce(topic, value, key, on_delivery=callback, **headers),
            lambda: poll(0),
            ground.state.callbacks.run,
            lambda: produce(topic, value, key, unknown=callback),
        ]
        for call in calls:
            with suppress(LookupError, BufferError, TypeError):
                call()
        return weakref.ref(callback)

    shared: list[Any] = [None, True, False, topic, STAMP_HEADER, writer, writer.stamp_prefix, writer.topic]
    shared += [writer.segment, writer.parent, ground.fence, ground.fence.writers, ground.state, produce]
    shared += [ground.stamped.report, ground.plain.report, echo.message, echo.error, ground.state.fast_routes]

    gc.disable()  # a cycle per record would be a leak as well
    try:
        for number in range(50):
            assert record(number)() is None
        counts = list(map(sys.getrefcount, shared))
        tracemalloc.start()
        grown = []
        for _ in range(3):  # threads of other tests may allocate as well
            before = tracemalloc.get_traced_memory()[0]
            for number in range(150):
                record(number)
            grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
        gc.enable()
    changes = [now - then for now, then in zip(map(sys.getrefcount, shared), counts, strict=True)]
    assert max(map(abs, changes)) < 150, "of 450 records"
    assert min(grown) < 150 * 8, "less than the smallest object per record"
