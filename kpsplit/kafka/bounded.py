"""Calls of librdkafka that may never return, whatever timeout they were given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

LAST_SECONDS = 5.0
"""How long a call may take to end when whoever waited for it was interrupted."""

T = TypeVar("T")


class AbandonedError(Exception):
    """The call has not returned; its thread goes on, and what it was given must not be used any more."""


def bounded(call: Callable[[], T], seconds: float, name: str, give_up: Callable[[], None]) -> T:
    """Run a call in a thread of its own, called ``name``, and wait that long for it.

    ``give_up`` tells the call that nobody waits for it any more; from then on it should change nothing.
    librdkafka (2.16) loses requests of a transaction when it forgets a broker that cannot be reached, and
    ``send_offsets_to_transaction`` waits for their answers for ever.

    Raises:
        AbandonedError: it has not returned.
    """
    future: Future[T] = Future()
    try:
        threading.Thread(target=_settle, args=(future, call), name=name, daemon=True).start()
    except RuntimeError:  # the interpreter ends: newer Pythons start no threads then
        return call()
    try:
        wait([future], seconds)
        if not future.done():
            give_up()
            raise AbandonedError
        return future.result()
    except KeyboardInterrupt:
        give_up()
        wait([future], LAST_SECONDS)
        raise
    finally:
        del future  # an exception in it holds this frame, and all that the call used


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever waits hears of it
        future.set_exception(error)
    finally:
        del future, call
