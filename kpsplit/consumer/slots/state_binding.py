"""The engine's side of a state store: which slots it has taken, and what it adds to commits.

Without a store every answer is the one that changes nothing. Owned by the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kpsplit.consumer.commit.payload import CommitCoverage
from kpsplit.consumer.commit.writes import Processed
from kpsplit.consumer.fetch.batch import RecordSink
from kpsplit.consumer.slots.owned_slot import OwnedSlot
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic

if TYPE_CHECKING:
    from kpsplit.consumer.state.hooks import StateCommit, StateHooks

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""When a slot whose state cannot be restored is tried again."""


class StateBinding:
    """See the module. ``store`` is None where the application keeps no state."""

    def __init__(self, store: StateHooks | None = None) -> None:
        self.store = store
        self._marks: dict[OwnedSlot, int] = {}
        self._taken: set[OwnedSlot] = set()
        self._refused: dict[OwnedSlot, tuple[float, str]] = {}

    def restored(self, slot: OwnedSlot, sink: RecordSink) -> bool:
        """Tell whether the state of a slot is there; begin to restore it where that was not done yet.

        Called when the slot's start is known. That was looked up when every commit of this member was over or
        given up, so no write of an earlier assignment that counts comes after the end that is asked for now.
        And the application has finished what it was handed out before: a write for a record of that
        assignment, which will be handed out again, finds no state to change.

        Raises:
            KpsplitError: it cannot be restored; told once for each reason, and tried again later.
        """
        store = self.store
        if store is None:
            return True
        try:
            if slot not in self._taken and not self._take(store, slot, sink):
                return False
            ready = store.ready(slot)
        except KpsplitError as error:
            self._give_up(store, slot, error)
            return False
        if ready:
            self._refused.pop(slot, None)
        return ready

    def _take(self, store: StateHooks, slot: OwnedSlot, sink: RecordSink) -> bool:
        mark = self._marks.setdefault(slot, sink.mark())
        if not sink.passed(mark) or monotonic() < self._refused.get(slot, (0.0, ""))[0]:
            return False
        store.taken([slot])
        self._taken.add(slot)
        return True

    def _give_up(self, store: StateHooks, slot: OwnedSlot, error: KpsplitError) -> None:
        known = self._refused.get(slot, (0.0, ""))[1]
        self._let_go(store, slot)
        self._refused[slot] = (monotonic() + AGAIN_SECONDS, error.message)
        if error.message != known:
            raise error

    def left(self, slots: Iterable[OwnedSlot]) -> None:
        """Slots are owned no more, or their records will be handed out again; the sink knows them no more."""
        if self.store is not None:
            for slot in slots:
                self._let_go(self.store, slot)
                self._refused.pop(slot, None)

    def _let_go(self, store: StateHooks, slot: OwnedSlot) -> None:
        self._marks.pop(slot, None)
        if slot in self._taken:
            self._taken.discard(slot)
            store.released([slot])

    def waits(self, slot: OwnedSlot) -> bool:
        """Tell whether something of a slot's state waits for a commit."""
        return self.store is not None and slot in self._taken and self.store.waits(slot)

    def wants_commit(self) -> bool:
        """Tell whether a commit should not wait for its time."""
        return self.store is not None and self.store.wants_commit()

    def commit(self, processed: Sequence[Processed], slots: Iterable[OwnedSlot]) -> StateCommit | None:
        """Return what goes with a commit of exactly this; None without a store.

        Raises:
            KpsplitError: the store does not have what these slots had.
        """
        if self.store is None:
            return None
        covers = {p.parent: CommitCoverage(p) for p in processed}
        return self.store.before_commit([slot for slot in slots if slot in self._taken], covers)

    def broken(self, slots: Iterable[OwnedSlot]) -> list[OwnedSlot]:
        """Return the slots whose local state could not follow a commit: what waited of them is gone."""
        if self.store is None:
            return []
        return [slot for slot in slots if slot in self._taken and not self._is_there(self.store, slot)]

    def _is_there(self, store: StateHooks, slot: OwnedSlot) -> bool:
        try:
            return store.ready(slot)
        except KpsplitError as error:
            log.warning("kpsplit: the state of %s: %s", slot, error)
            return False
