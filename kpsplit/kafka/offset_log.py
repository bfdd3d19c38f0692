"""The offset log: followed by all that need range commits; written by ``kafka.commit_writer``.

Where the log ends is asked as the *high watermark*, not as the last stable offset: a new owner of a slot
waits until every transaction that an earlier owner may still commit is decided. An open transaction holds it
up for no longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Message

from kpsplit.clock import Deadline
from kpsplit.errors import CheckFailedError, FutureVersionError, RecordError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_ends import learn_leaders
from kpsplit.kafka.log_tail import FOLLOW_SECONDS, LogTail
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC
from kpsplit.splitter.records.offsets import (
    CommitKey,
    NewerCommit,
    check_partition,
    decode_boundary,
    parse_offset_key,
    read_commit,
)


def offset_log_partitions(admin: ClusterAdmin) -> int:
    """Return how many partitions the offset log has.

    Raises:
        UsageError: there is none. CheckFailedError: it is not compacted, so commits would be lost.
        AuthorizationError: it must not be described.
    """
    found = admin.find(OFFSETS_TOPIC)
    if found is None:
        raise UsageError(f"there is no topic {OFFSETS_TOPIC}", hint="run: kpsplit init")
    policy = found.config.get("cleanup.policy", "")
    if policy != "compact":
        raise CheckFailedError(
            f"topic {OFFSETS_TOPIC} has cleanup.policy {policy!r}: range commits would be lost",
            hint="set cleanup.policy=compact with kafka-configs",
        )
    return len(found.partitions)


class OffsetTail(LogTail):
    """Follows partitions of the offset log; ``fold`` holds what was read. Not thread safe.

    ``count``: how many partitions the log has. ``group``: whose commits are kept; None: those of all groups.
    """

    def __init__(
        self,
        connection: Connection,
        count: int,
        partitions: Iterable[int] = (),
        group: str | None = None,
    ) -> None:
        self.fold = CommitFold(group, count)
        super().__init__(connection, OFFSETS_TOPIC, self._fold_record, partitions, decided=False)
        # At once: a client that is asked nothing may connect 0.2 s after its first question.
        learn_leaders(self._consumer, OFFSETS_TOPIC, FOLLOW_SECONDS)

    def read_all(self, deadline: Deadline) -> CommitFold:
        """Take everything that was written when the call began, decided or not; return the fold.

        Raises:
            DeadlineExceededError: a transaction that was open then is not decided in time.
            KpsplitError: the log cannot be read.
        """
        self.read_to_end(deadline)
        return self.fold

    def _fold_record(self, message: Message) -> None:
        self.fold.fold(message.key(), message.value(), message.offset() or 0, message.partition())


@dataclass(frozen=True, slots=True)
class UnfitRecord:
    """A record of the offset log that no reader can go by. ``newer``: of a newer version, else garbage."""

    partition: int
    key: bytes
    newer: bool
    why: str


class OffsetExamination:
    """Looks at every record of the offset log that is decided, for ``kpsplit doctor``. Not thread safe."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._unfit: dict[tuple[int, bytes], UnfitRecord] = {}
        self._listed: dict[tuple[int, bytes], tuple[CommitKey, Collection[int]]] = {}

    def read(self, connection: Connection, deadline: Deadline) -> None:
        tail = LogTail(connection, OFFSETS_TOPIC, self._take_message, range(self._partitions))
        try:
            tail.read_to_end(deadline)
        finally:
            tail.close()

    def unfit(self, segments: Callable[[PhysicalPartition], Collection[int] | None]) -> Iterator[UnfitRecord]:
        """Yield what is wrong; ``segments``: those that a logical partition has, read after the log."""
        yield from self._unfit.values()
        for (partition, key), (commit, listed) in self._listed.items():
            known = segments(commit.parent)
            if known is not None and not set(listed) <= set(known):
                why = f"{_whose(commit)}: it lists a segment that does not exist; its slots do not start"
                yield UnfitRecord(partition, key, False, why)

    def _take_message(self, message: Message) -> None:
        self.take(message.partition() or 0, message.key() or b"", message.value())

    def take(self, partition: int, key: bytes, value: bytes | None) -> None:
        place = partition, key
        self._unfit.pop(place, None)
        self._listed.pop(place, None)
        if value is None:
            return
        try:
            self._look(partition, key, value)
        except FutureVersionError as error:
            self._unfit[place] = UnfitRecord(partition, key, True, error.message)
        except RecordError as error:
            self._unfit[place] = UnfitRecord(partition, key, False, error.message)

    def _look(self, partition: int, key: bytes, value: bytes) -> None:
        subject = parse_offset_key(key)
        check_partition(subject, partition, self._partitions)
        if not isinstance(subject, CommitKey):
            decode_boundary(value)
            return
        try:
            commit = read_commit(subject, value)
        except RecordError as error:
            raise RecordError(f"{_whose(subject)}: {error.message}") from None
        if isinstance(commit, NewerCommit):
            raise FutureVersionError(f"{_whose(subject)}: written by a newer kpsplit; its slots do not start")
        self._listed[partition, key] = subject, tuple(commit.positions)


def _whose(key: CommitKey) -> str:
    return f"the commit of group {key.group} for {key.parent}"
