"""A signal handler or a finaliser may call the Producer in the middle of a call of the same thread.

If that call has the lock, waiting for it would be for ever. Such a call is refused instead. Nothing is
written down for that on the hot path: only a call that finds the lock taken looks whose frames are below it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from kpsplit.errors import KpsplitError
from kpsplit.producer.quick_lock import QuickLock

F = TypeVar("F", bound=Callable[..., Any])

_holders: set[CodeType] = set()


def holds_lock(function: F) -> F:
    """Mark a function that takes the lock and calls nothing of the application's."""
    _holders.add(function.__code__)
    return function


def refuse_reentry(lock: QuickLock, depth: int = 1) -> None:
    """Do nothing for a call that may wait for the lock; ``depth``: how many frames are its own.

    Raises:
        KpsplitError: this thread is inside the Producer already.
    """
    frame: FrameType | None = sys._getframe(1 + depth) if lock.taken() else None
    while frame is not None:
        if frame.f_code in _holders:
            raise KpsplitError(
                "a signal handler or finaliser called the Producer in the middle of another call; "
                "nothing was done",
                hint="let the handler set a flag or raise, and call the Producer behind it",
            )
        frame = frame.f_back
