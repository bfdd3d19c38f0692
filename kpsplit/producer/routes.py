"""From a record to its logical partition, and from a key to its segment's writer."""

from __future__ import annotations

import random
from struct import Struct
from zlib import crc32

from confluent_kafka import murmur2

from kpsplit.errors import ConfigurationError, UsageError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.logical_message import is_identity
from kpsplit.producer.fence import PartitionSendState
from kpsplit.producer.messages import Callback, PendingRecord, Report
from kpsplit.producer.segment_writer import SegmentWriter
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.stamp import HEADER, prefix

STICKY_SECONDS = 0.01
"""Records without a key stay on one partition for so long, so that they share batches."""

_PREFIX_AND_NUMBER = Struct(">21sQ").pack
stamp_header = HEADER
complete_stamp = _PREFIX_AND_NUMBER


class RouteWriter(SegmentWriter[PendingRecord]):
    """A segment's writer with what the hot path needs at hand.

    ``good_until`` (monotonic seconds): acknowledgements taken in hand before it are final at once; set by the
    library's thread, 0 while the segment is fenced or closed. ``reports`` maps the application's
    callbacks to the functions that, bound to a record, librdkafka calls for them.
    """

    __slots__ = ("_stamped", "good_until", "identity", "partition", "reports", "stamp_prefix", "topic")

    def __init__(self, segment: Segment, parent: PhysicalPartition) -> None:
        super().__init__(segment)
        self.topic = segment.source.topic
        self.partition = segment.source.partition
        self.identity = is_identity(segment, parent)
        self.stamp_prefix = b""
        self._stamped: tuple[int, int] | None = None
        self.good_until = 0.0
        self.reports: dict[Callback | None, Report] = {}

    def stamp_as(self, state: PartitionState, instance: int) -> None:
        """Stamp later records with the epoch of a view, and with its name for this physical partition."""
        stamped = (state.epoch, state.home(self.segment.source))
        if stamped != self._stamped:
            self._stamped, self.stamp_prefix = stamped, prefix(stamped[0], instance, stamped[1])


Fence = PartitionSendState[PendingRecord, RouteWriter]


class PassThrough:
    """The route of a topic that is not enrolled."""


PASS_THROUGH = PassThrough()


class TopicRoute:
    """An enrolled topic: one fence per logical partition, and how a key chooses among them."""

    def __init__(self, enrolment: Enrolment, fences: list[Fence]) -> None:
        self.enrolment = enrolment
        self.fences = fences
        self.count = len(fences)
        self.by_crc = enrolment.partitioner is Partitioner.CONSISTENT_RANDOM
        self._sticky = 0
        self._sticky_until = 0.0

    def extend(self, fences: list[Fence]) -> None:
        """Take partitions that were added to the topic."""
        self.fences.extend(fences)
        self.count = len(self.fences)

    def choose(self, key: bytes | None, partition: int) -> Fence:
        """Return the fence of a record's logical partition, as the application's own partitioner would.

        Raises:
            UsageError: the partition does not exist, or must be named and was not.
        """
        if partition >= 0:
            if partition >= self.count:
                raise UsageError(
                    f"{self.enrolment.topic} has {self.count} partitions, no partition {partition}"
                )
            return self.fences[partition]
        kind = self.enrolment.partitioner
        if kind is Partitioner.EXPLICIT:
            raise UsageError(
                f"{self.enrolment.topic} is enrolled as explicit: name the partition of each record"
            )
        if kind is Partitioner.CONSISTENT_RANDOM and key:
            return self.fences[crc32(key) % self.count]
        if kind is Partitioner.MURMUR2_RANDOM and key is not None:
            return self.fences[murmur2(key, self.count)]
        return self.fences[self._any_partition()]

    def _any_partition(self) -> int:
        now = monotonic()
        if now >= self._sticky_until:
            self._sticky = random.randrange(self.count)
            self._sticky_until = now + STICKY_SECONDS
        return self._sticky


def check_partitioner(enrolment: Enrolment, configured: str) -> None:
    """Refuse a producer that would choose partitions otherwise than the topic's other writers.

    Raises:
        ConfigurationError: the two differ; the message names both.
    """
    if enrolment.partitioner in (Partitioner.EXPLICIT, configured):
        return
    raise ConfigurationError(
        f"topic {enrolment.topic} is enrolled with partitioner={enrolment.partitioner}, "
        f"this producer has partitioner={configured}",
        hint=f"set partitioner={enrolment.partitioner}",
    )
