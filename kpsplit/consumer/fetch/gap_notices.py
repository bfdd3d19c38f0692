"""Which gaps of one logical partition the application was told of. Pure.

Reading goes on behind a gap only when the application was told of all of it: what lies behind could be
committed, and a member that is killed then would leave a gap that nobody was ever told of. A gap that nobody
was told of stays before the committed position, so that the next owner finds it by itself.

A slot that came later may have stood further back in the same gap: what it missed besides is told as well.
"""

from __future__ import annotations

from collections import defaultdict

from kpsplit.consumer.fetch.lineage_reader import Gap, GapReason

_Kind = tuple[int, GapReason]
"""Segment and reason."""


class GapNotices:
    """See the module. Not thread safe."""

    def __init__(self) -> None:
        self._given: defaultdict[_Kind, _Spans] = defaultdict(_Spans)
        self._told: defaultdict[_Kind, _Spans] = defaultdict(_Spans)

    def new(self, gap: Gap) -> int:
        """Return how many records of a gap were not reported yet."""
        return self._given[_kind(gap)].missing(gap.start, gap.end)

    def given(self, gap: Gap) -> None:
        """A gap was reported: to be noted behind the report, which an exception may end."""
        self._given[_kind(gap)].add(gap.start, gap.end)

    def told(self, gap: Gap) -> None:
        """The application was told of a gap."""
        self._told[_kind(gap)].add(gap.start, gap.end)

    def knows(self, gap: Gap) -> bool:
        """Tell whether the application was told of all of a gap."""
        return self._told[_kind(gap)].cover(gap.start, gap.end)


class _Spans:
    """Offsets, as stretches [start, end) that do not touch each other."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def missing(self, start: int, end: int) -> int:
        """Return how much of a stretch was not added."""
        return end - start - sum(min(e, end) - max(s, start) for s, e in self._near(start, end))

    def add(self, start: int, end: int) -> None:
        """Add a stretch."""
        near = self._near(start, end)
        whole = min([start, *(s for s, _ in near)]), max([end, *(e for _, e in near)])
        self._spans = [*(span for span in self._spans if span not in near), whole]

    def _near(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the stretches that overlap or touch one."""
        return [span for span in self._spans if span[0] <= end and start <= span[1]]

    def cover(self, start: int, end: int) -> bool:
        """Tell whether all of a stretch was added."""
        return start >= end or any(s <= start and end <= e for s, e in self._spans)


def _kind(gap: Gap) -> _Kind:
    return gap.segment, gap.reason
