"""What ``run()`` writes: dead letters, and outputs in the transaction that commits their records.

The producer routes outputs to enrolled topics. Where a split moves a partition under a transaction, the
commit is refused and nothing of it is in the log; it is tried again with the same outputs. When the outcome
of a commit is not known, nothing is guessed: the slots start anew from what the log says, and what was not
committed is processed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.commit.writes import CommitPayloadError, Processed
from kpsplit.consumer.run.handlers import Output, OutputError, dead_letter
from kpsplit.consumer.run.lanes import Transfer
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import MISSING, error_of, translate
from kpsplit.splitter.group_slots import OwnedSlot

POLL_SECONDS = 0.01


def produce_with_room(producer: Any, output: Output, report: Callable[[Any, Any], None]) -> None:
    """Give one record to a producer, waiting while its queue is full.

    Raises:
        KafkaException: the producer refused it.
    """
    while True:
        try:
            producer.produce(
                output.topic,
                output.value,
                output.key,
                output.partition,
                on_delivery=report,
                timestamp=output.timestamp,
                headers=output.headers,
            )
            return
        except BufferError:
            producer.poll(POLL_SECONDS)


class DeadLetters:
    """Thread safe. The producer is made when the first record fails.

    Args:
        make_producer: makes a ``kpsplit.Producer``, so that a dead-letter topic can be split as well.
    """

    def __init__(self, make_producer: Callable[[], Any]) -> None:
        self._make_producer = make_producer
        self._producer: Any = None
        self._lock = threading.Lock()

    def deliver(self, message: Any, error: BaseException, topic: str) -> tuple[Output, ...]:
        """Write the dead letter of a record and wait until it is acknowledged; nothing is left to be written.

        Raises:
            KpsplitError: it was not, or that is not known.
        """
        reports: list[Any] = []
        letter = dead_letter(message, error, topic)
        try:
            producer = self._open()
            produce_with_room(producer, letter, lambda failure, _message: reports.append(failure))
            while not reports:
                producer.poll(POLL_SECONDS)
        except KafkaException as exception:
            raise translate(error_of(exception), _what(topic), writing=True) from exception
        if reports[0] is not None:
            raise translate(reports[0], _what(topic), writing=True)
        return ()

    def close(self, seconds: float) -> None:
        """Wait so long for letters that are under way; the others are given up.

        Those are reported as failed, so their records do not count as processed.
        """
        if self._producer is None:
            return
        deadline = Deadline(seconds)
        if self._producer.flush(seconds):
            self._producer.purge()  # close() would wait for them until their message.timeout.ms is over
        self._producer.close(deadline.left())

    def _open(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._producer = self._make_producer()
            return self._producer


def letter_as_output(message: Any, error: BaseException, topic: str) -> tuple[Output, ...]:
    """Dead letters of a transactional run are outputs like any other, written with the commit."""
    return (dead_letter(message, error, topic),)


def _what(topic: str) -> str:
    return f"write a dead letter to {topic}"


CREATION_SECONDS = 1.0
"""How long brokers may take to create a topic by themselves."""
LOOK_SECONDS = 0.05

_NOT_THERE = MISSING | {KafkaError.LEADER_NOT_AVAILABLE}
_FOR_GOOD = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""Refusals of an output that come again; a topic that is not known may be there later."""


class OutputParticipant:
    """Implements ``TransactionParticipant``: a commit takes the outputs of exactly the records it covers."""

    def __init__(self, work_queue: WorkQueue) -> None:
        self._work_queue = work_queue
        self._topics: set[str] = set()

    def payload(self, processed: Sequence[Processed]) -> OutputPayload:
        return OutputPayload(self._work_queue, self._work_queue.covered(processed), self._topics)

    def keeps(self, slot: OwnedSlot) -> bool:
        return self._work_queue.keeps(slot)

    def make_producer(self, config: Mapping[str, Any]) -> Any:
        return routing_producer(config)

    def abandon(self, producer: Any) -> None:
        producer.abandon()


class OutputPayload:
    """Implements ``CommitPayload``: what goes with one commit. ``topics``: those that are known to exist."""

    def __init__(self, work_queue: WorkQueue, transfer: Transfer, topics: set[str]) -> None:
        self._work_queue = work_queue
        self._transfer = transfer
        self._outputs = [output for kept in transfer for output in kept.outputs]
        self._topics = topics

    def write(self, producer: Any, deadline: Deadline) -> None:
        """Write the outputs with the producer of the transaction.

        Raises:
            OutputError: one can never be written: the run ends. CommitPayloadError: the topic of one does not
            exist. KafkaException: one was not written, this time.
        """
        for topic in sorted({output.topic for output in self._outputs} - self._topics):
            _find(producer, topic, deadline)
            self._topics.add(topic)
        try:
            self._write(producer, deadline)
        except (KafkaException, UsageError, TypeError, ValueError, OverflowError) as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            # It waits on with the others, so no commit will ever come out well.
            self._work_queue.end(refusal)
            raise refusal from error

    def _write(self, producer: Any, deadline: Deadline) -> None:
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        for output in self._outputs:
            produce_with_room(producer, output, report)
        if producer.flush(max(deadline.left(), 0.0)):
            failures.append(KafkaError(KafkaError._TIMED_OUT, "outputs were not acknowledged in time"))
        if failures:
            # What was purged because of another does not say why.
            raise KafkaException(
                next((f for f in failures if f.code() != KafkaError._PURGE_QUEUE), failures[0])
            )

    def committed(self) -> None:
        self._work_queue.committed(self._transfer)

    def aborted(self) -> None:
        """The transaction was aborted: the outputs wait for the next, which is put together anew."""


def _find(producer: Any, topic: str, deadline: Deadline) -> None:
    """Do nothing if a topic exists. Brokers that create topics by themselves do so when they are asked.

    Without this a record of a topic that is not there waits until the commit's time is over, and its error
    does not say why.

    Raises:
        CommitPayloadError: it does not exist. KafkaException: brokers do not answer.
    """
    until = monotonic() + min(CREATION_SECONDS, deadline.left())
    while True:
        found = producer.list_topics(topic, timeout=max(deadline.left(), 0.0)).topics.get(topic)
        error = None if found is None else found.error
        if error is None or error.code() not in _NOT_THERE:
            return
        if monotonic() >= until:
            raise CommitPayloadError(
                f"an output is for topic {topic}, which does not exist; nothing was committed",
                hint="create the topic: the commit is tried again",
            )
        time.sleep(LOOK_SECONDS)


def _refusal(error: Exception) -> OutputError | None:
    """Return the error of an output that is refused whenever it is written; None where that may pass."""
    kafka = error_of(error) if isinstance(error, KafkaException) else None
    if isinstance(error, KafkaException) and (kafka is None or kafka.code() not in _FOR_GOOD):
        return None
    if kafka is not None:
        why = kafka.str() or kafka.name()
    else:
        why = error.message if isinstance(error, UsageError) else type(error).__name__  # never its content
    return OutputError(
        f"an output cannot be written: {why}",
        hint="nothing of its commit was; mend the handler, or the topic, and run again",
    )


def routing_producer(config: Mapping[str, Any]) -> Any:
    """Make a ``kpsplit.Producer``; loaded only where something is produced."""
    from kpsplit.producer.client import Producer

    return Producer(config)


def following_producer(connection: Connection) -> Any:
    """Make a ``kpsplit.Producer`` that logs in as the connection does, whenever that changes."""
    return connection.follow(routing_producer(connection.properties))
