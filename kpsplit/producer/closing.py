"""The steps of a Producer's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.reentry import holds_lock


@holds_lock
def accept_no_more(dispatcher: Dispatcher) -> None:
    """Send every new record the way on which it is refused; those that wait may still go."""
    with dispatcher.lock:
        dispatcher.accept_no_more()


@holds_lock
def fail_rest(dispatcher: Dispatcher) -> None:
    """Fail what waits and what is not final; the callbacks are queued."""
    with dispatcher.lock:
        dispatcher.fail_rest()


def noting(raised: list[Exception], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what may run callbacks; what they raise is kept until everything is done."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - it goes back to the application at the end
        raised.append(error)
        return None


@holds_lock
def end_lease(dispatcher: Dispatcher) -> None:
    """Give up the lease for good: nobody asks or waits for a producer that is closed."""
    with dispatcher.lock:
        dispatcher.end()


@holds_lock
def forget_routes(dispatcher: Dispatcher) -> None:
    """Send nothing any more."""
    with dispatcher.lock:
        dispatcher.clear_routes()
