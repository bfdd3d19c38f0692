"""What stands between the engine and whoever works on the records: the poll buffer, or ``Consumer.run``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition

if TYPE_CHECKING:
    from kpsplit.consumer.fetch.reader import Batch, OwnedSlot
    from kpsplit.splitter.cursor import Cursor

Crowded = Mapping[PhysicalPartition, frozenset[KeyRange]]
NOWHERE: Crowded = {}


class Sink(Protocol):
    """Takes records and tells how far they were processed. Every call comes from the engine's thread.

    Nothing here may wait for the application: the engine serves other slots meanwhile.
    """

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """A slot arrives; ``cursor`` is where it starts, and what ``cursor()`` tells until records come.

        Also called for a slot that is owned already, after a seek: what was handed over of it before counts
        for nothing any more.
        """

    def offer(self, batch: Batch) -> None:
        """Take records of slots that are owned, in order per segment."""

    def waiting_bytes(self) -> int:
        """Return how many bytes of records were offered and are not given out yet (back-pressure)."""

    def crowded(self) -> Crowded:
        """Return the key ranges of which nothing more should be read for now, by logical partition."""

    def keep_open(self, until: float) -> None:
        """Hand out nothing once this moment has passed, until a later one is named.

        Named with every turn of the engine, by the clock of ``kafka.clock.monotonic``: a member that has not
        turned for long may have lost its slots (``group.ownership``). Without one it always hands out.
        """

    def cursor(self, slot: OwnedSlot) -> Sequence[Cursor]:
        """Return how far a slot is *processed*: one or more pieces that tile ``slot.range``."""

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        """Stop giving out records of slots; True when nothing of them is being worked on.

        Asked again until it says True or the deadline of the revocation has passed.
        """

    @property
    def torn(self) -> bool:
        """Whether an exception ended a change of what waits: reading has to begin anew (``start_over``)."""

    def start_over(self) -> Mapping[OwnedSlot, Cursor]:
        """Something between the brokers and here was ended by an exception: reading begins anew.

        Returns from where for each slot that is not released, so that nothing is missing and nothing comes
        twice. What waits may be forgotten.
        """

    def mark(self) -> int:
        """Return a mark behind everything that was handed out."""

    def passed(self, mark: int) -> bool:
        """Tell whether nothing that was handed out before a mark is being worked on, or can still count."""

    def dropped(self, slots: Iterable[OwnedSlot]) -> None:
        """Slots are owned no more: forget them and what waits of them. Later calls do not name them."""
