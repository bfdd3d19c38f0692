"""Records are read in the thread that polls, while the engine's thread changes what is read."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kpsplit import Consumer
from kpsplit.consumer.engine import Engine
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.consumer.reading import Notice
from kpsplit.consumer.session import ConsumerSession
from kpsplit.errors import FutureVersionError, KpsplitError, UnreachableError
from tests.unit.engine_world import PARENT, Reader, World, poller_of, record

PATIENCE = 20.0
WAITS = 100


class WaitingReader(Reader):
    """Waits for a record as long as it may, like a client. ``failures`` are raised, ``inside`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        self.inside = threading.Event()
        self.threads: set[int] = set()

    def step(self, seconds: float, room: int) -> list[Batch]:
        self.threads.add(threading.get_ident())
        self.inside.set()
        end = time.monotonic() + seconds
        while self.owned and not self.due and not self.failures and time.monotonic() < end:
            time.sleep(0.001)
        if self.failures:
            raise self.failures.pop()
        return super().step(seconds, room)


def assigned(reader: Reader) -> Iterator[World]:
    """A member with two slots."""
    with World(reader) as one:
        one.subscribe()
        one.coordinator.give(0, 1)
        one.polls(lambda: len(one.reader.owned) == 2, "slots")
        yield one


@pytest.fixture
def world() -> Iterator[World]:
    yield from assigned(WaitingReader())


@pytest.fixture
def waiting(world: World) -> Iterator[list[bool]]:
    """Another thread waits for records for ever; what it got."""
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(world.buffer.wait(None)), daemon=True)
    thread.start()
    looks = world.buffer.looks
    world.until(lambda: world.buffer.looks > looks + 3, "the thread to wait")
    yield got
    world.buffer.ask_attention()
    thread.join(PATIENCE)
    assert got == [True]


def test_who_polls_reads(world: World) -> None:
    reader: Any = world.reader
    reader.threads.clear()
    reader.write(record(0), record(1))
    assert [m.offset() for m in world.take(2)] == [0, 1]
    assert reader.threads == {threading.get_ident()}


def test_the_engine_answers_while_an_application_waits_for_records(world: World, waiting: list[bool]) -> None:
    begun = time.monotonic()
    for _ in range(WAITS):
        world.engine.ask(lambda: None).result(PATIENCE)
    assert time.monotonic() - begun < WAITS * 0.1, "a wait for the lock is one look for records long"
    assert not waiting


def test_a_second_thread_polls_in_time_while_one_waits(world: World, waiting: list[bool]) -> None:
    begun = time.monotonic()
    for _ in range(WAITS):
        assert not world.buffer.wait(0)
    assert time.monotonic() - begun < WAITS * 0.1
    assert not waiting


def test_a_poll_does_not_wait_for_an_engine_that_is_at_work(world: World) -> None:
    for _ in range(8):
        polled = threading.Event()
        work = world.engine.ask(lambda polled=polled: polled.wait(1.0))  # type: ignore[misc]
        world.buffer.wait(0.05)
        polled.set()
        assert work.result(PATIENCE), "the poll ended only after the work"


def test_an_error_in_reading_is_told_to_error_cb_and_reading_goes_on(world: World) -> None:
    reader: Any = world.reader
    told: list[str] = []
    world.events.error_cb = lambda error: told.append(error.str())
    reader.failures.append(UnreachableError("the client is of no use"))
    world.polls(lambda: told, "the notice")
    assert "of no use" in told[0]
    reader.write(record(0))
    assert [m.offset() for m in world.take(1)] == [0]


def test_a_format_of_a_newer_version_met_in_reading_stops_everything(world: World) -> None:
    reader: Any = world.reader
    reader.failures.append(FutureVersionError("newer"))
    found = world.polls(lambda: world.engine.events.fatal is not None and not world.events, "the event")
    assert [m.error() is not None for m in found] == [True]


def test_a_signal_handler_that_polls_inside_poll_waits_for_nothing_and_takes_nothing_away(
    world: World,
) -> None:
    reader: Any = world.reader
    inside: list[bool] = []

    def handler(*_: object) -> None:
        inside.append(world.buffer.wait(0.05))
        inside.append(world.buffer.wait(0.05))

    before = signal.signal(signal.SIGALRM, handler)
    begun = time.monotonic()
    try:
        for number in range(20):
            signal.setitimer(signal.ITIMER_REAL, 0.015)
            assert not world.buffer.wait(0.03)
            reader.write(record(number))
            assert [m.offset() for m in world.take(1)] == [number]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert inside
    assert time.monotonic() - begun < PATIENCE


@contextmanager
def alarm(seconds: float, handler: Callable[..., object]) -> Iterator[None]:
    """Call a signal handler in this thread after so long."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Interrupted(WaitingReader):
    """Calls what a signal handler does in the middle of reading, once."""

    handler: Callable[[], object] | None = None

    def step(self, seconds: float, room: int) -> list[Batch]:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return super().step(seconds, room)


@pytest.fixture
def interrupted() -> Iterator[World]:
    yield from assigned(Interrupted())


def test_a_call_in_a_signal_handler_that_interrupts_reading_is_refused_at_once(interrupted: World) -> None:
    reader: Any = interrupted.reader
    refused: list[str] = []

    def handler() -> None:
        with pytest.raises(KpsplitError) as caught:
            interrupted.engine.ask(lambda: None)
        refused.append(caught.value.message)

    reader.handler = handler
    assert not interrupted.buffer.wait(0)
    assert refused == ["this call came inside poll(), from a signal handler; nothing was done"]
    assert interrupted.engine.ask(lambda: 1).result(PATIENCE) == 1


def test_a_consumer_that_a_signal_handler_closes_inside_poll_is_closed_when_poll_ends(
    interrupted: World,
) -> None:
    reader: Any = interrupted.reader
    reader.write(record(0), record(1))
    assert len(interrupted.take(2)) == 2
    poller = poller_of(interrupted)
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0})
    consumer._session = session = object.__new__(ConsumerSession)
    session.engine, session._events, session._buffer = (
        interrupted.engine,
        interrupted.events,
        interrupted.buffer,
    )
    consumer._poller, consumer._events, consumer._buffer = poller, interrupted.events, interrupted.buffer

    def handler() -> None:
        consumer.close()
        assert not poller.closed

    reader.handler = handler
    with pytest.raises(RuntimeError, match="Consumer closed"):
        poller.poll(PATIENCE)
    assert interrupted.engine.ended(0)
    assert [set(commit.values()) for commit in interrupted.group_offsets.commits] == [{2}]


def test_a_signal_handler_that_closes_inside_poll_and_ends_the_program_leaves_the_group_first(
    interrupted: World,
) -> None:
    reader: Any = interrupted.reader
    poller = poller_of(interrupted)

    def handler() -> None:
        poller.before_end = interrupted.close
        raise SystemExit

    reader.handler = handler
    with pytest.raises(SystemExit):
        poller.poll(PATIENCE)
    assert interrupted.engine.ended(0)


def test_what_a_signal_handler_raises_inside_poll_reaches_the_application(world: World) -> None:
    class StopRequestedError(Exception):
        pass

    def handler(*_: object) -> None:
        if not world.engine.reading.torn:  # between two reads nothing is torn, and nothing read anew
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            return
        raise StopRequestedError

    with alarm(0.05, handler), pytest.raises(StopRequestedError):
        world.buffer.wait(PATIENCE)
    world.until(lambda: world.count("read_anew"), "the new beginning")
    reader: Any = world.reader
    reader.write(record(0))
    assert [m.offset() for m in world.take(1)] == [0]


class HandOff:
    """A lock that is let go to the one that has waited longest, without being free in between.

    As ``threading.Lock`` is from CPython 3.13.1 on.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held, self._next, self._serves = False, 0, 0

    def acquire(self) -> bool:
        with self._changed:
            mine, self._next = self._next, self._next + 1
            self._changed.wait_for(lambda: self._serves == mine)
            self._held = True
            return True

    def release(self) -> None:
        with self._changed:
            self._serves += 1
            self._held = self._next > self._serves
            self._changed.notify_all()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_wait_lasts_as_long_as_asked_where_locks_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Engine.start

    def start_with_another_lock(engine: Any) -> None:
        engine._lock = HandOff()
        start(engine)

    monkeypatch.setattr(Engine, "start", start_with_another_lock)
    for world in assigned(WaitingReader()):
        for _ in range(3):
            begun = time.monotonic()
            assert not world.buffer.wait(0.3)
            assert time.monotonic() - begun >= 0.3


def test_an_interrupted_batch_before_a_gap_is_handed_out_before_what_follows_the_gap(world: World) -> None:
    reader: Any = world.reader
    reader.write(record(0), record(1))
    seen: list[bool] = []
    told = reader.start_over

    def start_over(cursors: Any) -> None:
        seen.append(bool(world.engine.reading.notices))
        told(cursors)

    reader.start_over = start_over
    reader.told = lambda *_: seen.append(False) or []

    def broken(_: Batch) -> None:
        world.engine.reading.notices.append(Notice(PARENT, None, None))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    world.slots.offer = broken  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.buffer.wait(PATIENCE)
    del world.slots.offer
    world.until(lambda: len(seen) >= 2, "the gap to be passed")
    assert seen[:2] == [True, False], "reading began anew before it went on after the gap"


def test_a_consumer_whose_engine_died_commits_what_was_processed_when_its_clients_close(world: World) -> None:
    reader: Any = world.reader
    reader.write(record(0), record(1), record(2))
    assert len(world.take(3)) == 3
    world.poll()
    coordinator: Any = world.coordinator
    leaves = coordinator.close

    def close() -> None:
        coordinator.unsubscribe()
        coordinator.poll(0)
        leaves()

    def ends() -> None:
        raise SystemExit

    coordinator.close = close
    world.engine._watch_application = ends  # type: ignore[method-assign]
    while not world.engine.ended(0.005):
        world.events.serve()
    assert [set(commit.values()) for commit in world.group_offsets.commits] == [{3}]


def test_a_thread_that_waits_for_records_hears_that_the_consumer_was_closed() -> None:
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0})
    raised: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    time.sleep(0.1)
    consumer.close()
    thread.join(PATIENCE)
    assert [str(error) for error in raised] == ["Consumer closed"]
