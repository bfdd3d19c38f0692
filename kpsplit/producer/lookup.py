"""Looks at topics without ever creating one, and searches logs for a producer's own records.

A search decides what became of a record whose acknowledgement was lost. The log may be long, or gone. So a
search keeps its place between its tries, and brokers are asked whether the topic is still the same one before
the log is read and while nothing comes: a client that is assigned a partition of a topic that was deleted
waits for records and never reports that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, TopicDescription

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import DeadlineExceededError, KpsplitError, RecordError, UnreachableError
from kpsplit.kafka.cluster_admin import Absence
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_ends import topic_id_of
from kpsplit.kafka.logical_message import headers_of
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp, note_own

TIMEOUT_SECONDS = 5.0
LEARN_SECONDS = 0.5
"""The library's thread waits for it, and a lease may be as short as that."""
GRACE_SECONDS = 1.0
CREATION_SECONDS = 30.0
"""librdkafka fails a topic that does not appear for so long (topic.metadata.propagation.max.ms)."""


class PartitionCounts:
    """Asks how many partitions topics have, without waiting: a silent broker must not delay the lease."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Future[TopicDescription], float]] = {}

    def ask(self, admin: AdminClient, topics: Iterable[str]) -> None:
        """Ask for topics in one request, apart from those that are asked for already."""
        new = [topic for topic in topics if topic not in self._asked]
        if new:
            futures = admin.describe_topics(TopicCollection(new), request_timeout=TIMEOUT_SECONDS)
            late = monotonic() + TIMEOUT_SECONDS + GRACE_SECONDS
            self._asked.update((topic, (futures[topic], late)) for topic in new)

    def waiting(self) -> list[str]:
        return list(self._asked)

    def take(self, topic: str) -> int | None:
        """Return how many partitions a topic has, None while there is no answer.

        Raises:
            KpsplitError: the topic is missing or cannot be seen, or no answer came in time.
        """
        future, late = self._asked[topic]
        in_time = monotonic() < late
        if in_time and not future.done():
            return None
        del self._asked[topic]
        if not in_time:
            raise UnreachableError(f"no broker answered about topic {topic}")
        try:
            return len(future.result().partitions)
        except KafkaException as exception:
            raise translate(error_of(exception), f"look at topic {topic}") from exception


def create_unless_there(connection: Connection, topic: str) -> None:
    """Have brokers create a topic that is missing and not enrolled, where they allow it; in its own thread.

    The original's client does so whenever it looks at a topic. Ours must not: it would make a sub-topic again
    that was retired, and take what the broker acknowledges there for delivered.
    """
    threading.Thread(target=_create, args=(connection, topic), name="kpsplit-create", daemon=True).start()


def _create(connection: Connection, topic: str) -> None:
    deadline = Deadline(CREATION_SECONDS)
    while not deadline.expired():
        try:
            if topic_id_of(connection.shared_admin(), topic, TIMEOUT_SECONDS) is None:
                creator = connection.open_admin("create", allow_auto_create_topics=True)
                creator.list_topics(topic, timeout=TIMEOUT_SECONDS)
        except (KafkaException, KpsplitError):
            deadline.pause(GRACE_SECONDS)
        else:
            return


def partitions_known(producer: Producer, topic: str) -> int:
    """Have a producer look at a topic that exists; return how many partitions it knows then, 0 if none."""
    try:
        found = Producer.list_topics(producer, topic, timeout=LEARN_SECONDS).topics[topic]
    except KafkaException:
        return 0
    return len(found.partitions)


log = logging.getLogger(__name__)

LOOKUP_SECONDS = 60.0
"""How long one try lasts before a warning says that the search takes long."""
ASK_SECONDS = 1.0
"""How long nothing comes before brokers are asked again whether the topic is there."""


class Search:
    """What is looked for in one closed segment, and what is found so far.

    ``next``: the offset to read next. ``found``: offsets by sequence number; the first copy counts.
    ``complete``: no part of the log was gone before it was read. ``topic_id``: Kafka's, None if not known;
    ``retired`` returns whether the control topic says that the sub-topic is deleted.
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
        return self._gone or self.next >= (self.segment.end or 0) or len(self.found) == len(self.wanted)

    def gone(self) -> None:
        self.complete, self._gone = False, True

    def begins_at(self, offset: int) -> None:
        """Note where the log begins: what stood before that cannot be read any more."""
        if offset > self.next:
            self.complete, self.next = False, offset

    def take(self, message: Any) -> None:
        if message.offset() < (self.segment.end or 0):
            for name, value in headers_of(message) or ():
                if name == STAMP_HEADER:
                    self._note(message.offset(), value)
        self.next = message.offset() + 1

    def _note(self, offset: int, value: bytes | None) -> None:
        try:
            stamp = Stamp.decode(value)
        except RecordError:
            return
        opened = self.segment.opened_epoch
        note_own(self.found, offset, stamp, self.home, opened, self.instance, self.wanted)


class Lookup:
    """Runs one search in a thread of its own, as often as it takes."""

    def __init__(self, connection: Connection, search: Search) -> None:
        self._connection = connection
        self.search = search
        self._error: KpsplitError | None = None
        self._thread = self._begun()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise unless the search came to its end; only when ``done``.

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
        if not _is_there(connection, admin, search, deadline):
            search.gone()
            return
        consumer = connection.open_reader(
            "lookup", isolation_level="read_uncommitted", auto_offset_reset="error"
        )
        try:
            _read(consumer, search, deadline)
        finally:
            consumer.close()


def _is_there(connection: Connection, admin: Any, search: Search, deadline: Deadline) -> bool:
    """Return whether the log can be read still; waits until brokers agree that it is missing."""
    source = search.segment.source
    absence = Absence(connection, source.topic)
    while True:
        known = topic_id_of(admin, source.topic, TIMEOUT_SECONDS)
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
