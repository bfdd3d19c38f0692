"""poll() and flush() from several threads, from signal handlers, and in the common case of poll(0)."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import Empty
from types import FrameType
from typing import Any

import pytest

from kpsplit.errors import KpsplitError
from kpsplit.producer import polling as polling_module
from kpsplit.producer.locks import QuickLock
from kpsplit.producer.polling import Polling
from tests.unit.interrupts import time_limit
from tests.unit.test_producer_state import Ground

pytestmark = pytest.mark.usefixtures("both_paths")


def test_a_thread_that_waits_gets_its_turn_although_the_lock_was_free_when_it_came() -> None:
    """Threads that poll again at once let it pass, or it waited for longer than its time."""
    ground, over, taken = Ground(), threading.Event(), threading.Event()
    entered, let_pass = list[float](), list[float]()

    def poll_all_the_time() -> None:
        while not over.is_set():
            poll(0)

    def looks_who_waits(timeout: float) -> int:
        let_pass.append(timeout)
        return polling.serve(takes_a_while, timeout)

    def takes_a_while(_: float) -> int:
        taken.set()
        return int(over.wait(0.001))

    class Overtaken(QuickLock):
        """Another thread takes it right before one that is about to wait."""

        def within(self, seconds: float) -> AbstractContextManager[None]:  # type: ignore[override]
            if seconds and not thread.ident:
                thread.start()
                taken.wait(10)
            return super().within(seconds)

    ground.state.poll_lock = Overtaken()
    polling = Polling(ground.state)
    poll = polling.at_once(takes_a_while, looks_who_waits)
    thread = threading.Thread(target=poll_all_the_time, daemon=True)
    try:
        with time_limit(20):
            polling.serve(lambda seconds: entered.append(seconds) or 0, 5)  # type: ignore[func-returns-value]
    finally:
        over.set()
        thread.join(10)
    assert entered == [5]
    assert let_pass, "it never looked whether a thread waits"


@pytest.mark.parametrize("way", ["at once", "general"])
def test_a_handler_that_polls_is_refused_wherever_it_comes_while_its_thread_has_the_lock(way: str) -> None:
    """It waited for the lock of its own thread where it came between the lock and its mark."""
    ground = Ground()
    polling, told, left = Polling(ground.state), list[str](), 0

    def poll(_: float) -> int:
        return 0

    def handler(number: int, frame: Any) -> None:
        if ground.state.poll_lock.taken():
            try:
                polling.serve(poll, 0)
                told.append("not refused")
            except KpsplitError as error:
                told.append(str(error))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        """Have a signal arrive before one operation of the call, when ``left`` has been counted down."""
        nonlocal left
        if frame.f_code.co_filename != polling_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                _thread.interrupt_main(signal.SIGUSR1)
        return trace

    general = partial(polling.serve, poll)
    call = polling.at_once(poll, general) if way == "at once" else general
    call = getattr(call, "__wrapped__", call)  # no handler comes between the steps of the compiled one
    before, tracing = signal.signal(signal.SIGUSR1, handler), sys.gettrace()
    try:
        number = 0
        while left <= 0:  # until there is no operation of that number
            left = number = number + 1
            sys.settrace(trace)
            try:
                call(0)
            finally:
                sys.settrace(tracing)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(told) > 5 and all("in the middle" in what for what in told)


class PollsAtOnce:
    """poll() of a Producer; ``poll``: librdkafka's, ``happened``: what its calls and callbacks note."""

    def __init__(self, poll: Callable[[float], int] | None = None) -> None:
        self.ground, self.happened = Ground(), list[str]()
        self.polling = Polling(self.ground.state)
        call = poll or self._librdkafkas
        self.poll = self.polling.at_once(call, partial(self.polling.serve, call))

    def _librdkafkas(self, _: float) -> int:
        self.happened.append("librdkafka")
        return 1

    def queue(self, raises: Exception | None = None) -> None:
        def callback() -> None:
            self.happened.append("queued")
            if raises is not None:
                raise raises

        self.ground.state.callbacks.put(callback)

    def at_rest(self) -> bool:
        return not (self.polling._inside or self.polling._waiting or self.ground.state.poll_lock.taken())


def test_callbacks_that_wait_run_before_those_of_librdkafka() -> None:
    scene = PollsAtOnce()
    scene.queue()
    assert scene.poll(0) == 2
    assert scene.happened == ["queued", "librdkafka"] and scene.at_rest()


def test_callbacks_that_librdkafkas_reports_bring_run_in_the_same_poll() -> None:
    def poll(_: float) -> int:
        scene.queue()
        return 3

    scene = PollsAtOnce(poll)
    assert (scene.poll(0), scene.happened, scene.at_rest()) == (4, ["queued"], True)


@pytest.mark.parametrize("where", ["librdkafka", "a callback that waits", "a callback that it brings"])
def test_what_a_callback_raises_comes_out_of_poll_although_a_lock_that_is_taken_raises_the_same(
    where: str,
) -> None:
    def poll(_: float) -> int:
        scene.happened.append("librdkafka")
        if where == "librdkafka":
            raise Empty("a callback's")
        scene.queue(Empty("a callback's"))
        return 1

    scene = PollsAtOnce(poll)
    if where == "a callback that waits":
        scene.queue(Empty("a callback's"))
    with pytest.raises(Empty, match="a callback's"):
        scene.poll(0)
    assert len(scene.happened) == len(set(scene.happened)) and scene.at_rest()


@pytest.mark.parametrize("queued", [False, True])
def test_polling_at_once_inside_a_callback_is_refused(queued: bool) -> None:
    """Also once more: the refused call leaves the mark of the one that it is inside of."""
    refused: list[KpsplitError] = []

    def callback() -> None:
        for _ in range(2):
            with pytest.raises(KpsplitError, match="inside a callback") as caught:
                scene.poll(0)
            refused.append(caught.value)

    def poll(_: float) -> int:
        if not queued:
            callback()
        return 1

    scene = PollsAtOnce(poll)
    if queued:
        scene.ground.state.callbacks.put(callback)
    scene.poll(0)
    assert len(refused) == 2 and scene.at_rest()


def test_while_another_thread_polls_a_poll_that_does_not_wait_returns_at_once() -> None:
    scene, taken, over = PollsAtOnce(), threading.Event(), threading.Event()

    def other() -> None:
        with scene.ground.state.poll_lock:
            taken.set()
            over.wait(10)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    taken.wait(10)
    with time_limit(10):
        assert (scene.poll(0), scene.happened) == (0, [])
    over.set()
    thread.join(10)
    assert (scene.poll(0), scene.happened, scene.at_rest()) == (1, ["librdkafka"], True)


def test_a_poll_that_may_wait_does_so_in_the_general_way() -> None:
    scene, seconds = PollsAtOnce(), list[float]()
    poll = scene.polling.at_once(lambda _: 1, lambda timeout=-1: seconds.append(timeout) or 2)  # type: ignore[func-returns-value]
    assert [poll(0.5), poll(), poll(timeout=3), poll(0), poll(0.0)] == [2, 2, 2, 1, 1]
    assert seconds == [0.5, -1, 3]


def test_in_a_child_process_a_poll_is_refused() -> None:
    """librdkafka has no threads there."""
    scene = PollsAtOnce()
    scene.ground.state.forked, scene.ground.state.fatal = True, KpsplitError("a child process")
    with pytest.raises(KpsplitError, match="a child process"):
        scene.poll(0)
    assert scene.happened == []
