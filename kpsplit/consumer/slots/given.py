"""Where partitions begin for a program that keeps its positions itself and gives them in on_assign. Pure.

What it gave is of the whole logical partition, whichever of its slots were there. So it holds for slots
that arrive later too, for which on_assign is not called, where the group has no commit of them: in the place
of ``auto.offset.reset``, which might pass over what nobody has read. (A commit is somebody's progress behind
what was given then, and never goes back.) A program that is asked again gives anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import PhysicalPartition

EARLIEST: Literal["earliest"] = "earliest"
GivenStart = Cursor | Literal["earliest"]
"""A place, or wherever the partition begins when it is asked for: retention moves that."""


class Given:
    """See the module. Owned by the engine's thread."""

    def __init__(self) -> None:
        self._starts: dict[PhysicalPartition, GivenStart] = {}

    def take(self, starts: Mapping[PhysicalPartition, GivenStart | None]) -> None:
        """Keep what on_assign gave; None leaves a partition to the group's commits."""
        self.forget(starts)
        self._starts.update({parent: start for parent, start in starts.items() if start is not None})

    def forget(self, parents: Iterable[PhysicalPartition]) -> None:
        """The program is asked again."""
        for parent in parents:
            self._starts.pop(parent, None)

    def start(self, parent: PhysicalPartition) -> GivenStart | None:
        """Return where a partition begins, None if the program gave nothing for it."""
        return self._starts.get(parent)
