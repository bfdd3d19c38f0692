"""The steps of a Producer's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
