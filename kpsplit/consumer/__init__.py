"""Reading logical partitions: the drop-in Consumer with its engine, workers, state, and the lineage reader.

The names are resolved on first use: the command line reads records without loading the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpsplit.consumer.consumer import Consumer
    from kpsplit.consumer.deserializing import DeserializingConsumer

__all__ = ["Consumer", "DeserializingConsumer"]

_LAZY = {"Consumer": "kpsplit.consumer.consumer", "DeserializingConsumer": "kpsplit.consumer.deserializing"}


def __getattr__(name: str) -> object:
    """Import the module that holds `name` on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
