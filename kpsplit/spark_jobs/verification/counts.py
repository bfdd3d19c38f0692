"""Spark's small result tables as plain rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.spark_jobs.schemas import Fate

BUCKET_BITS = 6
BLOCK_BITS = 16
"""2^16 sequence numbers are a block: what the driver looks at first."""

BLOCK = 1 << BLOCK_BITS
BUCKET = 1 << BUCKET_BITS
"""So many sequence numbers are the bits of one integer."""

Who = tuple[int, str]
"""Partition, producer."""

BlockKey = tuple[int, str, int]
"""Partition, producer, block."""


@dataclass(frozen=True, slots=True)
class Total:
    """Records of one segment (None: of no segment) with one fate; offsets are physical."""

    partition: int
    segment: int | None
    fate: Fate
    stamped: bool
    records: int
    misplaced: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A producer's data in one segment; ``descents``: 0 if its numbers rise in the log."""

    partition: int
    segment: int
    producer: str
    records: int
    descents: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SequenceBlock:
    """How many of 2^16 numbers of a producer are there, how often, and how many of them went astray.

    ``unsent``: strays whose numbers are not there; ``answered``: strays whose numbers are.
    """

    numbers: int
    records: int
    unsent: int
    answered: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """64 numbers of a producer: which are data, which strays (bits), how many records the data are.

    ``after_gap``: nothing is there of the 64 numbers before, which are on the same block.
    """

    partition: int
    producer: str
    bucket: int
    data: int
    strays: int
    records: int
    after_gap: bool = False

    @property
    def block(self) -> BlockKey:
        """The block that it stands on."""
        return self.partition, self.producer, self.bucket * BUCKET // BLOCK
