"""Split and merge live Apache Kafka partitions by key range, with unmodified brokers.

`from kpsplit import Producer, Consumer` is the whole migration of an application that uses
`confluent_kafka.Producer` and `confluent_kafka.Consumer`. The names are resolved on first use, so that
`import kpsplit` alone (as the command line does) loads no client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpsplit.consumer import Consumer, DeserializingConsumer
    from kpsplit.producer import Producer, SerializingProducer

__version__ = "0.1.0"

__all__ = ["Producer", "SerializingProducer", "Consumer", "DeserializingConsumer", "__version__"]

_LAZY = {
    "Producer": "kpsplit.producer",
    "SerializingProducer": "kpsplit.producer",
    "Consumer": "kpsplit.consumer",
    "DeserializingConsumer": "kpsplit.consumer",
}


def __getattr__(name: str) -> object:
    """Import the module that holds `name` on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, whether loaded yet or not."""
    return sorted({*globals(), *__all__})
