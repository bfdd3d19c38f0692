"""Reads stretches of physical partitions, and single records, from any offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, translate
from kpsplit.splitter.lineage import PhysicalPartition

_BATCH = 1000
_FEW = 10
_WAIT = 0.2


def read_slice(
    connection: Connection,
    place: PhysicalPartition,
    start: int,
    end: int,
    deadline: Deadline,
    isolation: str = "read_committed",
) -> Iterator[Message]:
    """Yield the records in [start, end), or those that arrive before the deadline.

    Stops at the end of the log as well: offsets without a record (transaction markers, compaction) are
    skipped by the broker. Records that the log has lost at its start are skipped silently.
    """
    if start >= end:
        return
    consumer = _consumer(connection, isolation)
    try:
        consumer.assign([TopicPartition(place.topic, place.partition, start)])
        while deadline.left() > 0:
            for message in consumer.consume(_BATCH, min(_WAIT, deadline.left())):
                error, offset = message.error(), message.offset() or 0
                if error is None and offset < end:
                    yield message
                if (error is None and offset >= end - 1) or _at_end(error):
                    return
                if error is not None and error.code() not in TRANSIENT_READS:
                    raise translate(error, f"read {place}")
    finally:
        consumer.close()


def read_at(
    connection: Connection, offsets: Mapping[PhysicalPartition, int], deadline: Deadline
) -> dict[PhysicalPartition, Message]:
    """Return the first record at or after an offset of each partition, as far as they arrive in time.

    Uncommitted ones as well. Where an offset has left the log, the first record of the log is returned.
    """
    found: dict[PhysicalPartition, Message] = {}
    if not offsets:
        return found
    consumer = _consumer(connection, "read_uncommitted")
    waiting = set(offsets)
    try:
        consumer.assign([TopicPartition(p.topic, p.partition, offset) for p, offset in offsets.items()])
        while waiting and deadline.left() > 0:
            for message in consumer.consume(_FEW, min(_WAIT, deadline.left())):
                place = PhysicalPartition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() in TRANSIENT_READS:
                    continue
                if place in waiting:
                    waiting.discard(place)
                    consumer.pause([TopicPartition(place.topic, place.partition)])
                    if error is None:
                        found[place] = message
    finally:
        consumer.close()
    return found


def _consumer(connection: Connection, isolation: str) -> Consumer:
    return connection.open_reader("slice", isolation_level=isolation, auto_offset_reset="earliest")


def _at_end(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError._PARTITION_EOF
