"""A thread that looks at something again and again while a block of the demo runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """A context manager: its thread runs ``_run`` until ``_stop`` is set, which the end of the block does."""

    def __init__(self, name: str, join_seconds: float) -> None:
        self._stop = threading.Event()
        self._join_seconds = join_seconds
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(self._join_seconds)

    @abstractmethod
    def _run(self) -> None: ...
