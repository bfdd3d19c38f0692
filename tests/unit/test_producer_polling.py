"""poll() and flush() from several threads, from signal handlers, and in the common case of poll(0)."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from kpsplit.errors import KpsplitError
from kpsplit.producer import polling as polling_module
from kpsplit.producer.locks import QuickLock
from kpsplit.producer.polling import Polling
from tests.unit.interrupts import time_limit
from tests.unit.test_producer_state import Ground


def test_a_thread_that_waits_gets_its_turn_although_the_lock_was_free_when_it_came() -> None:
    """Threads that poll again at once let it pass, or it waited for longer than its time."""
    ground, over, taken, entered = Ground(), threading.Event(), threading.Event(), list[float]()

    def poll_all_the_time() -> None:
        while not over.is_set():
            poll(0)

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
    poll = polling.at_once(takes_a_while, lambda timeout: polling.serve(takes_a_while, timeout))
    thread = threading.Thread(target=poll_all_the_time, daemon=True)
    try:
        with time_limit(20):
            polling.serve(lambda seconds: entered.append(seconds) or 0, 5)  # type: ignore[func-returns-value]
    finally:
        over.set()
        thread.join(10)
    assert entered == [5]


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
