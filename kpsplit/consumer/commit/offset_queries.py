"""Questions about logical partitions that brokers have to answer; run in the executor's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, TopicPartition

from kpsplit.consumer.broker_executor import QueryClient
from kpsplit.consumer.commit.group_offsets import ANSWER_SECONDS, GroupOffsets
from kpsplit.consumer.commit.writes import logical_position
from kpsplit.consumer.slots.assigned import StartRequest
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.reading import Cursor


class OffsetQueries:
    """See the module."""

    def __init__(self, group_offsets: GroupOffsets, query_client: QueryClient) -> None:
        self._group_offsets = group_offsets
        self._query_client = query_client

    def committed(self, wanted: Sequence[StartRequest], seconds: float) -> list[tuple[int, str | None]]:
        """Return the group's committed logical offset per partition: everything below it is processed.

        With it the metadata of the ordinary commit, where that is all there is.
        """
        found: list[tuple[int, str | None]] = []
        for asked, pieces in zip(wanted, self._group_offsets.committed(wanted), strict=True):
            known, metadata = [c for _, c in pieces if c is not None], None
            if len(known) < len(pieces):
                parts = self._query_client.committed_parts(asked.lineage.sources(), seconds)
                ordinary = {place: part.offset for place, part in parts.items()}
                if asked.mode.plain and parts:
                    metadata = parts[asked.lineage.parent].metadata
                if ordinary:
                    cursor = Cursor.from_positions(asked.lineage, WHOLE, ordinary)
                    known += [cursor.narrowed(r) for r, c in pieces if c is None]
            offset = logical_position(asked.lineage, known) if known else OFFSET_INVALID
            found.append((offset, metadata))
        return found

    def cursor_at(self, lineage: Lineage, offset: int) -> Cursor | None:
        """Return a whole partition's cursor for an offset that an application gave; None: as committed."""
        if offset == OFFSET_BEGINNING:
            return self._group_offsets.reset(lineage, "earliest")
        if offset == OFFSET_END:
            return self._group_offsets.reset(lineage, "latest")
        if offset < 0:
            return None
        return Cursor.from_logical(lineage, WHOLE, offset, self._group_offsets.ends(lineage))

    def watermarks(self, lineage: Lineage, seconds: float) -> tuple[int, int]:
        """Return the least logical offset that can be read, and one more than the greatest."""
        lows = self._group_offsets.admin.start_offsets(lineage.sources(), seconds)
        ends = self._group_offsets.ends(lineage)
        high = max([lineage.next_logical(), *(_after(lineage.get(i), end) for i, end in ends.items())])
        left = [
            segment.logical(first)
            for segment in lineage
            if segment.source in lows
            and (first := max(segment.start, lows[segment.source]))
            < ends.get(segment.id, segment.end or first)
        ]
        return min(left, default=high), high

    def at_times(self, lineage: Lineage, milliseconds: int, seconds: float) -> int:
        """Return the least logical offset of records that are not older; OFFSET_END if there is none."""
        asked = [TopicPartition(s.topic, s.partition, milliseconds) for s in lineage.sources()]
        answers = self._query_client.client.offsets_for_times(asked, timeout=seconds)
        offsets = {PhysicalPartition(p.topic, p.partition): p.offset for p in answers if p.offset >= 0}
        return min(_first_numbers(lineage, offsets), default=OFFSET_END)


def _first_numbers(lineage: Lineage, offsets: Mapping[PhysicalPartition, int]) -> list[int]:
    return [
        segment.logical(max(segment.start, offsets[segment.source]))
        for segment in lineage
        if segment.source in offsets and (segment.end is None or offsets[segment.source] < segment.end)
    ]


def _after(segment: Segment, end: int) -> int:
    return segment.logical(end - 1) + 1 if end > segment.start else 0


def seconds_of(timeout: Any) -> float:
    """Return an application's timeout in seconds; None and negative ones mean the default."""
    return ANSWER_SECONDS if timeout is None or timeout < 0 else float(timeout)
