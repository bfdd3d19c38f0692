"""Calls to a Producer that do not keep it alive: one that is dropped is collected, thread and all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class ProducerGone(Exception):  # noqa: N818 - no error: the application dropped its Producer
    """The Producer was dropped without close(); its thread ends."""


def weakly(producer: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a Producer by a weak reference; it raises ProducerGone when that is gone."""
    reference = weakref.ref(producer)

    def call(*arguments: Any) -> Any:
        alive = reference()
        if alive is None:
            raise ProducerGone
        return method(alive, *arguments)

    return call
