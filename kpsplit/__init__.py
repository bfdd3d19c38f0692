"""Split and merge live Apache Kafka partitions by key range, with unmodified brokers.

`from kpsplit import Producer, Consumer` is the whole migration of an application that uses
`confluent_kafka.Producer` and `confluent_kafka.Consumer`.

Public are the names below and those of ``kpsplit.errors``, ``kpsplit.testing``, ``kpsplit.devcluster`` and
``kpsplit.spark_jobs``; every other module may change at any time. A name is imported on first use, so that
``import kpsplit`` alone (as the command line does) loads no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit import errors
from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.admin import (
        Admin,
        Check,
        Connection,
        Enrolment,
        Findings,
        Forgettable,
        GroupDrain,
        HotKey,
        KeyRange,
        Lineage,
        Observer,
        Outcome,
        Partitioner,
        PartitionProgress,
        PartitionStatus,
        PhysicalPartition,
        Plan,
        Report,
        Retirable,
        Seek,
        SeekTarget,
        Segment,
        SetAside,
        StepDone,
        Whence,
        ignore_steps,
        read_properties,
    )
    from kpsplit.consumer.client import Consumer, DeserializingConsumer
    from kpsplit.consumer.run.handlers import Output, Record
    from kpsplit.consumer.run.policies import DeadLetter, HandlerError, Retry, RunOptions, Skip, Stop
    from kpsplit.consumer.run.work_queue import RunStats
    from kpsplit.consumer.run.workers import WorkerDiedError
    from kpsplit.consumer.slots.assigned_slots import MemberSlot
    from kpsplit.consumer.state.slot_state import (
        BYTES,
        JSON,
        TEXT,
        UNSIGNED,
        Serde,
        SlotGoneError,
        SlotView,
        Work,
    )
    from kpsplit.consumer.state.slots import SlotId
    from kpsplit.consumer.state.store import StateStore
    from kpsplit.producer.client import Producer, SerializingProducer
    from kpsplit.producer.state import LayoutStats, PartitionStats

__version__ = "0.1.0"

__all__ = [
    # Producers
    "Producer",
    "SerializingProducer",
    "LayoutStats",
    "PartitionStats",
    # Consumers
    "Consumer",
    "DeserializingConsumer",
    "MemberSlot",
    # ``Consumer.run``
    "Retry",
    "Stop",
    "Skip",
    "DeadLetter",
    "Output",
    "Record",
    "RunOptions",
    "RunStats",
    "HandlerError",
    "WorkerDiedError",
    # State
    "StateStore",
    "SlotView",
    "Work",
    "SlotId",
    "Serde",
    "BYTES",
    "TEXT",
    "JSON",
    "UNSIGNED",
    "SlotGoneError",
    # Programs that operate
    "Admin",
    "PhysicalPartition",
    "KeyRange",
    "Partitioner",
    "Enrolment",
    "Lineage",
    "Segment",
    "Plan",
    "Check",
    "HotKey",
    "Report",
    "Outcome",
    "PartitionStatus",
    "PartitionProgress",
    "GroupDrain",
    "Seek",
    "SeekTarget",
    "Whence",
    "Retirable",
    "Forgettable",
    "Findings",
    "SetAside",
    "Observer",
    "StepDone",
    "ignore_steps",
    "Connection",
    "read_properties",
    "errors",
    "__version__",
]

_OTHERS = {
    "kpsplit.producer.client": ("Producer", "SerializingProducer"),
    "kpsplit.producer.state": ("LayoutStats", "PartitionStats"),
    "kpsplit.consumer.client": ("Consumer", "DeserializingConsumer"),
    "kpsplit.consumer.slots.assigned_slots": ("MemberSlot",),
    "kpsplit.consumer.run.handlers": ("Output", "Record"),
    "kpsplit.consumer.run.policies": ("Retry", "Stop", "Skip", "DeadLetter", "HandlerError", "RunOptions"),
    "kpsplit.consumer.run.work_queue": ("RunStats",),
    "kpsplit.consumer.run.workers": ("WorkerDiedError",),
    "kpsplit.consumer.state.store": ("StateStore",),
    "kpsplit.consumer.state.slot_state": (
        *("SlotView", "Work", "Serde", "BYTES", "TEXT", "JSON", "UNSIGNED", "SlotGoneError"),
    ),
    "kpsplit.consumer.state.slots": ("SlotId",),
}
_HOMES = {name: "kpsplit.admin" for name in __all__ if name not in globals()} | {
    name: module for module, names in _OTHERS.items() for name in names
}
"""Where each name is; ``kpsplit.admin`` has those of programs that operate."""

if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    """The public names, whether loaded yet or not."""
    return sorted({*globals(), *__all__})
