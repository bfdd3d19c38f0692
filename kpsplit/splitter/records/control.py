"""Values of the control topic: a partition's state, a topic's enrolment, the cluster's settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kpsplit.errors import ConfigurationError, RecordError
from kpsplit.splitter.key_range import KEY_SPACE, MAX_SLOTS, KeyRange, is_row, slot_number
from kpsplit.splitter.lineage import MAX_OFFSET, Lineage, PhysicalPartition, Progression, Segment, SegmentKind
from kpsplit.splitter.partition_state import (
    Attempt,
    EndedBy,
    OperationKind,
    Outcome,
    PartitionState,
    Phase,
    Result,
    SubTopic,
    SubTopicState,
    Target,
)
from kpsplit.splitter.records.keys import (
    MOST_GENERATIONS,
    enrolment_key,
    is_topic_name,
    partition_key,
    place_field,
    slots_topic,
    topic_field,
)
from kpsplit.splitter.records.strict_json import MAX_BYTES, Fields, decode, encode_readable, form_of

VERSION = 1

ENROLMENT_VERSION = 4
"""Version 1 had no ``slots``, version 2 only the first number of them, version 3 no way back."""

DEFAULT_LEASE_MS = 5000

LOOK_LEASE_MS = 3000
"""The lease of producers while the cluster has no settings yet: how long "nothing is enrolled" stays good."""

ROOM_TO_END = 100_000
"""Bytes kept free when an attempt begins, for the segments it opens and the record of how it ended.

As much again is kept free for the merge after what leaves the partition split: it must not stay split.
"""


_NO_ROOM = (
    "no further operation is possible on this partition, clients go on with it as it is; "
    "to divide its load further use a new topic"
)


class Partitioner(StrEnum):
    """How the applications of a topic choose the partition of a key."""

    CONSISTENT_RANDOM = "consistent_random"
    """librdkafka's default: CRC-32; records with no key or an empty key anywhere."""
    MURMUR2_RANDOM = "murmur2_random"
    """Java's default: murmur2; records with no key anywhere."""
    EXPLICIT = "explicit"
    """The application names the partition of every record."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster's settings. ``lease_ms``: how long a producer's view of the control topic stays good."""

    lease_ms: int = DEFAULT_LEASE_MS


@dataclass(frozen=True, slots=True)
class SlotDivision:
    """A number of slots per partition, and the topic whose partitions stand for them."""

    topic: str
    slots: int

    def places(self, partition: int) -> tuple[PhysicalPartition, ...]:
        """Return what stands for the slots of a logical partition, in the order of their key ranges."""
        numbers = (slot_number(partition, index, self.slots) for index in range(self.slots))
        return tuple(PhysicalPartition(self.topic, number) for number in numbers)


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A topic whose partitions may be split.

    ``settled``: one lease has passed since it was recorded. ``slots``: how many key ranges of each partition
    the members of a group share (None: recorded by an older version). ``generation``: which number of slots
    this is of those that the topic has had. ``former_slots``: the number before it, until the operator has
    found no member by it and has deleted its slots topic. ``returning``: the topic goes back to plain clients
    and has no slots, or is back with them (protocol, section 10.16).
    """

    topic: str
    topic_id: str
    partitioner: Partitioner
    settled: bool
    slots: int | None = None
    generation: int = 1
    former_slots: int | None = None
    returning: bool = False

    @property
    def left(self) -> bool:
        """Whether the topic is back with plain clients; the record keeps what must not be used again."""
        return self.returning and self.settled and self.former_slots is None

    def check_partitioner(self, configured: str) -> None:
        """Raise ConfigurationError for a producer that would choose partitions otherwise than the topic's."""
        if self.partitioner not in (Partitioner.EXPLICIT, configured):
            raise ConfigurationError(
                f"topic {self.topic} is enrolled with partitioner={self.partitioner}, "
                f"this producer has partitioner={configured}",
                hint=f"set partitioner={self.partitioner}",
            )

    @property
    def slots_topic(self) -> str:
        """The topic whose partitions stand for the slots."""
        return slots_topic(self.topic, self.generation)

    @property
    def former(self) -> SlotDivision | None:
        """The slots before these, while members of a group may have them."""
        if self.former_slots is None:
            return None
        return SlotDivision(slots_topic(self.topic, self.generation - 1), self.former_slots)

    @property
    def change_text(self) -> str:
        """What is under way if there are ``former`` slots, or the topic is ``returning``."""
        if self.returning:
            return f"topic {self.topic} is being returned to plain clients"
        return f"the slots of {self.topic} are being changed from {self.former_slots} to {self.slots}"

    @property
    def split_obstacle(self) -> str | None:
        """Why no split may begin, None if nothing forbids it; its operator reads this after its claim."""
        if self.returning:
            return self.change_text
        if not self.settled and self.former_slots is None:
            return f"the enrolment of {self.topic} is not settled: a producer may not know of it yet"
        return None

    @property
    def divisions(self) -> tuple[SlotDivision, ...]:
        """The slots by which members may share the topic, the former ones first."""
        present = None if self.slots is None else SlotDivision(self.slots_topic, self.slots)
        return tuple(division for division in (self.former, present) if division is not None)


def encode_settings(settings: Settings) -> bytes:
    return encode_readable({"v": VERSION, **form_of(settings)}, decode_settings)


def decode_settings(data: bytes | None) -> Settings:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote them."""
    fields = decode(data, "settings", VERSION)
    settings = Settings(fields.integer("lease_ms", 100, 600_000))
    fields.done()
    return settings


def encode_enrolment(enrolment: Enrolment) -> bytes:
    return encode_readable({"v": ENROLMENT_VERSION, **form_of(enrolment)}, decode_enrolment)


def decode_enrolment(data: bytes | None) -> Enrolment:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
    fields = decode(data, "enrolment", ENROLMENT_VERSION)
    changeable = fields.version > 2
    enrolment = Enrolment(
        topic_field(fields, "topic"),
        fields.text("topic_id", 100),
        fields.choice("partitioner", Partitioner),
        fields.boolean("settled"),
        fields.optional_integer("slots", 1, MAX_SLOTS) if fields.version > 1 else None,
        fields.integer("generation", 1, MOST_GENERATIONS) if changeable else 1,
        fields.optional_integer("former_slots", 1, MAX_SLOTS) if changeable else None,
        fields.boolean("returning") if fields.version > 3 else False,
    )
    fields.done()
    first = (enrolment.slots is None and not enrolment.returning) or enrolment.generation == 1
    if enrolment.returning and (enrolment.slots is not None or enrolment.generation == 1):
        fields.fail("returning with slots, or without having had any")
    if enrolment.former_slots is not None and (first or enrolment.former_slots == enrolment.slots):
        fields.fail("former_slots without a change of the number of slots")
    return enrolment


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """Return the form of a segment in the control topic and in ``kpsplit lineage -o json``."""
    return {
        "id": segment.id,
        "kind": segment.kind.value,
        "range": [segment.range.lo, segment.range.hi],
        "source_topic": segment.source.topic,
        "source_partition": segment.source.partition,
        "start": segment.start,
        "end": segment.end,
        "base": segment.progression.base,
        "stride": segment.progression.stride,
        "predecessors": list(segment.predecessors),
        "opened_epoch": segment.opened_epoch,
        "closed_epoch": segment.closed_epoch,
        "end_leader_epoch": segment.end_leader_epoch,
    }


def encode_state(state: PartitionState) -> bytes:
    """Return the value of a partition's control record.

    Raises:
        RecordError: a field is over its limit, or the record is too large; an attempt begins only where what
            follows it (commit, finish, abort, and the merge into the parent) has room as well.
    """
    last = state.last and {**form_of(state.last), "attempt": attempt_to_json(state.last.attempt)}
    data = encode_readable(
        {
            "v": VERSION,
            "topic": state.parent.topic,
            "partition": state.parent.partition,
            "topic_id": state.topic_id,
            "revision": state.revision,
            "epoch": state.epoch,
            "phase": state.phase.value,
            "segments": [segment_to_json(s) for s in state.lineage],
            "next_split": state.next_split,
            "attempt": None if state.attempt is None else attempt_to_json(state.attempt),
            "last": last,
            "subtopics": [form_of(t) for t in state.subtopics],
            "frozen_reason": state.frozen_reason,
        },
        decode_state,
    )
    if state.attempt is not None and state.phase is Phase.PREPARING:
        goes_back = state.attempt.target is Target.PARENT
        if len(data) > MAX_BYTES - ROOM_TO_END * (1 if goes_back else 2):
            split = all(s.kind is not SegmentKind.PARENT for s in state.lineage.open_segments())
            raise RecordError(
                f"{state.parent}: its lineage is too long for this operation ({len(data)} bytes)",
                hint="merge it back into its parent" if split and not goes_back else _NO_ROOM,
            )
    return data


def decode_state(data: bytes | None, before: PartitionState | None = None) -> PartitionState:
    """Read a partition's state; a state that breaks an invariant is rejected like any malformed record.

    ``before``: an earlier state, if one is known. What it has of the lineage is not read again: a lineage
    grows with every operation, and each producer reads it in the pause of the next.

    Raises:
        RecordError: malformed. FutureVersionError: written by a newer kpsplit.
    """
    fields = decode(data, "partition state", VERSION)
    parent = place_field(fields)
    known = () if before is None or data is None or _may_hold_booleans(data) else before.lineage.segments
    segments = fields.objects("segments", _segment, ((segment_to_json(s), s) for s in known))
    if not segments:
        fields.fail("no segments")
    lineage = Lineage(parent, segments)
    if before is not None and lineage == before.lineage:
        lineage = before.lineage
    else:
        fields.guard(lineage.check)
    state = PartitionState(
        parent=parent,
        topic_id=fields.text("topic_id", 100),
        revision=fields.integer("revision"),
        epoch=fields.integer("epoch", 0, 0xFFFFFFFF),
        phase=fields.choice("phase", Phase),
        lineage=lineage,
        next_split=fields.integer("next_split", 1),
        attempt=fields.optional_object("attempt", _attempt),
        last=fields.optional_object("last", _outcome),
        subtopics=fields.objects("subtopics", _subtopic),
        frozen_reason=fields.optional_text("frozen_reason", 2000),
    )
    fields.done()
    _check_phase(fields, state)
    return state


def _may_hold_booleans(data: bytes) -> bool:
    """Return whether a record may hold what equals a number in Python and is none."""
    return b"true" in data or b"false" in data


def _check_phase(fields: Fields, state: PartitionState) -> None:
    under_way = state.phase in (Phase.PREPARING, Phase.FENCED, Phase.COMMITTED)
    if under_way and state.attempt is None:
        fields.fail(f"phase {state.phase} without an attempt")
    if state.phase is Phase.STEADY and state.attempt is not None:
        fields.fail("phase steady with an attempt")
    if (state.phase is Phase.FROZEN) != (state.frozen_reason is not None):
        fields.fail("frozen_reason belongs to phase frozen and to no other")
    if state.epoch != max(s.opened_epoch for s in state.lineage):
        fields.fail("the epoch is not that of the newest segment")
    if any(s.closed_epoch is not None and s.closed_epoch > state.epoch for s in state.lineage):
        fields.fail("a segment is closed in an epoch that was not reached")
    if any(s.end is not None and s.logical(s.end) > MAX_OFFSET for s in state.lineage):
        fields.fail("a logical offset is over 2^63 - 1")
    if len({t.name for t in state.subtopics}) != len(state.subtopics):
        fields.fail("a sub-topic is listed twice")
    if state.attempt:
        _check_attempt(fields, state, state.attempt)


def _check_attempt(fields: Fields, state: PartitionState, attempt: Attempt) -> None:
    named = frozenset(attempt.sources)
    sources = [s for s in state.lineage if s.id in named]
    if len(sources) != len(attempt.sources):
        fields.fail("the attempt names an unknown segment")
    before = state.phase in (Phase.PREPARING, Phase.FENCED)
    if any(s.is_open != before for s in sources):
        fields.fail(f"phase {state.phase} contradicts the segments that the attempt closes")
    if attempt.subtopic is not None and state.subtopic(attempt.subtopic) is None:
        fields.fail("the attempt names an unknown sub-topic")


def _range(fields: Fields, pair: Any) -> KeyRange:
    if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_bound, pair)):
        fields.fail("a range is not a pair of integers from 0 to 2^32")
    return fields.guard(lambda: KeyRange(pair[0], pair[1]))


def _is_bound(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= KEY_SPACE


def _segment(fields: Fields) -> Segment:
    kind = fields.choice("kind", SegmentKind)
    range_ = _range(fields, fields.items("range", 2))
    base, stride = fields.integer("base"), fields.integer("stride", 1)
    segment_id, start, end = fields.integer("id"), fields.integer("start"), fields.optional_integer("end")
    source = place_field(fields, "source_")
    predecessors = fields.integers("predecessors")
    opened, closed = fields.integer("opened_epoch"), fields.optional_integer("closed_epoch")
    leader_epoch = fields.optional_integer("end_leader_epoch")
    return fields.guard(
        lambda: Segment(
            id=segment_id,
            kind=kind,
            range=range_,
            source=source,
            start=start,
            progression=Progression(base, stride),
            opened_epoch=opened,
            predecessors=predecessors,
            end=end,
            closed_epoch=closed,
            end_leader_epoch=leader_epoch,
        )
    )


def attempt_to_json(attempt: Attempt) -> dict[str, Any]:
    return {**form_of(attempt), "ranges": [[r.lo, r.hi] for r in attempt.ranges]}


def _attempt(fields: Fields) -> Attempt:
    attempt = Attempt(
        id=fields.text("id", 64),
        kind=fields.choice("kind", OperationKind),
        operator=fields.text("operator"),
        started_ms=fields.integer("started_ms"),
        sources=fields.integers("sources"),
        ranges=tuple(_range(fields, pair) for pair in fields.items("ranges")),
        target=fields.choice("target", Target),
        subtopic=fields.optional_text("subtopic", 249),
        max_pause_ms=fields.integer("max_pause_ms", 1),
    )
    if attempt.subtopic is not None and not is_topic_name(attempt.subtopic):
        fields.fail("subtopic is not a topic's name")
    if not attempt.sources or not attempt.ranges:
        fields.fail("an attempt without sources or ranges")
    if not is_row(attempt.ranges):
        fields.fail("the ranges of an attempt do not follow each other")
    return attempt


def _outcome(fields: Fields) -> Outcome:
    attempt = fields.optional_object("attempt", _attempt)
    if attempt is None:
        fields.fail("an outcome without an attempt")
    return Outcome(
        attempt,
        fields.choice("result", Result),
        fields.choice("ended_by", EndedBy),
        fields.text("reason", 2000),
    )


def _subtopic(fields: Fields) -> SubTopic:
    return SubTopic(
        topic_field(fields, "name"),
        fields.integer("number", 1),
        fields.integer("partitions", 1),
        fields.choice("state", SubTopicState),
        fields.optional_text("topic_id", 100),
    )


CLAIM_VERSION = 1
_SUFFIX = b"/claim"
RESERVED = 0
"""The round in which producers settle who takes over, before that is due."""
MOST_ROUNDS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """``revision``: of the state that the claimer saw. ``round``: of claims of that revision; 0 reserves."""

    claimer: str
    revision: int
    round: int


def claim_key(parent: PhysicalPartition) -> bytes:
    return partition_key(parent) + _SUFFIX


def enrolment_claim_key(topic: str) -> bytes:
    """Return the key of the record up to which a claim of a topic's enrolment reads; it has no value."""
    return enrolment_key(topic) + _SUFFIX


def is_claim_key(key: bytes | None) -> bool:
    return key is not None and key.endswith(_SUFFIX)


def claimed_key(key: bytes) -> bytes:
    return key.removesuffix(_SUFFIX)


def encode_claim(claim: Claim) -> bytes:
    return encode_readable({"v": CLAIM_VERSION, **form_of(claim)}, decode_claim)


def decode_claim(data: bytes | None) -> Claim:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
    fields = decode(data, "claim", CLAIM_VERSION)
    claim = Claim(
        fields.text("claimer", 64), fields.integer("revision"), fields.integer("round", RESERVED, MOST_ROUNDS)
    )
    fields.done()
    return claim
