"""Finds a producer's own records in the log, which decides where an acknowledgement was lost."""

from __future__ import annotations

import logging
import threading

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.errors import KpsplitError, RecordError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.ports import Deadline as DeadlinePort
from kpsplit.splitter.records.stamp import HEADER, Stamp, note_own

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 60.0


class Lookup:
    """Looks for one closed segment's records in a thread of its own."""

    def __init__(self, connection: Connection, segment: Segment, instance: int, wanted: set[int]) -> None:
        self._found: dict[int, int] | None = None
        self._error: KpsplitError | None = None
        self._thread = threading.Thread(
            target=self._run, args=(connection, segment, instance, wanted), name="kpsplit-lookup", daemon=True
        )
        self._thread.start()

    def done(self) -> bool:
        """Tell whether the search has ended."""
        return not self._thread.is_alive()

    def result(self) -> dict[int, int] | None:
        """Return what ``find_own_records`` did, or raise what it raised; only when ``done``."""
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self, connection: Connection, segment: Segment, instance: int, wanted: set[int]) -> None:
        try:
            self._found = find_own_records(connection, segment, instance, wanted, Deadline(LOOKUP_SECONDS))
        except KpsplitError as error:
            self._error = error
        except KafkaException as exception:
            self._error = translate(error_of(exception), f"read {segment.source}")
        except Exception as error:
            log.exception("kpsplit: internal error while looking for records in %s", segment.source)
            self._error = KpsplitError(f"internal error: {type(error).__name__}: {error}")


def find_own_records(
    connection: Connection, segment: Segment, instance: int, wanted: set[int], deadline: DeadlinePort
) -> dict[int, int] | None:
    """Return the offsets of a producer's records (by sequence number) in a closed segment's partition.

    Reads from the segment's start to the end of the log, but never less than to the segment's end: a log that
    seems to end before it is one whose leader does not know its high watermark yet. Uncommitted records
    count, for only producers without transactions ask, and somebody else's open transaction must not hide
    theirs. None: the topic is gone, nobody can tell any more. The first copy counts.

    Raises:
        KpsplitError: the log could not be read in time.
    """
    consumer = connection.open_reader(
        "lookup", isolation_level="read_uncommitted", auto_offset_reset="earliest"
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
                elif error.code() in _GONE:
                    return None
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= (segment.end or 0):
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
        note_own(found, message.offset(), stamp, instance, wanted)
