"""Finds a producer's own records in the log, which decides where an acknowledgement was lost.

The log may be long, or gone. So a search keeps its place between its tries, and brokers are asked whether the
topic is still the same one before the log is read and while nothing comes: a client that is assigned a
partition of a topic that was deleted waits for records without ever telling that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.errors import DeadlineExceededError, KpsplitError, RecordError
from kpsplit.kafka.admin_answers import Absence
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.headers import headers_of
from kpsplit.producer.topic_lookup import topic_id_of
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.records.stamp import HEADER, Stamp, note_own

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 60.0
"""How long one try lasts before it is told that the search takes long."""
ASK_SECONDS = 1.0
"""How long nothing comes before brokers are asked again whether the topic is there."""


class Search:
    """What is looked for in one closed segment, and what is found so far.

    ``next``: the offset to read next. ``found``: offsets by sequence number; the first copy counts.
    ``complete``: no part of the log was gone before it was read. ``topic_id``: Kafka's, None if not known;
    ``retired`` tells whether the control topic says that the sub-topic is deleted.
    """

    def __init__(
        self,
        segment: Segment,
        first: int,
        home: int,
        instance: int,
        wanted: set[int],
        topic_id: str | None = None,
        retired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.segment = segment
        self.home = home
        self.instance = instance
        self.wanted = wanted
        self.topic_id = topic_id
        self.retired = retired
        self.next = first
        self.found: dict[int, int] = {}
        self.complete = True
        self._gone = False

    @property
    def over(self) -> bool:
        """Tell whether there is nothing more to be read."""
        return self._gone or self.next >= (self.segment.end or 0) or len(self.found) == len(self.wanted)

    def gone(self) -> None:
        """Note that the log is gone."""
        self.complete, self._gone = False, True

    def begins_at(self, offset: int) -> None:
        """Note where the log begins: what stood before that cannot be read any more."""
        if offset > self.next:
            self.complete, self.next = False, offset

    def take(self, message: Any) -> None:
        """Look at a record of the log, and go on behind it."""
        if message.offset() < (self.segment.end or 0):
            for name, value in headers_of(message) or ():
                if name == HEADER:
                    self._note(message.offset(), value)
        self.next = message.offset() + 1

    def _note(self, offset: int, value: bytes | None) -> None:
        try:
            stamp = Stamp.decode(value)
        except RecordError:
            return
        note_own(self.found, offset, stamp, self.home, self.instance, self.wanted)


class Lookup:
    """Runs one search in a thread of its own, as often as it takes."""

    def __init__(self, connection: Connection, search: Search) -> None:
        self._connection = connection
        self.search = search
        self._error: KpsplitError | None = None
        self._thread = self._begun()

    def done(self) -> bool:
        """Tell whether the search, or a try at it, has ended."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Do nothing if the search is over; only when ``done``.

        Raises:
            KpsplitError: why the last try ended before. The next one has begun, where that one ended.
        """
        if self._error is not None:
            error, self._error = self._error, None
            self._thread = self._begun()
            raise error

    def _begun(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="kpsplit-lookup", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        source = self.search.segment.source
        try:
            search_log(self._connection, self.search, Deadline(LOOKUP_SECONDS))
        except KpsplitError as error:
            self._error = error
        except KafkaException as exception:
            self._error = translate(error_of(exception), f"read {source}")
        except Exception as error:
            log.exception("kpsplit: internal error while looking for records in %s", source)
            self._error = KpsplitError(f"internal error: {type(error).__name__}: {error}")


def search_log(connection: Connection, search: Search, deadline: Deadline) -> None:
    """Look for a producer's records in a closed segment, from where the search is to the segment's end.

    A log that seems to end before it is one whose leader does not know its high watermark yet. Uncommitted
    records count, for only producers without transactions ask, and somebody else's open transaction must
    not hide theirs.

    Raises:
        KpsplitError, KafkaException: the search is not over, and can go on where it is.
    """
    admin = connection.shared_admin()
    while not search.over:
        if not _is_there(admin, search, deadline):
            search.gone()
            return
        consumer = connection.open_reader(
            "lookup", isolation_level="read_uncommitted", auto_offset_reset="error"
        )
        try:
            _read(consumer, search, deadline)
        finally:
            consumer.close()


def _is_there(admin: Any, search: Search, deadline: Deadline) -> bool:
    """Tell whether the log can be read still; waits until brokers agree that it is missing."""
    source, absence = search.segment.source, Absence()
    while True:
        known = topic_id_of(admin, source.topic)
        if known is not None:
            return search.topic_id is None or known == search.topic_id
        if absence.denied() or search.retired():
            return False
        deadline.check(f"brokers to agree on whether there is a topic {source.topic}")
        deadline.pause(ASK_SECONDS)


def _read(consumer: Any, search: Search, deadline: Deadline) -> None:
    """Read on until the search is over, or nothing comes for a while, or the log has no such offset."""
    source = search.segment.source
    start, _ = consumer.get_watermark_offsets(
        TopicPartition(source.topic, source.partition), min(ASK_SECONDS * 5, deadline.left())
    )
    search.begins_at(start)
    consumer.assign([TopicPartition(source.topic, source.partition, search.next)])
    quiet = Deadline(ASK_SECONDS)
    while not search.over and not quiet.expired():
        if deadline.expired():
            raise DeadlineExceededError(
                f"the search for records of this producer in {source} is at offset {search.next} of "
                f"{search.segment.end}; it goes on"
            )
        for message in consumer.consume(1000, min(0.5, deadline.left())):
            error = message.error()
            if error is None:
                search.take(message)
                quiet = Deadline(ASK_SECONDS)
            elif error.code() == KafkaError._PARTITION_EOF:
                search.next = max(search.next, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                return  # retention was faster: look where the log begins now
            elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise translate(error, f"read {source}")
