"""What waits for brokers, so that the engine never does: a thread for it, and a client for questions."""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.errors import FencedError, KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import LOOK_MS, Connection
from kpsplit.kafka.groups import Members, describe_members
from kpsplit.splitter.lineage import PhysicalPartition

T = TypeVar("T")
Owned = TypeVar("Owned")


class BrokerExecutor(Generic[Owned]):
    """Runs jobs in their order, in a thread that exists from the first job to ``close``.

    Args:
        name: of the thread.
        owned: what only that thread uses: ``ask`` gives it to a question.

    ``on_answer`` is called in its thread after each job.
    """

    def __init__(self, name: str, owned: Owned) -> None:
        self.owned = owned
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        # The engine and the application may give the first job at once: one of them gets 0, and starts the
        # thread. No lock, which a signal handler that calls again could never get.
        self._given = itertools.count()
        self._closed = False
        self.on_answer: Callable[[], None] = lambda: None

    def ask(self, question: Callable[[Owned], T]) -> Future[T]:
        """Give a job for what the thread owns; see ``run``."""
        return self.run(lambda: question(self.owned))

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Give a job; the future has what it returns or raises.

        Raises:
            KpsplitError: closed.
        """
        if self._closed:
            raise KpsplitError("the consumer is closed", hint="make a new one")
        future: Future[T] = Future()
        self._jobs.put(lambda: _settle(future, job))
        if next(self._given) == 0:
            self._thread.start()
        return future

    def close(self, seconds: float) -> None:
        """Run what was given, then end the thread; waits for it so long."""
        self._closed = True
        if next(self._given):
            self._jobs.put(None)
            self._thread.join(seconds)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self.on_answer()


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001 - the future has it, and the thread goes on
        future.set_exception(error)


def answer(future: Future[T], seconds: float) -> T:
    """Return a future's result.

    Raises:
        KafkaException: it was not there in time.
    """
    try:
        return future.result(seconds)
    except FutureTimeoutError:
        raise timed_out("no answer in time") from None


def timed_out(what: str) -> KafkaException:
    """Return what is raised when an answer has not come in time."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, what))


_NOT_THERE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


CONNECT_SECONDS = 0.5
"""Closing a consumer may wait for it."""


class QueryClient:
    """A client for questions about the cluster and the group's ordinary offsets; it never joins the group.

    The group consumer cannot be asked by other threads: while it runs a rebalance callback, every call of
    another thread waits for the end of that callback.

    Thread safe; the client is made by the first question.
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connection.open_consumer(
                    "questions",
                    group_id=self._group,
                    group_instance_id=f"kpsplit-nobody-{secrets.token_hex(8)}",
                    enable_auto_commit=False,
                    topic_metadata_refresh_interval_ms=LOOK_MS,  # it remembers topics for three times that
                )
            return self._client

    def connect(self) -> None:
        """Look for the group's coordinator: a client that is asked nothing looks a quarter of a second later.

        Raises:
            KafkaException: it was not found at once; the next question looks again.
        """
        self.client.committed([], timeout=CONNECT_SECONDS)

    def as_nobody(self, commit: Callable[[object], None]) -> None:
        """Make a commit with metadata that the coordinator takes only while the group has no members.

        Without a name of a member it takes the offsets of every transaction. A name that no member has (the
        instance id) it refuses, unless there is no member at all.

        Raises:
            FencedError: there are members; nothing was committed. KpsplitError: as the commit.
        """
        try:
            commit(self.client.consumer_group_metadata())
        except FencedError as error:
            raise FencedError(
                f"could not commit: group {self._group} has members, and this consumer, assigned by hand, is "
                "none of them; nothing was committed",
                hint="give it a group.id of its own, stop the members, or subscribe()",
            ) from error

    def committed(self, places: Sequence[PhysicalPartition], seconds: float) -> dict[PhysicalPartition, int]:
        """Return the group's ordinary committed offsets; partitions without one are left out.

        Raises:
            KafkaException: the coordinator could not be asked, or refused.
        """
        return {place: part.offset for place, part in self.committed_parts(places, seconds).items()}

    def committed_parts(
        self, places: Sequence[PhysicalPartition], seconds: float
    ) -> dict[PhysicalPartition, TopicPartition]:
        """Return what ``committed`` does, with the metadata that were committed along."""
        wanted = [TopicPartition(p.topic, p.partition) for p in places]
        return _with_offsets(self.client.committed(wanted, timeout=seconds))

    def first_at(
        self, places: Iterable[PhysicalPartition], milliseconds: int, seconds: float
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset of each log whose record is that young; logs without one are left out.

        Raises:
            KafkaException: a leader could not be asked, or refused.
        """
        wanted = [TopicPartition(p.topic, p.partition, milliseconds) for p in places]
        found = _with_offsets(self.client.offsets_for_times(wanted, timeout=seconds))
        return {place: part.offset for place, part in found.items()}

    def close(self) -> None:
        """End the client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def _with_offsets(parts: Iterable[TopicPartition]) -> dict[PhysicalPartition, TopicPartition]:
    """Return the answers that have an offset; logs that are not there are left out.

    Where librdkafka (2.16) knows no leader it says so of that partition alone. The time that was asked for
    still stands where the offset is to stand.

    Raises:
        KafkaException: one of the brokers could not be asked, or refused.
    """
    found: dict[PhysicalPartition, TopicPartition] = {}
    for part in parts:
        if part.error is not None and part.error.code() not in _NOT_THERE:
            raise KafkaException(part.error)
        if part.error is None and part.offset >= 0:
            found[PhysicalPartition(part.topic, part.partition)] = part
    return found


MEMBERS_SECONDS = 4.0
"""How long the group's coordinator is waited for; then it is asked again."""


class GroupMembers:
    """Asks who is in the group: with a client of its own, in a thread of its own.

    Its coordinator must not seem silent because commits, or the starts of slots, wait for other brokers.
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._admin: ClusterAdmin | None = None

    def members(self) -> Members:
        """Return who is in the group, and what each member owns.

        Raises:
            KpsplitError: the coordinator could not be asked, or refused.
        """
        if self._admin is None:
            self._admin = ClusterAdmin(self._connection)
        return describe_members(self._admin, self._group, MEMBERS_SECONDS)

    def close(self) -> None:
        """End the client."""
        self._admin = None
