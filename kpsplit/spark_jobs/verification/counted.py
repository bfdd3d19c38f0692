"""Spark's small result tables as plain rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kpsplit.spark_jobs.schemas import Fate


@dataclass(frozen=True, slots=True)
class Total:
    """Records of one segment (None: of no segment) with one fate; offsets are physical."""

    partition: int
    segment: int | None
    fate: Fate
    stamped: bool
    records: int
    wrong: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Span:
    """A producer's data in one segment; ``descents``: 0 if its numbers rise in the log."""

    partition: int
    segment: int
    producer: str
    records: int
    descents: int
    first: int
    last: int


def added_up(totals: Iterable[Total]) -> list[Total]:
    """Return the totals with those of one segment and fate made one."""
    found: dict[tuple[int, int | None, Fate, bool], Total] = {}
    for t in totals:
        key = t.partition, t.segment, t.fate, t.stamped
        known = found.get(key)
        found[key] = (
            t
            if known is None
            else replace(
                known,
                records=known.records + t.records,
                wrong=known.wrong + t.wrong,
                first=min(known.first, t.first),
                last=max(known.last, t.last),
            )
        )
    return list(found.values())
