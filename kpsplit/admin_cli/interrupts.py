"""Ctrl-C and SIGTERM: the first one rolls the operation back, later ones do not disturb that."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """While it is entered, the first signal raises KeyboardInterrupt; further ones only say why not.

    ``terminated`` tells which one it was. Only for the main thread.
    """

    def __init__(self) -> None:
        self.terminated = False
        self._count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Take the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._arrived)
            except ValueError:
                break  # not the main thread: tests
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self.terminated = number == signal.SIGTERM
            raise KeyboardInterrupt
        sys.stderr.write("kpsplit: still rolling back; wait, or end it with SIGKILL (a takeover follows)\n")
