"""Where partitions begin for a program that keeps its positions itself and gives them in on_assign. Pure.

What it gave is of the whole logical partition, whichever of its slots were there. So it holds for slots
that arrive later too: on_assign is not called for them, and the group may have no commit of them. A program
that is asked again, for a partition that was gone or of which slots were taken, gives anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kpsplit.consumer.batch import OwnedSlot
from kpsplit.consumer.ledger import Start
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import Lineage, PhysicalPartition


class Given:
    """See the module. Owned by the engine's thread."""

    def __init__(self) -> None:
        self._cursors: dict[PhysicalPartition, Cursor] = {}

    def take(self, cursors: Mapping[PhysicalPartition, Cursor | None]) -> None:
        """Keep what on_assign gave; None leaves a partition to the group's commits."""
        self.forget(cursors)
        self._cursors.update({parent: cursor for parent, cursor in cursors.items() if cursor is not None})

    def forget(self, parents: Iterable[PhysicalPartition]) -> None:
        """The program is asked again."""
        for parent in parents:
            self._cursors.pop(parent, None)

    def start(self, slot: OwnedSlot, lineage: Lineage) -> Start | None:
        """Return where a slot begins, None if the program gave nothing for its partition."""
        cursor = self._cursors.get(slot.parent)
        return None if cursor is None else Start((cursor.narrowed(slot.range).settled(lineage),))
