"""Spark's small result tables as plain rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
