"""The steps of a Producer's end, each under its lock."""

from __future__ import annotations

from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.reentry import holds_lock


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
