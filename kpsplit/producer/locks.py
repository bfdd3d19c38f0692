"""The lock of the fast path, and how a call that would wait for its own thread's lock is refused.

``QuickLock`` is cheap, free again whatever is raised, and the library's thread does not starve. One token
lies in a ``queue.SimpleQueue``; the thread that has it holds the lock. That a queue hands an item to one
thread only is what it is there for, with a global interpreter lock and without.

``with`` calls the queue's own get() and put(), because the slots of an instance are what the class says
``__enter__`` and ``__exit__`` are. That is cheaper than any method (70 ns for both here, where a
``threading.Lock`` costs 200), and the interpreter runs no signal handler between such a call and the block: a
Ctrl-C cannot take the token along. An ``acquire()`` before a ``try``, or methods written in Python, can lose
it. (put() gets the three arguments of ``__exit__``; it documents that it ignores all but the first, and any
object will do as the token.)

A thread that gives the token back and takes it again at once would keep it from one that waits and has to be
scheduled first. So the library's thread comes by ``first``: while it is ``wanted``, the application's threads
let it pass. To read ``wanted`` too early or too late costs time, never the exclusion.

A signal handler or a finaliser may call the Producer in the middle of a call of the same thread. If that call
has the lock, waiting for it would be for ever: ``refuse_reentry`` refuses such a call instead. Nothing is
written down for that on the fast path: only a call that finds the lock taken looks whose frames are below it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from kpsplit import compiled
from kpsplit.errors import KpsplitError

Busy = Empty
"""What a lock that was not free in time raises."""


def is_locks_own(error: Busy) -> bool:
    """Return whether the lock raised it, and so was not taken. Call it in the frame of the ``with``.

    ``queue.Empty`` may as well come from a signal handler inside the block. That leaves its frame in the
    traceback, and the lock's C code leaves none.
    """
    return error.__traceback__ is None or error.__traceback__.tb_next is None


class _Taken:
    __slots__ = ("__enter__", "__exit__")

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def __init__(self, enter: Callable[[], Any], leave: Callable[..., None]) -> None:
        self.__enter__ = enter  # type: ignore[method-assign]
        self.__exit__ = leave  # type: ignore[method-assign]


class QuickLock(_Taken):
    """See the module. Not reentrant.

    ``first``: the lock for a thread that gets no signals, before others. ``at_once`` raises ``Busy`` if it is
    not free. ``taken()`` returns whether a thread has it.
    """

    __slots__ = ("_token", "_turnstile", "at_once", "first", "taken", "wanted")

    def __init__(self) -> None:
        self._token: SimpleQueue[Any] = SimpleQueue()
        self._token.put(None)
        super().__init__(self._token.get, self._token.put)
        self.at_once = _Taken(self._token.get_nowait, self._token.put)
        self.taken = self._token.empty
        self._turnstile = threading.Lock()
        self.wanted: list[None] = []
        self.first = _First(self)

    def within(self, seconds: float) -> _Taken:
        """Return what takes the lock by ``with``, and raises ``Busy`` there if it is not free in time.

        The time is no limit in CPython 3.11 where threads take the lock again and again: if one takes the
        token that has woken this thread, and the time is over then, the queue waits on until it gets a token.
        So those threads must let one that waits pass.
        """
        return _Taken(partial(self._token.get, True, seconds), self._token.put)

    def let_pass(self) -> None:
        """Wait until the thread that wants the lock has had it."""
        with self._turnstile:
            pass

    def renew_after_fork(self) -> None:
        """Be free in a child process, whichever thread had it in the parent. The object stays."""
        if self._token.empty():
            self._token.put(None)
        self._turnstile = threading.Lock()
        self.wanted.clear()


class _First:
    """``with`` this a thread gets the lock after the record at hand."""

    __slots__ = ("_lock",)

    def __init__(self, lock: QuickLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        lock = self._lock
        with lock._turnstile:
            lock.wanted.append(None)
            try:
                lock.__enter__()
            finally:
                lock.wanted.pop()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(None)


F = TypeVar("F", bound=Callable[..., Any])

_holders: set[CodeType] = set()


def holds_lock(function: F) -> F:
    """Mark a function that takes the lock and calls nothing of the application's."""
    _holders.add(function.__code__)
    return function


def refuse_reentry(lock: QuickLock, depth: int = 1) -> None:
    """Raise unless this call may wait for the lock; ``depth``: how many frames are its own.

    Raises:
        KpsplitError: this thread is inside the Producer already.
    """
    if not lock.taken():
        return
    ours = compiled.inside()
    frame: FrameType | None = sys._getframe(1 + depth)
    while frame is not None and not ours:
        ours = frame.f_code in _holders
        frame = frame.f_back
    if ours:
        raise KpsplitError(
            "a signal handler or finaliser called the Producer in the middle of another call; "
            "nothing was done",
            hint="let the handler set a flag or raise, and call the Producer afterwards",
        )
