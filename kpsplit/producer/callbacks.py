"""The application's callbacks that wait for the application's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kpsplit.producer.context import Context


class CallbackQueue:
    """Callbacks run only in the application's poll() and flush(), with ``lock`` released."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        """Return how many callbacks wait."""
        return len(self._queue)

    def put(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Keep a callback until ``run``."""
        self._queue.append((callback, arguments))

    def clear(self) -> None:
        """Forget all callbacks."""
        self._queue.clear()

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that is kept when the library's thread happens to poll."""

        def call(*arguments: Any) -> None:
            if self._context.collecting:
                self.put(callback, *arguments)
            else:
                callback(*arguments)

        return call

    def run(self) -> int:
        """Run what is kept, in the application's thread; return how many.

        Raises:
            Exception: what a callback raised first, after all of them ran.
        """
        count = 0
        raised: Exception | None = None
        try:
            for callback, arguments in iter(self._queue.popleft, None):  # no signal handler comes in between
                count += 1
                try:
                    callback(*arguments)
                except Exception as error:  # noqa: BLE001 - whatever the application raises goes back to it
                    raised = raised or error
        except IndexError:  # that was the last one, or another thread was quicker
            pass
        if raised is not None:
            raise raised
        return count
