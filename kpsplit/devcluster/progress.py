"""A line of progress on stderr, for steps that take longer than one likes to wait in silence."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO


class Progress:
    """Counts steps of one activity: rewritten in place on a terminal, every tenth step in a log.

    Args:
        title: what is being done.
        total: the number of steps, None if it is not known.
        stream: where to; stderr when not given.
    """

    def __init__(self, title: str, total: int | None, stream: TextIO | None = None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._stream = stream if stream is not None else sys.stderr

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream.isatty():
            self._stream.write("\n")

    def step(self) -> None:
        """One more step is done."""
        self._done += 1
        if self._stream.isatty() or self._done % 10 == 0 or self._done == self._total:
            self._show()

    def _show(self) -> None:
        start, end = ("\r", "") if self._stream.isatty() else ("", "\n")
        of = "" if self._total is None else f" of {self._total}"
        self._stream.write(f"{start}{self._title}: {self._done}{of} files{end}")
        self._stream.flush()
