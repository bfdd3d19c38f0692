"""A thread for what has to wait for brokers, so that the engine never does: one job after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kpsplit.errors import KpsplitError

T = TypeVar("T")


class Errands:
    """Runs jobs in their order, in a thread that exists from the first job to ``close``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Give a job; the future has what it returns or raises.

        Raises:
            KpsplitError: closed.
        """
        if self._closed:
            raise KpsplitError("the consumer is closed", hint="make a new one")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._jobs.put(lambda: _settle(future, job))
        return future

    def close(self, seconds: float) -> None:
        """Run what was given, then end the thread; waits for it so long."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(seconds)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001 - whoever asked hears of it, and the thread goes on
        future.set_exception(error)
