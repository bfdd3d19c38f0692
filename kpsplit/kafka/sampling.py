"""Samples the newest records of a partition: how the load is spread over keys, and who partitioned them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import IsolationLevel, Message, consistent, murmur2

from kpsplit.kafka.clock import Deadline as RealDeadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_slice import read_slice
from kpsplit.kafka.plans import Check
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records import stamp
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.marker import HEADER

WRITERS = "writers"
LABEL_LENGTH = 60
MOST_BYTES = 64 << 20
LONGEST_SECONDS = 10.0
ENOUGH_KEYED = 20
"""Fewer records with keys than this say nothing about the partitioner."""

EXPLAINED = 0.95
"""The share of records from which on a partitioner explains where they are."""

_HASHING = (Partitioner.CONSISTENT_RANDOM, Partitioner.MURMUR2_RANDOM)


@dataclass(slots=True)
class Sample:
    """What the newest records of a partition showed.

    ``points`` are (key hash, bytes) of the records with a key, ``labels`` the keys as printable text.
    ``keyed`` counts the records of which some partitioner has to explain the place, ``explained`` by which
    it is. ``stamped`` counts records of kpsplit's producers, ``strange`` those behind one of them that are
    none.
    """

    points: list[tuple[int, int]] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    records: int = 0
    stamped: int = 0
    strange: int = 0
    keyed: int = 0
    explained: dict[Partitioner, int] = field(default_factory=lambda: dict.fromkeys(_HASHING, 0))

    def add(self, key: bytes | None, size: int, partition: int, partitions: int) -> None:
        """Take one record of a logical partition."""
        self.records += 1
        if key is None:
            return
        hash_ = key_hash(key)
        self.points.append((hash_, size))
        if hash_ not in self.labels:
            self.labels[hash_] = label(key)
        if not key:
            return  # one partitioner hashes empty keys, the other one does not
        self.keyed += 1
        for partitioner in _HASHING:
            self.explained[partitioner] += placed_by(partitioner, key, partitions) == partition

    def note_writer(self, stamped: bool) -> None:
        """Take who wrote the next record; before the first stamp the topic may not have been enrolled."""
        self.stamped += stamped
        self.strange += not stamped and self.stamped > 0

    def merge(self, other: Sample) -> None:
        """Take what another sample says about the partitioner."""
        self.records += other.records
        self.keyed += other.keyed
        for partitioner, count in other.explained.items():
            self.explained[partitioner] += count


def label(key: bytes) -> str:
    """Return a key as short printable text; what is not printable is escaped."""
    text = key[: LABEL_LENGTH * 4].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return shown if len(shown) <= LABEL_LENGTH else shown[: LABEL_LENGTH - 1] + "…"


def placed_by(partitioner: Partitioner, key: bytes, partitions: int) -> int | None:
    """Return the partition that a partitioner chooses for a key that is not empty, None if it is free."""
    if partitioner is Partitioner.CONSISTENT_RANDOM:
        return consistent(key, partitions)
    if partitioner is Partitioner.MURMUR2_RANDOM:
        return murmur2(key, partitions)
    return None


def partitioner_check(sample: Sample, partitioner: Partitioner, partitions: int) -> Check:
    """Check that the topic's partitioner explains where sampled records are."""
    name = "partitioner"
    if partitioner is Partitioner.EXPLICIT or partitions == 1:
        return Check(name, True, f"{partitioner}: nothing to compare")
    if sample.keyed < ENOUGH_KEYED:
        return Check(name, True, f"{partitioner}: only {sample.keyed} records with keys, too few to tell")
    share = sample.explained[partitioner] / sample.keyed
    found = f"{partitioner} explains the place of {share:.0%} of {sample.keyed} sampled records"
    if share >= EXPLAINED:
        return Check(name, True, found)
    others = [p for p in _HASHING if sample.explained[p] / sample.keyed >= EXPLAINED]
    if others:
        return Check(name, False, f"{found}, {others[0]} that of nearly all", f"use {others[0]}")
    if share < 0.5:
        return Check(
            name, False, found, f"use {Partitioner.EXPLICIT} if the application chooses partitions itself"
        )
    return Check(
        name,
        False,
        found,
        "some writers partition otherwise: find them, or go on with --force",
        forceable=True,
    )


def writers_check(sample: Sample) -> Check:
    """Tell of writers that do not use kpsplit; their records are found in the overflow behind a split."""
    if not sample.strange:
        return Check(WRITERS, True, "no writer was seen that does not use kpsplit")
    share = sample.strange / (sample.strange + sample.stamped)
    return Check(
        WRITERS,
        True,
        f"about {share:.0%} of the newest records come from writers that do not use kpsplit; they will go to "
        "the overflow, and are read from there",
    )


def sample_partition(
    connection: Connection,
    admin: ClusterAdmin,
    place: PhysicalPartition,
    most: int,
    logical: tuple[int, int],
    deadline: Deadline,
) -> Sample:
    """Read the newest records of a physical partition, committed ones only; bounded in time and bytes.

    Args:
        connection: how to reach the cluster.
        admin: for the ends of the log.
        place: which partition.
        most: how many records.
        logical: the number of the logical partition, and how many partitions its topic has.
        deadline: of the whole call.
    """
    end = admin.end_offsets([place], IsolationLevel.READ_COMMITTED).get(place)
    low = admin.start_offsets([place]).get(place)
    if end is None or low is None or most <= 0:
        return Sample()
    limit = RealDeadline(min(LONGEST_SECONDS, deadline.left()))
    start = max(low, end.offset - most)
    return collected(read_slice(connection, place, start, end.offset, limit), *logical)


def collected(messages: Iterable[Message], partition: int, partitions: int) -> Sample:
    """Make a sample of records; markers do not count."""
    sample, size = Sample(), 0
    for message in messages:
        names = {header[0] for header in message.headers() or []}
        if HEADER in names:
            continue
        sample.note_writer(stamp.HEADER in names)
        weight = len(message)
        key = message.key()
        sample.add(key, weight + len(key or b""), partition, partitions)
        size += weight
        if size > MOST_BYTES:
            break
    return sample
