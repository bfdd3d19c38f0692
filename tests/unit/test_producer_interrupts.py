"""A signal handler may raise anywhere in produce(), a thread may fork: the producer's books stay right."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.producer.client import Producer
from kpsplit.producer.polling import Polling, Transactions
from kpsplit.producer.state import PASS_THROUGH, layout_stats
from kpsplit.splitter.records.data import STAMP_HEADER
from kpsplit.splitter.records.producers import Certificate
from tests.unit.interrupts import Interrupted, interrupted_while_waiting, raising_signals, time_limit
from tests.unit.samples import fenced, operated
from tests.unit.test_producer_state import SPLIT, UNSPLIT, Ground

pytestmark = pytest.mark.usefixtures("both_paths")


def producing(ground: Ground, start: Callable[[], None] = lambda: None) -> Callable[..., None]:
    ground.held._start = start
    return ground.producing(ground.held.produce, ground.callback)


def whole_producer(ground: Ground) -> Producer:
    """Return a Producer whose books are those of the ground."""
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    producer._state, producer._held = ground.state, ground.held
    producer._polling = polling = Polling(ground.state)
    poll = partial(confluent_kafka.Producer.poll, producer)
    producer.__dict__["poll"] = polling.at_once(poll, partial(Producer.poll, producer))
    return producer


def interrupted_behind_librdkafka(ground: Ground, interrupt: Callable[[], None]) -> None:
    """Let a signal arrive while librdkafka's produce() has taken a record."""

    class Given(list[Any]):
        def append(self, arguments: Any) -> None:
            super().append(arguments)
            if arguments[1] == b"interrupted":
                interrupt()

    ground.rdkafka.given = Given()


RAISED = [Interrupted, RuntimeError, ValueError, TypeError, BufferError, Empty]
"""What a handler raises; librdkafka's produce() raises some of them as well, and the lock the last one."""


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("headers", [None, {"h": b"1"}])
@pytest.mark.parametrize("raised", RAISED)
def test_a_record_that_librdkafka_has_counts_although_produce_was_interrupted(
    key: Any, headers: Any, raised: type[Exception]
) -> None:
    """Otherwise the next record had the same number, and a fence was acknowledged with one in flight."""
    ground = Ground()
    produce = producing(ground)
    with raising_signals(raised) as interrupt:
        interrupted_behind_librdkafka(ground, interrupt)
        with pytest.raises(raised):
            produce("orders", b"interrupted", key, headers=headers)
    produce("orders", b"next", key)
    assert ground.rdkafka.values == [b"interrupted", b"next"]
    assert (ground.fence.writers[0].in_flight, ground.fence.next_sequence) == (2, 2)


def test_what_a_handler_raises_out_of_a_topic_that_is_not_enrolled_is_no_lock_that_is_taken() -> None:
    """Otherwise the record went a second time, and nobody heard of what the handler raised."""
    ground = Ground()
    produce = producing(ground)
    ground.state.routes["plain"] = PASS_THROUGH
    produce("plain", b"first", b"k")
    with raising_signals(Empty) as interrupt:
        interrupted_behind_librdkafka(ground, interrupt)
        with pytest.raises(Empty):
            produce("plain", b"interrupted", b"k")
    produce("plain", b"next", b"k")
    assert ground.rdkafka.values == [b"interrupted", b"next"]


@pytest.mark.parametrize("key", [b"k", None])
def test_a_record_that_librdkafka_refuses_counts_for_nothing(key: Any) -> None:
    ground = Ground()
    produce = producing(ground)
    ground.rdkafka.room = 0
    with pytest.raises(BufferError):
        produce("orders", b"refused", key)
    ground.rdkafka.room = 1
    produce("orders", b"next", key)
    assert (ground.fence.writers[0].in_flight, ground.fence.next_sequence) == (1, 1)


@pytest.mark.parametrize("topic", ["orders", "plain"])
def test_what_is_counted_is_what_librdkafka_has_whenever_a_handler_raises(topic: str) -> None:
    config = {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "linger.ms": 60_000, "log_level": 0}
    real = confluent_kafka.Producer({**config, "queue.buffering.max.messages": 10_000_000})
    ground, calls, interrupts, reports = Ground(), 0, 0, 0
    ground.rdkafka.produce = real.produce  # type: ignore[method-assign]
    ground.state.routes["plain"] = PASS_THROUGH
    ground.state.fast_plain.add("plain")

    def report(error: Any, message: Any) -> None:
        nonlocal reports
        reports += 1

    produce = ground.producing(ground.held.produce, report)

    def enough() -> bool:  # a timer may be as coarse as the kernel's clock
        return calls >= 20_000 and interrupts > 10

    def handler(number: int, frame: object) -> None:
        if not enough():  # the last timer may run out after all calls
            raise Interrupted

    def send_until_interrupted() -> None:
        nonlocal calls
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while not enough():
            calls += 1
            produce(topic, b"v", b"k")
        signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # finalizers lose what a handler raises in them
    try:
        while not enough():
            try:
                send_until_interrupted()
            except (Interrupted, KpsplitError):
                interrupts += 1
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    real.purge()
    real.flush(60)
    ground.state.callbacks.run()
    writer = ground.fence.writers[0]
    assert calls - interrupts <= reports <= calls
    assert ground.fence.next_sequence == writer.sent == writer.done == (reports if topic == "orders" else 0)


def test_a_handler_of_any_kind_is_told_from_librdkafka() -> None:
    class Handlers:
        def method(self, number: int, frame: object) -> None:
            raise ValueError

        def __call__(self, number: int, frame: object) -> None:
            raise ValueError

    def function(what: str, number: int, frame: object) -> None:
        raise ValueError

    for handler in (Handlers().method, Handlers(), partial(function, "w"), partial(Handlers().method)):
        ground = Ground()
        produce = producing(ground)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            interrupted_behind_librdkafka(ground, lambda: _thread.interrupt_main(signal.SIGUSR1))
            with pytest.raises(ValueError):
                produce("orders", b"interrupted", b"k")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert (ground.fence.writers[0].in_flight, ground.fence.next_sequence) == (1, 1)


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize(
    ("headers", "handlers", "raised"),
    [
        (None, "only Ctrl-C", KeyboardInterrupt),
        (None, "another one", KpsplitError),
        ({"h": b"1"}, "only Ctrl-C", TypeError),
    ],
)
def test_what_a_handler_raised_and_librdkafka_took_for_a_bad_header_comes_out_of_produce(
    key: Any, headers: Any, handlers: str, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {signal.SIGINT: signal.default_int_handler}
    if handlers == "another one":
        installed[signal.SIGALRM] = lambda number, frame: None
    monkeypatch.setattr(signal, "getsignal", lambda number: installed.get(number, signal.SIG_DFL))
    ground = Ground()
    produce = producing(ground)
    ground.rdkafka.refuse = TypeError("expected header key to be unicode string")
    with pytest.raises(raised):
        produce("orders", b"bad", key, headers=headers)
    produce("orders", b"next", key)
    assert (ground.fence.writers[0].in_flight, ground.fence.next_sequence) == (1, 1)


def test_a_signal_that_arrives_together_with_the_lock_does_not_stop_the_producer() -> None:
    ground = Ground()
    produce = producing(ground)
    with raising_signals() as interrupt, pytest.raises(Interrupted):
        with interrupted_while_waiting(ground.state.lock, interrupt):
            produce("orders", b"a", b"k")
    produce("orders", b"b", b"k")
    assert ground.rdkafka.values == [b"b"]


@pytest.mark.parametrize("raised", RAISED)
def test_a_counted_record_that_librdkafka_has_counts_although_produce_was_interrupted(
    raised: type[Exception],
) -> None:
    ground = Ground()
    produce = producing(ground)
    ground.state.routes["plain"] = PASS_THROUGH
    ground.plain.count()
    with raising_signals(raised) as interrupt:
        interrupted_behind_librdkafka(ground, interrupt)
        with pytest.raises(raised):
            produce("plain", b"interrupted")
    ground.queued = 1
    assert ground.plain.settled(), "what is inside came behind the count"


def test_a_record_is_not_held_when_the_librarys_thread_cannot_be_started() -> None:
    """The application is told that it failed, and may produce it again."""
    ground = Ground()

    def start() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError):
        producing(ground, start)("other", b"v")
    assert ground.state.tally.count == 0


@pytest.mark.parametrize("topic", ["orders", "not looked up yet"])
def test_a_record_that_waits_keeps_the_headers_that_it_was_produced_with(topic: str) -> None:
    ground = Ground()
    produce = producing(ground)
    ground.observe(fenced(UNSPLIT, SPLIT))
    for headers in ({"n": b"1"}, [("n", b"1")]):
        produce(topic, b"v", b"k", headers=headers)
        headers.clear()
    queues = [*ground.fence.backlog.queues.values(), *ground.state.unrouted.values()]
    contents = [getattr(item, "payload", None) or item.content for queue in queues for item in queue]
    assert [content.headers for content in contents] == [[("n", b"1")]] * 2


@pytest.mark.parametrize("key", [b"k", None])
def test_a_handler_that_calls_the_producer_in_the_middle_of_a_call_is_refused(
    key: Any,
) -> None:
    ground = Ground()
    produce = producing(ground)
    polling = Polling(ground.state)
    told: list[str] = []
    producer = whole_producer(ground)
    poll = polling.at_once(lambda _: 0, lambda seconds: polling.serve(lambda _: 0, seconds))
    calls: list[Callable[[], Any]] = [
        lambda: produce("orders", b"inner", key),
        lambda: poll(0),
        lambda: layout_stats(ground.state),
        polling.check_entry,
        polling.check_free,
        lambda: producer.poll(0),
        lambda: producer.poll(1),
        lambda: producer.flush(1),
        producer.close,
        producer.abandon,
    ]

    class Given(list[Any]):
        def append(self, arguments: Any) -> None:
            for call in calls:
                with pytest.raises(KpsplitError, match="in the middle") as caught:
                    call()
                told.append(str(caught.value))
            super().append(arguments)

    ground.rdkafka.given = Given()
    with time_limit(20):
        produce("orders", b"outer", key)
    assert len(told) == len(calls) and ground.rdkafka.values == [b"outer"]
    polling.check_entry()
    assert producer._state.accepting
    producer.abandon()


@pytest.mark.parametrize("key", [b"k", None])
def test_a_handler_is_refused_as_well_while_the_librarys_thread_waits_for_the_lock(key: Any) -> None:
    """It lets that thread pass, which waits for what is below the handler: neither would go on."""
    ground = Ground()
    produce, lock = producing(ground), ground.state.lock
    refused: list[str] = []

    def library() -> None:
        with lock.first:
            pass

    thread = threading.Thread(target=library, daemon=True)

    class Given(list[Any]):
        def append(self, arguments: Any) -> None:
            thread.start()
            while not lock.wanted:
                thread.join(0.001)
            with pytest.raises(KpsplitError, match="in the middle") as caught:
                produce("orders", b"inner", key)
            refused.append(str(caught.value))
            super().append(arguments)

    ground.rdkafka.given = Given()
    with time_limit(10):
        produce("orders", b"outer", key)
    thread.join(10)
    assert refused and ground.rdkafka.values == [b"outer"] and not thread.is_alive()


@pytest.mark.parametrize("topic", ["orders", "plain"])
def test_a_record_lets_the_librarys_thread_pass_that_wants_the_lock(topic: str) -> None:
    """It comes to the lock only after it has been scheduled: an application in a loop would keep it away."""
    ground = Ground()
    ground.state.routes["plain"] = PASS_THROUGH
    ground.state.fast_plain.add("plain")
    produce, lock = producing(ground), ground.state.lock
    thread = threading.Thread(target=produce, args=(topic, b"v", b"k"), daemon=True)
    with lock._turnstile:
        lock.wanted.append(None)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and ground.rdkafka.values == []
        lock.wanted.clear()
    thread.join(10)
    assert ground.rdkafka.values == [b"v"]


def test_a_thread_that_finds_the_lock_taken_by_another_waits_for_it() -> None:
    """The calls that look for re-entry must not take their own frames for it."""
    ground = Ground()
    produce, polling, failed = producing(ground), Polling(ground.state), list[Exception]()
    transactions = Transactions(ground.state, polling, ground.held, lambda _: 0)
    calls: list[Callable[[], Any]] = [
        lambda: produce("orders", b"v", b"k"),
        lambda: produce("orders", b"v", None),
        lambda: layout_stats(ground.state),
        transactions.begun,
        lambda: transactions.before_commit(Deadline(10)),
        transactions.before_abort,
        transactions.ended,
    ]

    def call_it(call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - asserted below
            failed.append(error)

    threads = [threading.Thread(target=call_it, args=(call,)) for call in calls]
    with ground.state.lock:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(ground.rdkafka.given) == 2
    assert not failed


@pytest.mark.parametrize("kind", [dict, list])
def test_a_stray_is_sent_again_with_the_headers_that_it_was_produced_with(kind: Any) -> None:
    ground = Ground()
    headers = kind([("n", b"1")])
    producing(ground)("orders", b"v", b"k", headers=headers)
    headers.clear()
    ground.observe(operated(UNSPLIT, SPLIT, {0: 0}))
    ground.rdkafka.report(0, offset=5)
    assert ground.held.release() == 1
    assert [name for name, _ in ground.rdkafka.given[1][7]] == ["n", STAMP_HEADER]


def test_a_report_that_was_cut_short_keeps_no_fence_waiting() -> None:
    ground = Ground()
    ground.send(b"cut short")
    ground.observe(fenced(UNSPLIT, SPLIT))
    ground.queued = 1
    ground.state.forget_unreported()
    assert not ground.fence.quiescent(), "librdkafka may have it still"
    ground.queued = 0
    ground.state.forget_unreported()
    assert ground.fence.quiescent()
    ground.observe(operated(UNSPLIT, SPLIT, {0: 5}))
    assert not any(ground.fence.delivered().values()) and all(w.open for w in ground.fence.writers)


def test_a_record_that_goes_astray_behind_the_end_of_everything_fails() -> None:
    ground = Ground()
    ground.send(b"a")
    ground.observe(operated(UNSPLIT, SPLIT, {0: 0}))
    ground.held.fail_closed(KpsplitError("too new"))
    ground.rdkafka.report(0, offset=5)
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError._PURGE_INFLIGHT, b"a")]
    assert ground.state.unresolved() == 0


def test_a_report_behind_close_is_not_final_for_nobody_waits_for_a_closed_producer() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    ground = Ground()
    state = producer._state
    state.routes.update(ground.state.routes)
    state.renew(monotonic() + 1000)
    good_at_the_end: list[float] = []

    class Library:
        def stop(self, timeout: float) -> None: ...
        def certify(self, certificates: dict[str, Certificate], deadline: Deadline) -> None:
            state.renew(monotonic() + 1000)  # as a thread does that was not quick enough
            good_at_the_end.append(ground.fence.writers[0].lease.until)

    library = SimpleNamespace(stop=Library().stop, registration=Library(), is_alive=lambda: False)
    producer._background = library  # type: ignore[assignment]
    producer.close(0)
    assert good_at_the_end == [0.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_is_refused_although_the_lock_was_taken_when_it_began() -> None:
    ground = Ground()
    produce = producing(ground)
    parents = whole_producer(ground)
    taken, over = threading.Event(), threading.Event()

    def library() -> None:
        with ground.state.lock, ground.state.poll_lock:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=library, daemon=True)
    thread.start()
    taken.wait(10)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        signal.alarm(20)
        refused = 0
        for topic in ("orders", "other"):
            try:
                produce(topic, b"v", b"k")
            except KpsplitError:
                refused += 1
        os._exit(refused if parents._state.forked else 0)
    over.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    thread.join(10)
