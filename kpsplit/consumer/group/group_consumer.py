"""The group consumer: a member of Kafka's own group, that owns slots and commits but never reads a record.

Its partitions are those of slots topics, and those of topics that are not enrolled. They are paused as soon
as they are assigned; data are read by another consumer (``fetch.reader``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.errors import FencedError
from kpsplit.kafka.error_map import NO_MEMBER, error_of, is_one_of
from kpsplit.splitter.lineage import PhysicalPartition

Places = Sequence[PhysicalPartition]

LOOK_SECONDS = 0.05
SEE_SECONDS = 3.0
"""How long the answer of brokers is waited for."""
_NO_SUCH_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION)
"""There is nothing to wait for: an event tells the application what is wrong with its subscription."""
SLOTS_START = 0
"""Slots topics hold no record. An explicit offset saves asking the group for a committed one."""


class Assignments(Protocol):
    """Is called at rebalances, in the thread that polls. Nothing it does may raise."""

    def assigned(self, places: Places) -> None:
        """This member has more partitions of the group's topics."""

    def revoked(self, places: Places) -> None:
        """They are taken away: when this returns another member may have them."""

    def lost(self, places: Places) -> None:
        """They may be another member's already."""


class GroupConsumer:
    """See the module. One thread owns it; only ``sees`` may be called by another."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        incremental: bool,
        make: Callable[..., Any] = confluent_kafka.Consumer,
        **extra: Any,
    ) -> None:
        self._consumer = make({**config, "on_commit": self._committed}, **extra)
        self._incremental = incremental
        self._topics: frozenset[str] = frozenset()
        self._looks = threading.Lock()
        """A client that is closed while another thread asks it something ends the process."""
        self._closed = False
        self._unpolled = 0
        self._commits: deque[tuple[list[TopicPartition], Future[None] | None]] = deque()
        """Whose answers ``poll`` will bring; without a future nobody waits for one any more."""
        self.assignment: set[PhysicalPartition] = set()
        """What the coordinator gave this member, as of the latest callback."""

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    def subscribe(self, topics: Collection[str], listener: Assignments) -> None:
        """Join the group, or change what is subscribed to; what happens comes out of ``poll``."""
        self._topics = frozenset(topics)
        self._consumer.subscribe(
            sorted(topics),
            on_assign=lambda _, parts: self._assigned(parts, listener),
            on_revoke=lambda _, parts: self._revoked(parts, listener.revoked),
            on_lost=lambda _, parts: self._revoked(parts, listener.lost),
        )

    def unsubscribe(self) -> None:
        """Leave the group; a revocation of everything comes out of ``poll``."""
        self._topics = frozenset()
        self._consumer.unsubscribe()

    def poll(self, seconds: float) -> KafkaError | None:
        """Serve rebalances and other events for so long; return an error that the application should see."""
        message: Message | None = self._consumer.poll(seconds)
        return None if message is None else message.error()

    def look_at_topics(self) -> None:
        """Have the client learn now how many partitions topics have, not only at its next refresh.

        It joins the group again where a topic of the group has grown; the answer need not be waited for.
        """
        with suppress(KafkaException):
            self._consumer.list_topics(timeout=LOOK_SECONDS)

    def sees(self, topics: Collection[str]) -> bool:
        """Look at topics; return whether the client knows all of them that exist. Waits; for any thread.

        A client that changes to a topic and does not know it takes what it has for lost as soon as it does
        (librdkafka 2.16), and does not join again: the coordinator would name this member for slots that it
        has let go, without end.

        Raises:
            KafkaException: no answer in time.
        """
        return all(self._sees(topic) for topic in topics)

    def _sees(self, topic: str) -> bool:
        with self._looks:
            if self._closed:
                return False
            found = self._consumer.list_topics(topic, timeout=SEE_SECONDS).topics.get(topic)
        return found is not None and (found.error is None or found.error.code() in _NO_SUCH_TOPIC)

    def metadata(self) -> Any:
        """Return this member's identity and generation in the group: what fences commits.

        Raises:
            FencedError: it is not in the group now; the metadata would be nobody's, and fence nothing.
        """
        metadata = self._consumer.consumer_group_metadata()
        if self.expelled():  # looked at afterwards: else it might be expelled in between
            raise FencedError("could not commit ranges: this member is not in its group now", retriable=True)
        return metadata

    def expelled(self) -> bool:
        """Return whether the client knows that it is no member of the group that it has joined.

        With the classic protocol: it learns of it from a heartbeat, or leaves where nothing was polled for
        ``max.poll.interval.ms``. ``poll`` tells it later.
        """
        return bool(self._topics or self.assignment) and not self.memberid()

    def memberid(self) -> str | None:
        """Return the member's id, None while it has none."""
        member: str | None = self._consumer.memberid()
        return member

    def commit(
        self,
        offsets: Mapping[PhysicalPartition, int],
        metadata: Mapping[PhysicalPartition, str] | None = None,
    ) -> Future[None]:
        """Commit ordinary offsets with their metadata, one commit at a time; ``poll`` brings the answer.

        While nothing is polled (``unpolled``) the call itself waits for the answer.
        """
        texts = metadata or {}
        parts = [part_of(place, offset, texts.get(place)) for place, offset in offsets.items()]
        future: Future[None] = Future()
        if self._unpolled:
            self._commit_now(parts, future)
        else:
            self._commits.append((parts, future))
            self._consumer.commit(offsets=parts, asynchronous=True)
        return future

    @contextmanager
    def unpolled(self) -> Iterator[None]:
        """For a time without polls: answers to commits under way are asked for again."""
        self._unpolled += 1
        try:
            self._commit_again()
            yield
        finally:
            self._unpolled -= 1

    def _commit_now(self, parts: list[TopicPartition], future: Future[None]) -> None:
        try:
            done = self._consumer.commit(offsets=parts, asynchronous=False)
        except KafkaException as exception:
            future.set_exception(exception)
        else:
            _settle(future, None, done or ())

    def _committed(self, error: KafkaError | None, parts: Sequence[TopicPartition]) -> None:
        """Librdkafka has the answer to a commit of these offsets, maybe not the oldest: it tries again."""
        named = (n for n, (sent, _) in enumerate(self._commits) if _offsets(sent) == _offsets(parts))
        if self._commits:
            index = next(named, 0)
            future = self._commits[index][1]
            del self._commits[index]
            if future is not None:
                _settle(future, error, parts)

    def _commit_again(self) -> None:
        """Answers to commits under way cannot come: commit again, and wait for it."""
        waiting, self._commits = self._commits, deque((parts, None) for parts, _ in self._commits)
        for parts, future in waiting:
            if future is not None:
                self._commit_now(parts, future)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self._consumer.set_sasl_credentials(username, password)

    def close(self) -> None:
        """Leave the group and end the client. What the application was not asked about is let go."""
        try:
            with self._looks:
                self._closed = True
                self._consumer.close()
        except KafkaException as exception:
            error = error_of(exception)
            if error is None or not error.fatal():
                raise

    def _assigned(self, parts: list[TopicPartition], listener: Assignments) -> None:
        places = _places(parts)
        starting = [TopicPartition(p.topic, p.partition, SLOTS_START) for p in parts]
        if self._incremental:
            self._consumer.incremental_assign(starting)
        else:
            self._consumer.assign(starting)
        if starting:
            self._consumer.pause(starting)
        self.assignment.update(places)
        listener.assigned(places)

    def _revoked(self, parts: list[TopicPartition], listener: Callable[[Places], None]) -> None:
        places = _places(parts)
        with self.unpolled():
            listener(places)
        self.assignment.difference_update(places)
        if self._incremental:
            self._consumer.incremental_unassign(parts)
        else:
            self._consumer.unassign()


def says_no_member(error: BaseException) -> bool:
    """Return whether the group refused a commit because it has no such member any more."""
    if isinstance(error, FencedError):
        return not error.retriable
    return is_one_of(error, NO_MEMBER)


def part_of(place: PhysicalPartition, offset: int, metadata: str | None) -> TopicPartition:
    """Return a partition as the client library takes it; metadata are text or nothing there, never None."""
    if not metadata:
        return TopicPartition(place.topic, place.partition, offset)
    return TopicPartition(place.topic, place.partition, offset, metadata)


def _offsets(parts: Iterable[TopicPartition]) -> set[tuple[str, int, int]]:
    return {(p.topic, p.partition, p.offset) for p in parts}


def _settle(future: Future[None], error: KafkaError | None, parts: Sequence[TopicPartition]) -> None:
    failed = error or next((p.error for p in parts if p.error is not None), None)
    if failed is None:
        future.set_result(None)
    else:
        future.set_exception(KafkaException(failed))


def _places(parts: Sequence[TopicPartition]) -> list[PhysicalPartition]:
    return [PhysicalPartition(p.topic, p.partition) for p in parts]
