"""What the reading side reports besides records."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.consumer.fetch.lineage_reader import Gap, GapReason
from kpsplit.errors import KpsplitError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import ForeignReason


@dataclass(frozen=True, slots=True)
class GapFound:
    """Records are gone: ``records`` of them were not reported before.

    ``error`` says so where the policy is to stop; None: reading goes on behind them.
    """

    parent: PhysicalPartition
    gap: Gap
    records: int
    error: KpsplitError | None


@dataclass(frozen=True, slots=True)
class ForeignFound:
    """Records that contradict the lineage were skipped: ``count`` of them, the first at ``offset``."""

    parent: PhysicalPartition
    source: PhysicalPartition
    offset: int
    count: int
    reason: ForeignReason


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A physical partition cannot be read: tried again where ``error.retriable``, else left alone.

    Both are None for trouble of the whole client. ``reason``: why records are gone, if they are.
    """

    parent: PhysicalPartition | None
    source: PhysicalPartition | None
    error: KpsplitError
    reason: GapReason | None = None


@dataclass(frozen=True, slots=True)
class EndReached:
    """Everything that is there was read; ``offset`` is the greatest next logical offset of its segments."""

    parent: PhysicalPartition
    offset: int


ReadingEvent = GapFound | ForeignFound | Unreadable | EndReached
