"""Finds a producer's own records in the log, which decides where an acknowledgement was lost."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kpsplit.errors import RecordError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import translate
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.stamp import HEADER, Stamp


def find_own_records(
    connection: Connection, segment: Segment, instance: int, wanted: set[int], deadline: Deadline
) -> dict[int, int]:
    """Return the offsets of a producer's records (by sequence number) in a closed segment's partition.

    Reads from the segment's start to the end of the log, behind the segment's end as well. A topic that is
    gone holds nothing. The first copy counts.

    Raises:
        KpsplitError: the log could not be read in time.
    """
    consumer = Consumer(
        connection.client(
            "lookup",
            group_id="kpsplit-unused",
            enable_auto_commit=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
        )
    )
    found: dict[int, int] = {}
    consumer.assign([TopicPartition(segment.source.topic, segment.source.partition, segment.start)])
    try:
        while True:
            deadline.check(f"the log of {segment.source} to be searched")
            for message in consumer.consume(1000, min(0.5, deadline.left())):
                error = message.error()
                if error is None:
                    _note(found, message, instance, wanted)
                elif error.code() in (KafkaError._PARTITION_EOF, *_GONE):
                    return found
                elif error.fatal():
                    raise translate(error, f"read {segment.source}")
    finally:
        consumer.close()


_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


def _note(found: dict[int, int], message, instance: int, wanted: set[int]) -> None:  # type: ignore[no-untyped-def]
    for name, value in message.headers() or ():
        if name != HEADER:
            continue
        try:
            stamp = Stamp.decode(value)
        except RecordError:
            continue
        if stamp.instance == instance and stamp.sequence in wanted:
            found.setdefault(stamp.sequence, message.offset())
