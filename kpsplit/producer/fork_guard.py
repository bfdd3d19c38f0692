"""A child after fork() has no librdkafka threads: its sends would silently go nowhere. They fail instead."""

from __future__ import annotations

import os
import threading
import weakref

from kpsplit.errors import KpsplitError
from kpsplit.producer.dispatcher import Dispatcher

_live: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def guard(dispatcher: Dispatcher) -> None:
    """Make a dispatcher refuse everything in children of this process."""
    _live.add(dispatcher)


def _after_fork_in_child() -> None:
    for dispatcher in list(_live):
        dispatcher.lock.renew_after_fork()
        dispatcher.poll_lock.renew_after_fork()
        dispatcher.wake = threading.Event()
        dispatcher.clear_routes()
        dispatcher.unrouted.clear()
        dispatcher.tally.count = 0
        dispatcher.callbacks.clear()
        dispatcher.forked = True
        dispatcher.fatal = KpsplitError(
            "this Producer was made before fork() and cannot be used in the child",
            hint="make a new Producer in the child process",
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
