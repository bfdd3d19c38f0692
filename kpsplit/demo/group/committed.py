"""What the group had committed when: a record that comes again behind a commit of it has no excuse."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Message

from kpsplit.demo.group.worked import NO_KEY, Worked
from kpsplit.errors import RecordError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.commits import cursor_of
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage
from kpsplit.splitter.records.keys import OFFSETS_TOPIC
from kpsplit.splitter.records.offsets import CommitKey, RangeCommit, decode_range_commit, parse_offset_key

READ_SECONDS = 60.0
TICK_SECONDS = 0.002
"""Kafka's timestamps are whole milliseconds, cut off: no commit may seem older than it is."""


class Committed(NamedTuple):
    """A range commit, and when it was written (monotonic seconds): it is decided then or later."""

    at: float
    commit: RangeCommit


class CommitHistory:
    """Tells since when a record counts as processed, whatever was handed out. Pure."""

    def __init__(self, commits: Iterable[Committed], lineages: Iterable[Lineage]) -> None:
        self._lineages = {lineage.parent.partition: lineage for lineage in lineages}
        self._commits: dict[int, list[tuple[float, KeyRange, Mapping[int, int]]]] = {}
        for at, commit in sorted(commits, key=lambda found: found.at):
            partition = commit.parent.partition
            left = cursor_of(commit, commit.range).pending(self._lineages[partition])
            self._commits.setdefault(partition, []).append((at, commit.range, left))

    def before(self, entry: Worked, at: float) -> bool:
        """Tell whether a commit written before a point in time says that a record was processed."""
        if entry.key_hash == NO_KEY:  # its range is drawn from its place: nobody looks at those
            return False
        found = self._commits.get(entry.partition, ())
        return any(
            when < at and entry.key_hash in range_ and self._is_behind(left, entry)
            for when, range_, left in found
        )

    def _is_behind(self, left: Mapping[int, int], entry: Worked) -> bool:
        segment = self._lineages[entry.partition].get(entry.segment)
        return segment.id not in left or entry.offset < segment.logical(left[segment.id])


def read_commits(
    connection: Connection, group: str, lineages: Iterable[Lineage], partitions: int
) -> list[Committed]:
    """Read a group's range commits in some logical partitions from the ``partitions`` of the offset log.

    Raises:
        KpsplitError: the log cannot be read.
    """
    parents = {lineage.parent for lineage in lineages}
    found: list[Committed] = []
    behind = monotonic() - time.time() + TICK_SECONDS

    def take(message: Message) -> None:
        commit = _commit(message, group)
        if commit is not None and commit.parent in parents:
            found.append(Committed(message.timestamp()[1] / 1000 + behind, commit))

    places = {offsets_partition(parent, partitions) for parent in parents}
    with closing(LogTail(connection, OFFSETS_TOPIC, take, places)) as tail:
        tail.read_to_end(Deadline(READ_SECONDS))
    return found


def _commit(message: Message, group: str) -> RangeCommit | None:
    """Return the range commit of a group that a record is; None for everything else."""
    value = message.value()
    try:
        subject = parse_offset_key(message.key())
        if isinstance(subject, CommitKey) and subject.group == group and value:
            return decode_range_commit(subject, value)
    except RecordError:
        pass
    return None
