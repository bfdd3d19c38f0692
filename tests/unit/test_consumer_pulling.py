"""Records are read in the thread that polls, while the engine's thread changes what is read."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kpsplit.consumer.fetch.batch import Batch
from kpsplit.errors import FutureVersionError, UnreachableError
from tests.unit.engine_world import Reader, World, record

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
        while self.owned and not self._due and not self.failures and time.monotonic() < end:
            time.sleep(0.001)
        if self.failures:
            raise self.failures.pop()
        return super().step(seconds, room)


@pytest.fixture
def world() -> Iterator[World]:
    with World(WaitingReader()) as one:
        one.subscribe()
        one.coordinator.give(0, 1)
        one.polls(lambda: len(one.reader.owned) == 2, "slots")
        yield one


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
    found = world.polls(lambda: world.engine.fatal is not None and not world.events, "the event")
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
