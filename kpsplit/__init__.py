"""Split and merge live Apache Kafka partitions by key range, with unmodified brokers.

`from kpsplit import Producer, Consumer` is the whole migration of an application that uses
`confluent_kafka.Producer` and `confluent_kafka.Consumer`. The names are resolved on first use, so that
`import kpsplit` alone (as the command line does) loads no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.consumer import Consumer, DeserializingConsumer
    from kpsplit.consumer.run import DeadLetter, Output, Retry, Skip, Stop
    from kpsplit.producer import Producer, SerializingProducer

__version__ = "0.1.0"

__all__ = [
    "Producer",
    "SerializingProducer",
    "Consumer",
    "DeserializingConsumer",
    "Output",
    "Retry",
    "Stop",
    "Skip",
    "DeadLetter",
    "__version__",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Producer", "SerializingProducer"), "kpsplit.producer"),
        **dict.fromkeys(("Consumer", "DeserializingConsumer"), "kpsplit.consumer"),
        **dict.fromkeys(("Output", "Retry", "Stop", "Skip", "DeadLetter"), "kpsplit.consumer.run"),
    },
)


def __dir__() -> list[str]:
    """The public names, whether loaded yet or not."""
    return sorted({*globals(), *__all__})
