"""The steps of a Producer's end, and what is done at the interpreter's exit for those that were left open.

At the exit a Producer that was left open says that it closed, so that no operator waits for it. That is all:
it sends nothing, reports nothing and runs no callback, as a plain producer that is dropped. So call ``flush``
or ``close``. The handler is registered when kpsplit is imported, so it runs behind those that the application
registers later. Children of ``fork`` do nothing: the Producer is their parent's.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from kpsplit.kafka.clock import Deadline
from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.reentry import holds_lock


@holds_lock
def locked(dispatcher: Dispatcher, step: Callable[[], None]) -> None:
    """Take one step of the end under the lock."""
    with dispatcher.lock:
        step()


def noting(raised: list[Exception], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what may run callbacks; what they raise is kept until everything is done."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - it goes back to the application at the end
        raised.append(error)
        return None


EXIT_SECONDS = 3.0
"""How long the exit may wait for the brokers, for all Producers together."""


class LeftOpen(Protocol):
    """A Producer as its end at the exit needs it."""

    def _leave(self, deadline: Deadline) -> None:
        """Say that it closed, if it ever registered."""
        ...


_left_open: weakref.WeakSet[LeftOpen] = weakref.WeakSet()


def close_at_exit(producer: LeftOpen) -> None:
    """Have a Producer say at the exit that it closed, unless it is closed or dropped before."""
    _left_open.add(producer)


def _leave_all() -> None:
    deadline = Deadline(EXIT_SECONDS)
    for producer in list(_left_open):
        with suppress(Exception):  # nothing may keep the process from its end
            producer._leave(deadline)


atexit.register(_leave_all)
