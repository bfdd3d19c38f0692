"""What a fence keeps of one segment, and the forms that a record takes on its way to being final, pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from kpsplit.splitter.lineage import Segment

P = TypeVar("P")


@dataclass(slots=True)
class Outgoing(Generic[P]):
    """A record that waits to be sent: its key hash (None: no key), sequence number and content."""

    key_hash: int | None
    sequence: int
    payload: P


@dataclass(slots=True)
class Acknowledged(Generic[P]):
    """A record that the broker acknowledged at an offset."""

    record: Outgoing[P]
    offset: int


class Answer(Enum):
    """What a producer was told of a record of which it was not told where it stands."""

    WRITTEN = auto()
    """Acknowledged, without an offset: the acknowledgement of a later record, or of a retry, said so."""
    SEALED = auto()
    """Rejected as by a hard seal. An earlier try may be in the log."""
    GONE = auto()
    """Failed as where a topic was deleted. An earlier try may have been in the log."""


@dataclass(slots=True)
class Unplaced(Generic[P]):
    """A record of which it is not known where it stands, or whether it was written.

    It can only stand at ``earliest`` or behind that.
    """

    record: Outgoing[P]
    answer: Answer
    earliest: int


@dataclass(slots=True)
class Final(Generic[P]):
    """A record whose fate is told: delivered to ``segment``, or failed.

    ``offset``: where it was delivered to; None if it failed, or if nobody knows the place.
    """

    record: Outgoing[P]
    segment: Segment
    offset: int | None
    failed: bool = False


class SegmentWriter(Generic[P]):
    """One segment as this producer writes to it.

    ``end``: where it ended by the view, None while it has no end. ``open``: new records may be sent now.
    ``fenced``: a fence is on that waits for no transaction. ``sent`` counts records given to librdkafka
    (guarded by the Producer's lock), ``done`` those whose fate librdkafka reported (written only by the
    thread that polls); a stale ``done`` only makes the fence wait a little longer. ``slow`` counts those that
    were not final when they were reported, or failed, ``final`` those of them that were delivered after all.
    ``pending``: acknowledged, not final yet; ``unplaced``: nobody knows yet where they stand. ``last_number``
    and ``last_offset``: which record was acknowledged last, and where it stands; whoever writes them writes
    the number first, so that they never claim too much.
    """

    __slots__ = (
        "done", "end", "fenced", "final", "last_number", "last_offset", "open", "pending", "segment", "sent",
        "slow", "unplaced",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.end = segment.end
        self.open = False
        self.fenced = False
        self.sent = 0
        self.done = 0
        self.slow = 0
        self.final = 0
        self.pending: list[Acknowledged[P]] = []
        self.unplaced: list[Unplaced[P]] = []
        self.last_number: int | tuple[int, Any] = -1
        self.last_offset: int | None = None

    @property
    def delivered(self) -> int:
        """How many records were reported to the application as delivered."""
        return self.done - self.slow + self.final

    @property
    def in_flight(self) -> int:
        """How many records are given to librdkafka and not reported back."""
        return self.sent - self.done

    @property
    def unresolved(self) -> bool:
        """Tell whether the fate of any record is open."""
        return self.in_flight > 0 or bool(self.pending) or bool(self.unplaced)

    def earliest(self, sequence: int) -> int:
        """Return the first offset at which a record can stand: behind the one that was acknowledged last.

        That holds for records that were sent later: brokers write what one producer sends in that order.
        """
        number, offset = self.last_number, self.last_offset
        latest = number[0] if isinstance(number, tuple) else number
        return self.segment.start if offset is None or latest >= sequence else offset + 1
