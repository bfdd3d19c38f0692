"""Writes range commits in transactions that the group's coordinator fences (protocol, section 10.3).

A commit is one transaction of the range commits and the group's ordinary offsets. The coordinator accepts
the offsets only of a member that belongs to the group's present generation; of any other the transaction is
aborted and its range commits with it. The order inside a commit matters:

1. the records are *acknowledged*;
2. only then are the offsets sent, with the member's generation;
3. the transaction is committed.

So a member that asks where the log ends *after* a rebalance gave it a slot gets an end after every
record of an earlier owner whose transaction can still be committed (``kafka.offset_log``). That holds for
an answer of the log's present leader: protocol, section 11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from kpsplit.clock import AbandonedError, Deadline, bounded
from kpsplit.errors import (
    AuthorizationError,
    DeadlineExceededError,
    FencedError,
    InvariantError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import MIN_TIMEOUT, TRANSACTION_TIMEOUT_MS, TakingId
from kpsplit.kafka.error_map import (
    FENCED,
    NO_MEMBER,
    error_of,
    failed_for_good,
    library_error,
    translate,
    translated,
)
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition
from kpsplit.splitter.records.offsets import CommitKey, RangeCommit

_log = logging.getLogger(__name__)

ABORT_SECONDS = 5.0
"""How long a refused commit may take to be undone; after that its producer is thrown away."""

OFFSETS_SECONDS = 5.0
"""How long the group's coordinator may take to take offsets before the commit is begun anew."""

GRACE_SECONDS = 2.0
"""How much longer than its time a call is waited for before its thread is given up."""

RETRY_MS = 10
"""A coordinator that still finishes the last transaction is asked again after so long."""

_ROLE = "commits"
_TIME = f"{TRANSACTION_TIMEOUT_MS // 1000} s"
_NOT_ACKNOWLEDGED = f"not all was acknowledged in the {_TIME} that a transaction may take"
_ENDED = f"the transaction was ended by the brokers: it took {_TIME}, or another client has its id"
_SLOW_HINT = (
    "a later commit tries again; where that fails too, brokers are slow or cannot be reached. To slow ones "
    "commit fewer bytes at once: a smaller max_pending_bytes of the StateStore, a shorter "
    "auto.commit.interval.ms or commit_seconds of run()"
)
_MOVED_ON = {KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH, KafkaError.REBALANCE_IN_PROGRESS}
"""The group is in another generation than the metadata; both protocols answer the first of these."""


class CommitWriter:
    """Commits ranges for one member of a group. Not thread safe: one thread owns it.

    A producer whose broker did not answer a commit, an abort or a request before them is thrown away, and
    so is one whose epoch is over because the brokers ended its transaction. The next one takes the same
    transactional id: so the broker first decides the transaction that was left open, and a request that is
    still on its way cannot end a later one.

    Args:
        connection: how to reach the cluster.
        transactional_id: of this member instance alone; zombies are fenced by the generation, not by this id.
        partitions: how many partitions the offset log has.
        make_producer: makes the producer, where it is not librdkafka's own.
        abandon: lets go of such a one that is thrown away; it may still be inside a call.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        partitions: int,
        make_producer: Callable[[Mapping[str, Any]], Producer] | None = None,
        abandon: Callable[[Producer], None] | None = None,
    ) -> None:
        self._partitions = partitions
        settings = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "linger_ms": 0,
            "retry_backoff_ms": RETRY_MS,
            # Connect to every leader now: connecting at a commit would be waiting time of a rebalance.
            "enable_sparse_connections": False,
        }

        def make() -> Producer:
            if make_producer is None:
                return connection.open_producer(_ROLE, **settings)
            return connection.follow(make_producer(connection.client(_ROLE, **settings)))

        self._taking = TakingId(make)
        self._abandon = abandon
        self._producer: Producer | None = None

    def open(self, deadline: Deadline) -> None:
        """Connect and get ready to commit, so that the first commit does not have to. May be called again."""
        self._ready(deadline)

    def commit(
        self,
        records: Sequence[RangeCommit],
        tombstones: Iterable[CommitKey],
        offsets: Mapping[PhysicalPartition, int],
        metadata: object,
        deadline: Deadline,
        also: Callable[[Producer], None] | None = None,
    ) -> None:
        """Write range commits and the group's ordinary offsets, all or nothing.

        Args:
            records: the range commits.
            tombstones: keys to be withdrawn (``CommitFold.stale_keys``).
            offsets: the group's ordinary offsets, at least one: only with them the generation is looked at.
            metadata: ``consumer_group_metadata()`` of the member, taken when it was known to own the ranges.
                None, and no offsets, for a group that has no members: nothing is fenced.
            deadline: of the whole call.
            also: writes more records with the producer, inside the transaction.

        Raises:
            FencedError: nothing was committed. ``retriable``: the metadata are of another generation; with
                those of the present one the member may commit what it still owns. Otherwise it is no member
                of the group any more and owns nothing.
            UnknownOutcomeError: read the log to its end: it says whether the commit took effect.
            KpsplitError: nothing was committed (unreachable, a right is missing, a record was refused, the
                brokers ended the transaction).
        """
        if bool(offsets) != (metadata is not None):
            raise InvariantError("a commit without ordinary offsets would not be fenced")
        contents = _Contents(records, tombstones, offsets, metadata, also)
        while not self._committed(contents, deadline):
            if deadline.left() <= 0:
                raise UnreachableError(
                    "could not commit ranges: the group's coordinator was not found; nothing was committed"
                )

    def _committed(self, contents: _Contents, deadline: Deadline) -> bool:
        """Commit; False if the library hangs before it is asked for it: another producer may do it."""
        transaction = _Transaction(self._ready(deadline), self._partitions, contents, deadline)
        seconds = max(deadline.left(), MIN_TIMEOUT) + ABORT_SECONDS + 2 * GRACE_SECONDS
        try:
            bounded(transaction.run, seconds, "kpsplit-commit", transaction.give_up)
        except _NotAskedError:
            return False
        except AbandonedError:
            raise UnknownOutcomeError("could not commit ranges: the client library hangs") from None
        finally:
            if not transaction.decided:
                self._throw_away()
        return True

    def close(self) -> None:
        self._taking.forget()
        self._producer = None

    def _throw_away(self) -> None:
        producer, self._producer = self._producer, None
        if self._abandon is not None and producer is not None:
            self._abandon(producer)

    def _ready(self, deadline: Deadline) -> Producer:
        if self._producer is None:
            with translated("get ready to commit"):
                self._producer = self._taking.take(deadline)
                self._producer.list_topics(OFFSETS_TOPIC, timeout=max(deadline.left(), MIN_TIMEOUT))
        return self._producer


class _NotAskedError(Exception):
    """The library hangs, and the commit was not asked for: nothing was committed, nor will be."""


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a transaction holds; as ``CommitWriter.commit``."""

    records: Sequence[RangeCommit]
    tombstones: Iterable[CommitKey]
    offsets: Mapping[PhysicalPartition, int]
    metadata: object
    also: Callable[[Producer], None] | None


class _Transaction:
    """One transaction. ``decided``: it is known how it ended, and nothing of it is on its way any more."""

    def __init__(self, producer: Producer, partitions: int, contents: _Contents, deadline: Deadline) -> None:
        self._producer = producer
        self._partitions = partitions
        self._contents = contents
        self._deadline = deadline
        self._failures: list[KafkaError] = []
        self._given_up = False
        self.decided = False

    def give_up(self) -> None:
        """Have it abort at its next step; from another thread. A commit that was asked for stays."""
        self._given_up = True

    def run(self) -> None:
        """Write everything and commit; as ``CommitWriter.commit``."""
        try:
            self._write()
            self._go_on()
        except _NotAskedError:
            raise  # its producer is inside a call, and the next to take its id aborts the transaction
        except BaseException as exception:
            kept = self._abort()
            error = library_error(exception) if isinstance(exception, KafkaException) else None
            if failed_for_good(exception):
                error = library_error(kept) or error  # a write says that its producer is over, an abort why
            if error is None:
                self.decided = kept is None and not isinstance(exception, DeadlineExceededError)
                raise
            refused = _refused(error)
            self.decided = kept is None and not isinstance(refused, UnreachableError)
            raise refused from exception
        self._commit()
        self.decided = True

    def _write(self) -> None:
        contents = self._contents
        self._producer.begin_transaction()
        self._produce(contents.records, contents.tombstones)
        if contents.also is not None:
            contents.also(self._producer)
        self._flush()
        self._go_on()
        purged = any(error.code() == KafkaError._PURGE_QUEUE for error in self._failures)
        # Purged records do not say why: the transaction refuses the offsets with the reason.
        offsets = [TopicPartition(p.topic, p.partition, at) for p, at in sorted(contents.offsets.items())]
        if offsets:
            self._send(offsets)
        if purged:
            raise KafkaException(self._failures[0])

    def _send(self, offsets: list[TopicPartition]) -> None:
        """Send the offsets, in a thread of its own.

        librdkafka (2.16) asks for the group's coordinator three times within some ten milliseconds. When none
        is available by then (a broker comes back, ``__consumer_offsets`` moves) it waits for the next broker
        that connects or disconnects, whatever time the call was given: so for ever, in a cluster at rest.

        Raises:
            _NotAskedError: it does not return. KafkaException: the coordinator refused.
        """
        seconds = min(self._left(), OFFSETS_SECONDS)
        metadata = self._contents.metadata

        def send() -> None:
            self._producer.send_offsets_to_transaction(offsets, metadata, seconds)

        try:
            bounded(send, seconds + GRACE_SECONDS, "kpsplit-offsets", lambda: None)
        except AbandonedError:
            _log.info("the group's coordinator was not found; the commit is begun anew")
            raise _NotAskedError from None

    def _produce(self, records: Sequence[RangeCommit], tombstones: Iterable[CommitKey]) -> None:
        def report(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._failures.append(error)

        def produce(parent: PhysicalPartition, key: bytes, value: bytes | None) -> None:
            partition = offsets_partition(parent, self._partitions)
            while True:
                try:
                    return self._producer.produce(OFFSETS_TOPIC, value, key, partition, report)
                except BufferError:  # the client's queue is full
                    self._deadline.check("write a commit")
                    self._go_on()
                    self._producer.poll(min(0.1, self._left()))

        for record in records:
            produce(record.parent, record.key, record.encode())
        for key in tombstones:
            produce(key.parent, key.encode(), None)

    def _flush(self) -> None:
        """Wait until every record is acknowledged: only then may the generation be looked at."""
        left = self._producer.flush(self._left())
        telling = [error for error in self._failures if error.code() != KafkaError._PURGE_QUEUE]
        if telling:
            raise KafkaException(telling[0])
        if left:
            raise DeadlineExceededError(f"{left} records of a commit were not acknowledged in time")

    def _left(self) -> float:
        return max(self._deadline.left(), MIN_TIMEOUT)

    def _go_on(self) -> None:
        if self._given_up:
            raise DeadlineExceededError("a commit was given up")

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(self._left())
        except KafkaException as exception:
            error = error_of(exception)
            refused = _refused(error)
            if error is not None and error.retriable() and error.txn_requires_abort():
                # Only kpsplit's own producer says both: it has not asked the brokers.
                self.decided = self._abort() is None
                raise refused from exception
            # Even where librdkafka asks for an abort: the request may have been carried out, its answer lost.
            text, hint = f"could not commit ranges: {error.str() if error else exception}", None
            if isinstance(refused, AuthorizationError):
                text, hint = refused.message, refused.hint
            raise UnknownOutcomeError(f"{text} (outcome unknown)", hint=hint) from exception

    def _abort(self) -> Exception | None:
        """Undo everything; return why that is not certain, None if it is."""
        try:
            self._producer.abort_transaction(ABORT_SECONDS)
        except (KafkaException, KpsplitError, SystemError) as exception:  # the second: kpsplit's own producer
            _log.info("a refused commit could not be undone at once: %s", exception)
            return exception
        return None


def _refused(error: KafkaError | None) -> KpsplitError:
    """Return kpsplit's error for a refusal; a ``FencedError`` only where the group's membership is over.

    A producer whose epoch is over says nothing of it: the member owns what it owned.
    """
    if error is not None and error.code() in NO_MEMBER | _MOVED_ON:
        return FencedError(
            f"could not commit ranges: the group has moved on ({error.name()})",
            hint="what this member does not own any more is processed again by its new owner",
            retriable=error.code() in _MOVED_ON,
        )
    if error is not None and (reason := _too_long(error)) is not None:
        text = f"could not commit ranges: {reason}; nothing was committed"
        return UnreachableError(text, hint=_SLOW_HINT)
    return translate(error, "commit ranges")


def _too_long(error: KafkaError) -> str | None:
    """Return what happened to a transaction for which there was not enough time; None: something else."""
    if error.code() in FENCED:
        return _ENDED
    # librdkafka gives a record that time. Of one that it gave up the transaction has the second of these.
    timed_out = error.code() == KafkaError._TIMED_OUT and error.txn_requires_abort()
    return _NOT_ACKNOWLEDGED if timed_out or error.code() == KafkaError._MSG_TIMED_OUT else None
