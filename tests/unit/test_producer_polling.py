"""poll() and flush() from several threads, from signal handlers, and in the common case of poll(0)."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

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
