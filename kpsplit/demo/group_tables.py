"""What the consumer group did, as tables: members, drain, range commits. Pure."""

from __future__ import annotations

from kpsplit.control.group_progress import RangeProgress, SegmentLeft
from kpsplit.demo.group.drain import Drain
from kpsplit.demo.group.outcome import GroupOutcome
from kpsplit.demo.rows import Rows


def group_tables(group: GroupOutcome, began: float) -> tuple[Rows, ...]:
    """Return the group's tables; times count from ``began``."""
    return members_table(group), drain_table(group.drains, began), commits_table(group)


def members_table(group: GroupOutcome) -> Rows:
    """Return how the records were shared, and which came twice."""
    shares = [(name, f"{number:,}") for name, number in sorted(group.verdict.shares.items())]
    again = [(f"again after {why}", f"{n:,}") for why, n in sorted(group.verdict.redelivered.items())]
    return Rows("Consumer group", ("", "records"), (*shares, *again))


def drain_table(drains: tuple[Drain, ...], began: float) -> Rows:
    """Return when each closed segment had been read by the whole group."""
    rows = tuple(
        (
            f"{d.segment.id} {d.segment.source}",
            f"{d.segment.length():,}",
            f"{d.closed_at - began:.1f}",
            "–" if d.seconds is None else f"{d.seconds:.1f}",
        )
        for d in drains
    )
    return Rows(
        "Drain of closed segments by the group",
        ("segment", "offsets", "closed at s", "drained after s"),
        rows,
    )


def commits_table(group: GroupOutcome) -> Rows:
    """Return the range commits in the affected partition, in the middle of the play."""
    ranges = () if group.progress is None else group.progress.ranges
    rows = tuple(_row(range_, left) for range_ in ranges for left in range_.left)
    columns = ("range", "owner", "segment", "next offset", "next logical", "lag", "")
    return Rows("Range commits of the group behind the second split", columns, rows)


def _row(range_: RangeProgress, left: SegmentLeft) -> tuple[str, ...]:
    return (
        str(range_.range),
        str(range_.owner or "–"),
        f"{left.segment.id} {left.segment.source}",
        f"{left.next:,}",
        f"{left.logical:,}",
        "–" if left.lag is None else f"{left.lag:,}",
        "waits" if not left.ready else "drains" if left.draining else "",
    )
