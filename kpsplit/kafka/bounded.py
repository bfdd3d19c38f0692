"""Calls of librdkafka that may never return, whatever timeout they were given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class AbandonedError(Exception):
    """The call has not returned; its thread goes on, and what it was given must not be used any more."""


def bounded(call: Callable[[], T], seconds: float, name: str) -> T:
    """Run a call in a thread of its own and wait that long for it; it is told apart by ``name``.

    librdkafka (2.16) loses requests of a transaction when it forgets a broker that cannot be reached, and
    waits for their answers for ever.

    Raises:
        AbandonedError: it has not returned.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits hears of it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise
        raise AbandonedError from None
