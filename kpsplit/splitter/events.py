"""What the holder of an operation records: the events that change a partition's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kpsplit.splitter.partition_state import Attempt, EndedBy
from kpsplit.splitter.states import EventKind


@dataclass(frozen=True, slots=True)
class Prepare:
    """An attempt begins: the intent is on record."""

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
    """The attempt is rolled back; the old layout stays."""

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
