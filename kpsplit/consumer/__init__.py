"""Reading logical partitions: the drop-in Consumer with its engine, workers, state, and the lineage reader.

The names are resolved on first use: the command line reads records without loading the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.consumer.client import Consumer
    from kpsplit.consumer.deserializing import DeserializingConsumer

__all__ = ["Consumer", "DeserializingConsumer"]

__getattr__ = lazy_names(
    __name__,
    {
        "Consumer": "kpsplit.consumer.client",
        "DeserializingConsumer": "kpsplit.consumer.deserializing",
    },
)
