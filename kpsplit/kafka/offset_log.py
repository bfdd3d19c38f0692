"""The offset log: followed by everybody who needs range commits; written by ``kafka.commit_writer``.

Where the log ends is asked as the *high watermark*, not as the last stable offset: a new owner of a slot
waits until every transaction that an earlier owner may still commit is decided. An open transaction holds it
up for no longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message

from kpsplit.errors import CheckFailedError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import OFFSETS_TOPIC


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
    """Follows partitions of the offset log; ``fold`` holds what was read. Not thread safe."""

    def __init__(self, connection: Connection, partitions: Iterable[int] = ()) -> None:
        self.fold = CommitFold()
        super().__init__(connection, OFFSETS_TOPIC, self._fold_record, partitions, decided=False)

    def read_all(self, deadline: Deadline) -> CommitFold:
        """Take everything that was written when the call began, decided or not; return the fold.

        Raises:
            DeadlineExceededError: a transaction that was open then is not decided in time.
            KpsplitError: the log cannot be read.
        """
        self.read_to_end(deadline)
        return self.fold

    def _fold_record(self, message: Message) -> None:
        self.fold.fold(message.key(), message.value(), message.offset() or 0)
