"""Ctrl-C, SIGTERM and a closed terminal: the first rolls the operation back, later ones do not disturb that.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a call of the client library's
C code it can become a SystemError, or be lost. ``is_interrupt`` knows the former; code that reports progress
calls ``raise_if_lost`` for the latter.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LET_PASS = frozenset({"Claim", "Abort", "LeftOver", "Commit", "SealSubTopics", "Finish"})
"""The steps of rolling back, which follow an interruption that was not lost, and those from the commit on:
what has taken effect is best finished."""


class Interrupts:
    """While it is entered, the first signal raises KeyboardInterrupt; later ones print why they do not.

    ``terminated`` tells which one it was. Only for the main thread.
    """

    def __init__(self) -> None:
        self.terminated = False
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Take the signals."""
        _entered.append(self)
        for number in _SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._arrived)
            except ValueError:
                break  # not the main thread: tests
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        _entered.remove(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        # Only the first: another exception in the middle of the roll-back would leave the fence up.
        if self.count == 1:
            self.terminated = number != signal.SIGINT
            raise KeyboardInterrupt
        with suppress(OSError, RuntimeError):
            sys.stderr.write(
                "kpsplit: still rolling back; wait, or end it with SIGKILL: a producer then takes over\n"
            )


_entered: list[Interrupts] = []


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is an interruption, also where C code has made another error of it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt)


def raise_if_lost(step: str) -> None:
    """Raise the interruption again if an operation goes on as if there had been none.

    Raises:
        KeyboardInterrupt: a signal has arrived, and the operation could still be rolled back.
    """
    if step not in _LET_PASS and any(entered.count for entered in _entered):
        raise KeyboardInterrupt
