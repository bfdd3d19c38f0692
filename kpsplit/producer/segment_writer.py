"""What a fence keeps of one segment, and the forms that a record takes on its way to being final, pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

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
    """A record that the broker acknowledged at an offset, or rejected (offset None)."""

    record: Outgoing[P]
    offset: int | None


@dataclass(slots=True)
class Final(Generic[P]):
    """A record whose fate is certain: at ``offset`` of ``segment``, or (offset None) failed."""

    record: Outgoing[P]
    segment: Segment
    offset: int | None


class SegmentWriter(Generic[P]):
    """One segment as this producer writes to it.

    ``open``: new records may be sent now. ``fenced``: a fence is on that waits for no transaction. ``sent``
    counts records given to librdkafka (guarded by the Producer's lock), ``done`` those whose fate librdkafka
    reported (written only by the thread that polls); a stale ``done`` only makes the fence wait a little
    longer. ``slow`` counts those that were not final when they were reported, or failed, ``final`` those of
    them that were delivered after all. ``pending``: acknowledged, not final yet.
    """

    __slots__ = ("done", "fenced", "final", "open", "pending", "segment", "sent", "slow")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.open = False
        self.fenced = False
        self.sent = 0
        self.done = 0
        self.slow = 0
        self.final = 0
        self.pending: list[Acknowledged[P]] = []

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
        return self.in_flight > 0 or bool(self.pending)
