"""Plans of splits and merges: what would be done, what it is predicted to do, which checks hold.

A plan is a value: it can be shown, saved to a file, and run later as long as the partition still is at the
epoch that it was made for. It names no sub-topic number that must hold: that is chosen anew when it is run.

What a plan rests on is a ``Sample`` of the newest records: the load of each key, and the partitioner that
placed it.
"""

from __future__ import annotations

import uuid
from binascii import crc32
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from operator import add
from typing import Any

from confluent_kafka import IsolationLevel, Message, consistent, murmur2

from kpsplit.clock import Deadline, wall_ms
from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.log_tail import read_slice
from kpsplit.kafka.logical_message import headers_of
from kpsplit.splitter.key_range import KeyRange, is_row, key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, OperationKind, PartitionState, Target
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Stamp
from kpsplit.splitter.records.keys import is_topic_name, place_field
from kpsplit.splitter.records.strict_json import Fields, decode, encode_readable, form_of

VERSION = 1
LONGEST_LABEL = 200
_LONGEST_MESSAGE = 2000
_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One named check: its answer, what was found, and what to do about it.

    ``forceable``: a failed check that ``--force`` passes over; the others are never passed over.
    """

    name: str
    ok: bool
    message: str
    remedy: str = ""
    forceable: bool = False


@dataclass(frozen=True, slots=True)
class HotKey:
    """A heavy key of the sample: its hash, its share of the load (0..1), the key as printable text."""

    key_hash: int
    share: float
    label: str


@dataclass(frozen=True, slots=True)
class Drain:
    """What one group has before it. ``seconds``: about how long that takes; None: it was not seen to move."""

    group: str
    left: int
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time whose records were all looked at, in ms since 1970; ``since_ms`` None: from the earliest on.

    ``until_ms``: when looking began; what came during it may be in it as well.
    """

    since_ms: int | None
    until_ms: int

    @classmethod
    def until_now(cls, since_ms: int | None) -> Stretch:
        return cls(since_ms, wall_ms())


@dataclass(frozen=True, slots=True)
class Plan:
    """One operation, planned. ``shares`` are parts of the load, to six digits; None: nothing was sampled.

    ``drains``: what groups have to read before they go on with what a merge opens, the slowest first.
    ``stretch``: what the shares were found in; None: in a sample of the newest records.
    """

    parent: PhysicalPartition
    kind: OperationKind
    epoch: int
    topic_id: str
    sources: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    target: Target
    subtopic: str | None
    shares: tuple[float, ...] | None
    heaviest: tuple[HotKey, ...]
    sampled: int
    useful: bool
    note: str
    checks: tuple[Check, ...]
    made_ms: int
    drains: tuple[Drain, ...] = ()
    stretch: Stretch | None = None

    def problems(self, force: bool = False) -> tuple[Check, ...]:
        """Return the failed checks that forbid running the plan: first those that no ``--force`` passes."""
        failed = (c for c in self.checks if not c.ok and not (force and c.forceable))
        return tuple(sorted(failed, key=lambda check: check.forceable))

    def attempt(self, operator: str, max_pause_ms: int) -> Attempt:
        """Return a new attempt, with an id of its own, at what is planned."""
        what = self.kind, operator, wall_ms(), self.sources, self.ranges, self.target, self.subtopic
        return Attempt(new_attempt_id(), *what, max_pause_ms)

    def encode(self) -> bytes:
        """Return the content of a plan file."""
        return encode_readable(_to_json(self), Plan.decode)

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Read a plan file.

        Raises:
            RecordError: it is none. FutureVersionError: a newer kpsplit wrote it.
        """
        fields = decode(data, "plan", VERSION)
        plan = cls(
            parent=place_field(fields),
            kind=fields.choice("kind", OperationKind),
            epoch=fields.integer("epoch", 0, 0xFFFFFFFF),
            topic_id=fields.text("topic_id", 100),
            sources=fields.integers("sources"),
            ranges=fields.objects("ranges", _range),
            target=fields.choice("target", Target),
            subtopic=fields.optional_text("subtopic", 249),
            shares=fields.optional_object("shares", _shares),
            heaviest=fields.objects("heaviest", _hot_key),
            sampled=fields.integer("sampled"),
            useful=fields.boolean("useful"),
            note=fields.text("note", _LONGEST_MESSAGE),
            checks=fields.objects("checks", _check),
            made_ms=fields.integer("made_ms"),
            drains=fields.objects("drains", _drain),
            stretch=fields.optional_object("stretch", _stretch),
        )
        fields.done()
        _check_shape(plan)
        return plan


def new_attempt_id() -> str:
    return uuid.uuid4().hex


def shortened(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _to_json(plan: Plan) -> dict[str, Any]:
    form = form_of(plan)
    del form["parent"]
    return {
        **form,
        "v": VERSION,
        "topic": plan.parent.topic,
        "partition": plan.parent.partition,
        "ranges": [form_of(r) for r in plan.ranges],
        "shares": None if plan.shares is None else {"ppm": [round(s * _PPM) for s in plan.shares]},
        "heaviest": [
            {"key_hash": k.key_hash, "share_ppm": round(k.share * _PPM), "label": k.label}
            for k in plan.heaviest
        ],
        "note": shortened(plan.note),
        "checks": [
            form_of(replace(c, message=shortened(c.message), remedy=shortened(c.remedy))) for c in plan.checks
        ],
        "drains": [form_of(d) for d in plan.drains],
        "stretch": plan.stretch and form_of(plan.stretch),
    }


def _stretch(fields: Fields) -> Stretch:
    return Stretch(fields.optional_integer("since_ms"), fields.integer("until_ms"))


def _range(fields: Fields) -> KeyRange:
    lo, hi = fields.integer("lo"), fields.integer("hi")
    return fields.guard(lambda: KeyRange(lo, hi))


def _shares(fields: Fields) -> tuple[float, ...]:
    shares = fields.integers("ppm")
    if any(ppm > _PPM for ppm in shares):
        fields.fail("a share is over 1")
    return tuple(ppm / _PPM for ppm in shares)


def _hot_key(fields: Fields) -> HotKey:
    return HotKey(
        fields.integer("key_hash", 0, 0xFFFFFFFF),
        fields.integer("share_ppm", 0, _PPM) / _PPM,
        fields.text("label", LONGEST_LABEL),
    )


def _check(fields: Fields) -> Check:
    return Check(
        fields.text("name"),
        fields.boolean("ok"),
        fields.text("message", _LONGEST_MESSAGE),
        fields.text("remedy", _LONGEST_MESSAGE),
        fields.boolean("forceable"),
    )


def _drain(fields: Fields) -> Drain:
    return Drain(
        fields.text("group", _LONGEST_MESSAGE), fields.integer("left"), fields.optional_integer("seconds")
    )


def _check_shape(plan: Plan) -> None:
    if not plan.sources or not plan.ranges:
        raise RecordError("plan: no sources or no ranges")
    if len(set(plan.sources)) != len(plan.sources) or not is_row(plan.ranges):
        raise RecordError("plan: sources that stand twice, or ranges that do not follow each other")
    if plan.subtopic is not None and not is_topic_name(plan.subtopic):
        raise RecordError("plan: subtopic is not a topic's name")
    if plan.shares is not None and len(plan.shares) != len(plan.ranges):
        raise RecordError("plan: as many shares as ranges are needed")


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
        remedy = f"use {Partitioner.EXPLICIT} if the application chooses partitions itself"
        return Check(name, False, found, remedy)
    remedy = "some writers partition otherwise: find them, or go on with --force"
    return Check(name, False, found, remedy, forceable=True)


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


LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999, the latest time that can be shown."""


def under_way(state: PartitionState) -> str | None:
    """Return which operator does what since when, None if no operation is in progress."""
    attempt = state.attempt
    if attempt is None:
        return None
    since = datetime.fromtimestamp(min(attempt.started_ms, LATEST_MS) / 1000, UTC)
    since_text = f"{since:%Y-%m-%d %H:%M:%S} UTC"
    what = f"a {attempt.kind} by {attempt.operator}"
    return f"{state.parent}: {what} is in progress since {since_text} ({state.phase})"


def attempt_age(attempt: Attempt | None) -> float | None:
    """Return the seconds since an attempt began, by wall clocks: for people only."""
    return None if attempt is None else max(0.0, (wall_ms() - attempt.started_ms) / 1000)
