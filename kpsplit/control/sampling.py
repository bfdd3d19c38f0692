"""Samples the newest records of a partition: the load of each key, and the partitioner that placed it."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add

from confluent_kafka import IsolationLevel, Message, consistent, murmur2

from kpsplit.clock import Deadline
from kpsplit.control.plans import Check
from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.log_tail import read_slice
from kpsplit.kafka.logical_message import headers_of
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Stamp

WRITERS = "writers"
LABEL_LENGTH = 60
MOST_BYTES = 64 << 20
LONGEST_SECONDS = 10.0
ENOUGH_KEYED = 20
"""Fewer records with keys than this say nothing about the partitioner."""

EXPLAINED = 0.95
"""The share of records from which on a partitioner explains where they are."""

_HASHING = (Partitioner.CONSISTENT_RANDOM, Partitioner.MURMUR2_RANDOM)
_HASHES = {
    Partitioner.CONSISTENT_RANDOM: crc32,
    Partitioner.MURMUR2_RANDOM: lambda key: murmur2(key, (1 << 31) - 1),
}
"""What a partitioner takes modulo the number of partitions; of murmur2's values one of 2^31 is off."""


@dataclass(slots=True)
class Sample:
    """What the newest records of a partition showed.

    ``points`` are (key hash, bytes) of the records with a key, ``labels`` the keys as printable text.
    ``keyed`` counts the records of which some partitioner has to explain the place, ``explained`` by which
    it is. ``stamped`` counts records that kpsplit's producers wrote there, ``strange`` those after one of
    them that they did not.
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
        """Take the writer of the next record; before the first stamp the topic may not have been enrolled."""
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


def explained_through_growth(hashes: Sequence[int], partition: int, partitions: int) -> int:
    """Return how many records a partitioner explains if the topic had fewer partitions up to one of them.

    Where partitions were added, older records are where the smaller number put them. A number of 1 explains
    every record of partition 0, whatever wrote it: there the newest records must speak for themselves.

    Args:
        hashes: what the partitioner makes of the records' keys, in the order of their offsets.
        partition: where they are.
        partitions: how many the topic has now.
    """
    since = list(accumulate((h % partitions == partition for h in reversed(hashes)), initial=0))[::-1]
    best, length = since[0], len(hashes)
    for fewer in range(max(2, partition + 1), partitions):
        before = accumulate((h % fewer == partition for h in hashes), initial=0)
        best = max(best, *map(add, before, since))
    if partition == 0 and any(
        since[at] >= EXPLAINED * (length - at) for at in range(max(0, length - ENOUGH_KEYED + 1))
    ):
        return length
    return best


def partitioner_check(sample: Sample, partitioner: Partitioner, partitions: int) -> Check:
    """Check that the topic's partitioner explains where sampled records are."""
    name = "partitioner"
    if partitioner is Partitioner.EXPLICIT or partitions == 1:
        return Check(name, True, f"{partitioner}: nothing to compare")
    if sample.keyed < ENOUGH_KEYED:
        return Check(name, True, f"{partitioner}: only {sample.keyed} records with keys, too few to decide")
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
    """Report writers that do not use kpsplit; after a split their records are in the overflow."""
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
    admin: ClusterAdmin,
    place: PhysicalPartition,
    most: int,
    logical: tuple[int, int],
    deadline: Deadline,
    home: int | None = None,
) -> Sample:
    """Read the newest records of a physical partition, committed ones only; bounded in time and bytes.

    Args:
        admin: for the ends of the log.
        place: which partition.
        most: how many records.
        logical: the number of the logical partition, and how many partitions its topic has.
        deadline: of the whole call.
        home: what stamps call the physical partition; None: writers are not looked at.
    """
    end = admin.end_offsets([place], IsolationLevel.READ_COMMITTED).get(place)
    low = admin.start_offsets([place]).get(place)
    if end is None or low is None or most <= 0:
        return Sample()
    limit = Deadline(min(LONGEST_SECONDS, deadline.left()))
    start = max(low, end.offset - most)
    return collected(read_slice(admin.connection, place, start, end.offset, limit), *logical, home)


def collected(
    messages: Iterable[Message], partition: int, partitions: int, home: int | None = None
) -> Sample:
    """Make a sample of records; markers do not count."""
    sample, size = Sample(), 0
    keys: list[bytes] = []
    for message in messages:
        headers = headers_of(message) or []
        if any(name == MARKER_HEADER for name, _ in headers):
            continue
        sample.note_writer(any(name == STAMP_HEADER and _is_stamp(value, home) for name, value in headers))
        weight = len(message)
        key = message.key()
        if key:
            keys.append(key)
        sample.add(key, weight + len(key or b""), partition, partitions)
        size += weight
        if size > MOST_BYTES:
            break
    for partitioner, explained in sample.explained.items():
        if explained < EXPLAINED * sample.keyed:
            hashes = [_HASHES[partitioner](key) for key in keys]
            sample.explained[partitioner] = explained_through_growth(hashes, partition, partitions)
    return sample


def _is_stamp(value: bytes | None, home: int | None) -> bool:
    """Return whether a stamp was made for this log: another program may have copied the record."""
    try:
        return home is None or Stamp.decode(value).is_at(home)
    except FutureVersionError:
        return True
    except RecordError:
        return False
