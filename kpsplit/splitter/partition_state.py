"""The whole state of a logical partition, as the control topic holds it (protocol, section 4).

The life of a logical partition: ONE transition table (protocol, sections 5.1 and 7).

Theory of operation. Between operations a partition is STEADY. An operation (split or merge; both close some
segments and open others) writes its intent and is PREPARING: everything slow happens there, writers run. Then
it is FENCED: producers hold records of the affected segments, resolve what is in flight and acknowledge; the
operator appends its markers (the cut). COMMIT is the commit point: before it an operation can only be rolled
back (ABORT), after it only go forward. A COMMITTED operation still has to seal emptied sub-topics in the
broker; FINISH ends it. If a log turns out to be truncated the partition is FROZEN: writers run on, but no
operation is done until a human decides (THAW).

A pair that is not in the table is illegal. The picture in docs/protocol.md is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import ClassVar

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition


class Phase(StrEnum):
    STEADY = "steady"
    PREPARING = "preparing"
    FENCED = "fenced"
    COMMITTED = "committed"
    FROZEN = "frozen"


class EventKind(StrEnum):
    """What the holder of the operation can record."""

    PREPARE = "prepare"
    FENCE = "fence"
    COMMIT = "commit"
    ABORT = "abort"
    FINISH = "finish"
    RETIRE = "retire"
    FREEZE = "freeze"
    THAW = "thaw"


TRANSITIONS: dict[tuple[Phase, EventKind], Phase] = {
    (Phase.STEADY, EventKind.PREPARE): Phase.PREPARING,
    (Phase.PREPARING, EventKind.FENCE): Phase.FENCED,
    (Phase.FENCED, EventKind.COMMIT): Phase.COMMITTED,
    (Phase.COMMITTED, EventKind.FINISH): Phase.STEADY,
    (Phase.PREPARING, EventKind.ABORT): Phase.STEADY,
    (Phase.FENCED, EventKind.ABORT): Phase.STEADY,
    (Phase.STEADY, EventKind.RETIRE): Phase.STEADY,
    (Phase.STEADY, EventKind.FREEZE): Phase.FROZEN,
    (Phase.COMMITTED, EventKind.FREEZE): Phase.FROZEN,
    (Phase.FROZEN, EventKind.THAW): Phase.STEADY,
}


def next_phase(phase: Phase, event: EventKind) -> Phase:
    """Return the phase after an event; InvariantError if the table has no such transition."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise InvariantError(f"{event} is illegal while the partition is {phase}") from None


class Target(StrEnum):
    PHANTOMS = "phantoms"
    PARENT = "parent"


class OperationKind(StrEnum):
    """How users name an operation; the machine treats both alike."""

    SPLIT = "split"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at an operation. Progress of one attempt never counts for another.

    ``sources`` are the ids of the segments that it closes, ``ranges`` (in rising order) those of the
    segments that it opens; both tile the same range. A split has one source and 2 to ``MAX_RANGES`` ranges; a
    merge has one range, and at least two sources unless it goes back into the parent, which takes the whole
    key space. ``subtopic`` is the sub-topic it creates (None for a merge into the parent).
    ``started_ms`` is the operator's wall clock, for people only: no decision depends on it.
    """

    id: str
    kind: OperationKind
    operator: str
    started_ms: int
    sources: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    target: Target
    subtopic: str | None
    max_pause_ms: int


class Result(StrEnum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class EndedBy(StrEnum):
    """Who ended an attempt."""

    OPERATOR = "operator"
    """The operator itself: it succeeded, or a check or deadline failed."""
    TAKEOVER = "takeover"
    """Somebody else, because the operator was gone."""
    REQUEST = "request"
    """A person, with ``kpsplit abort``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the latest attempt ended, and why."""

    attempt: Attempt
    result: Result
    ended_by: EndedBy
    reason: str


class SubTopicState(StrEnum):
    """What a sub-topic is good for."""

    PREPARED = "prepared"
    ACTIVE = "active"
    SEALED = "sealed"
    """All its segments are closed and the broker rejects every write."""
    RETIRED = "retired"
    ABANDONED = "abandoned"
    """Left over from an attempt that was rolled back; its data are never adopted."""


@dataclass(frozen=True, slots=True)
class SubTopic:
    """A sub-topic of this logical partition. ``topic_id`` is Kafka's, to see a topic that was made anew."""

    name: str
    number: int
    partitions: int
    state: SubTopicState
    topic_id: str | None = None

    @property
    def in_lineage(self) -> bool:
        """Return whether segments are stored there that are not retired."""
        return self.state in (SubTopicState.ACTIVE, SubTopicState.SEALED)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Everything about one logical partition; the value of its control record.

    ``revision`` rises by one with every record: a reader that compares it sees every step or knows that it
    missed some. ``epoch`` rises with every split or merge that took effect, and is never reused.
    """

    parent: PhysicalPartition
    topic_id: str
    revision: int
    epoch: int
    phase: Phase
    lineage: Lineage
    next_split: int
    attempt: Attempt | None = None
    last: Outcome | None = None
    subtopics: tuple[SubTopic, ...] = ()
    frozen_reason: str | None = None

    @classmethod
    @lru_cache(maxsize=1024)
    def unsplit(cls, parent: PhysicalPartition, topic_id: str) -> PartitionState:
        return cls(
            parent=parent,
            topic_id=topic_id,
            revision=0,
            epoch=0,
            phase=Phase.STEADY,
            lineage=Lineage.unsplit(parent),
            next_split=1,
        )

    def subtopic(self, name: str) -> SubTopic | None:
        return next((t for t in self.subtopics if t.name == name), None)

    def is_retired(self, topic: str) -> bool:
        return topic in self.retired()

    def retired(self) -> frozenset[str]:
        """Return the names of the sub-topics that are deleted, or about to be."""
        return frozenset(t.name for t in self.subtopics if t.state is SubTopicState.RETIRED)

    def topic_id_of(self, topic: str) -> str:
        """Return Kafka's id of the parent's topic or of a sub-topic, "" where nobody noted it."""
        subtopic = self.subtopic(topic)
        return self.topic_id if subtopic is None else subtopic.topic_id or ""

    def home(self, source: PhysicalPartition) -> int:
        return home_of(self.topic_id, self.parent.partition, source.topic, source.partition)

    def fenced_segments(self) -> tuple[int, ...]:
        return self.attempt.sources if self.attempt and self.phase is Phase.FENCED else ()

    def closing_segments(self) -> tuple[int, ...]:
        """Return the ids of all segments that the attempt under way closes: its sources and old overflows.

        A merge into the parent ends every open overflow; a merge into a phantom those inside its range.
        """
        if self.attempt is None:
            return ()
        if self.attempt.kind is OperationKind.SPLIT:
            return self.attempt.sources
        merged = KeyRange(self.attempt.ranges[0].lo, self.attempt.ranges[-1].hi)
        overflows = (
            s.id
            for s in self.lineage.open_overflows()
            if self.attempt.target is Target.PARENT or (merged.covers(s.range) and s.source != self.parent)
        )
        return (*self.attempt.sources, *overflows)

    def to_seal(self) -> tuple[SubTopic, ...]:
        in_use = {s.source.topic for s in self.lineage if s.is_open}
        return tuple(t for t in self.subtopics if t.state is SubTopicState.ACTIVE and t.name not in in_use)

    def to_retire(self) -> tuple[SubTopic, ...]:
        """Return the sub-topics that can be deleted once nobody needs their records any more."""
        left = (SubTopicState.SEALED, SubTopicState.ABANDONED)
        return tuple(t for t in self.subtopics if t.state in left)


@dataclass(frozen=True, slots=True)
class Prepare:
    kind: ClassVar[EventKind] = EventKind.PREPARE
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Fence:
    """Hold records now. The sub-topic has this id; every producer answered or was silent for a lease."""

    kind: ClassVar[EventKind] = EventKind.FENCE
    attempt_id: str
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Where one closing segment ends: the offset of the marker, and its leader epoch if known."""

    segment: int
    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """All markers stand: the new layout takes effect. The commit point."""

    kind: ClassVar[EventKind] = EventKind.COMMIT
    attempt_id: str
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    kind: ClassVar[EventKind] = EventKind.ABORT
    attempt_id: str
    ended_by: EndedBy
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """What follows the commit is done (sub-topics that were emptied are sealed in the broker)."""

    kind: ClassVar[EventKind] = EventKind.FINISH
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Retire:
    """A sub-topic was deleted: sealed and drained by every known group, or abandoned."""

    kind: ClassVar[EventKind] = EventKind.RETIRE
    subtopic: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Something contradicts the lineage (a truncated log): no operation until a human decides."""

    kind: ClassVar[EventKind] = EventKind.FREEZE
    reason: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """A human decided to go on, and what a FINISH waits for is done: emptied sub-topics are sealed."""

    kind: ClassVar[EventKind] = EventKind.THAW


Event = Prepare | Fence | Commit | Abort | Finish | Retire | Freeze | Thaw


@lru_cache(maxsize=4096)
def home_of(topic_id: str, partition: int, source_topic: str, source_partition: int) -> int:
    """Return the number of a physical partition in stamps.

    Args:
        topic_id: Kafka's id of the logical partition's topic: a topic of the same name in another cluster, or
            one that was made again, has another.
        partition: the logical partition.
        source_topic: the topic that the records are written to: that topic or a sub-topic.
        source_partition: its partition.
    """
    text = f"{topic_id}/{partition}/{source_topic}/{source_partition}"
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
