"""What an application may give as a handler, and what workers call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from kpsplit.consumer.run.output import Output, outputs_of
from kpsplit.errors import ConfigurationError, UsageError
from kpsplit.kafka.headers import headers_of

Handler = Callable[[Any], Any]


def is_async(handler: Handler) -> bool:
    """Tell whether a handler is ``async def``: a function, a method, a partial, or an object's call."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether that is async, not whether there is one
    )


def check_handler(handler: Any, *, executor: str) -> None:
    """Do nothing for what can be called by this executor.

    Raises:
        ConfigurationError: it cannot, or there is no such executor.
    """
    if executor not in ("thread", "process"):
        raise ConfigurationError(f"executor={executor!r} is neither 'thread' nor 'process'")
    if not callable(handler):
        raise ConfigurationError(f"the handler is a {type(handler).__name__}, which cannot be called")
    if executor == "process" and is_async(handler):
        raise ConfigurationError(
            "a handler that is async runs in one event loop, not in processes",
            hint='leave executor="process" out, or give a handler that is not async',
        )


def synchronous(handler: Handler, *, transactional: bool) -> Callable[[Any], tuple[Output, ...]]:
    """Return what a thread calls."""
    checked = outputs_of if transactional else _nothing

    def call(record: Any) -> tuple[Output, ...]:
        headers_of(record)  # a handler that asks for unreadable headers must not end the process
        return checked(handler(record))

    return call


def asynchronous(handler: Handler, *, transactional: bool) -> Callable[[Any], Awaitable[tuple[Output, ...]]]:
    """Return what a task of the event loop calls."""
    checked = outputs_of if transactional else _nothing

    async def call(record: Any) -> tuple[Output, ...]:
        headers_of(record)
        return checked(await handler(record))

    return call


def _nothing(returned: Any) -> tuple[Output, ...]:
    """Ignore what a handler returned that has no outputs.

    Raises:
        UsageError: it is work that was not done yet.
    """
    if returned is not None and (inspect.isawaitable(returned) or inspect.isgenerator(returned)):
        if inspect.iscoroutine(returned):
            returned.close()
        raise UsageError(
            f"the handler returned a {type(returned).__name__}: nothing was done yet",
            hint="give the async function itself, or transactional=True for a generator of Outputs",
        )
    return ()
