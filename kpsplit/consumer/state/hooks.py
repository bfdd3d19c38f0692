"""What the consumer's engine calls so that a state store follows its slots and commits.

In the order of a slot's life: ``taken`` when it is assigned; ``ready`` is asked until it says True, before
any record of the slot is handed out; ``before_commit`` at every commit, behind the moment when the positions
to be committed are fixed; ``released`` behind the last commit, or at once when the slot was lost. After each
rebalance ``assigned`` tells who owns what. All of it comes from one thread, and nothing waits for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from confluent_kafka import Producer

from kpsplit.consumer.state.slots import Slot
from kpsplit.splitter.ports import Deadline


class StateCommit(Protocol):
    """The part that state has in one commit: there are two ways through it.

    * in a transaction: ``write`` (it may be repeated by a new transaction of the same commit), then
      ``committed``, ``aborted``, or, where the outcome is unknown, ``StateHooks.rewind``;
    * without one: ``flush`` *before* the positions are committed.
    """

    def write(self, producer: Producer, deadline: Deadline) -> None:
        """Produce the changelog records into the transaction that is open."""

    def flush(self, deadline: Deadline) -> None:
        """Write the changelog records and return when every one is acknowledged.

        Raises:
            KpsplitError: they are not; positions must not be committed. The writes wait for the next commit.
        """

    def committed(self) -> None:
        """The transaction is committed."""

    def aborted(self) -> None:
        """The transaction is aborted, and what was processed stays processed: the writes wait."""


class StateHooks(Protocol):
    """A state store, as the engine sees it."""

    def taken(self, slots: Iterable[Slot]) -> None:
        """Slots were assigned: begin to restore what is missing of their state."""

    def ready(self, slot: Slot) -> bool:
        """Tell whether a slot's state is restored.

        Raises:
            KpsplitError: it cannot be; ``released`` and ``taken`` try again.
        """

    def before_commit(self, slots: Iterable[Slot], works: Collection[object] | None = None) -> StateCommit:
        """Take what waits of these slots into a commit.

        Args:
            slots: the slots whose positions are committed.
            works: the finished units of work that the positions cover; None: all that are finished.
        """

    def rewind(self, slots: Iterable[Slot]) -> None:
        """Go back to what the changelog says, because the same records will be handed out again.

        ``ready`` is to be asked again.
        """

    def released(self, slots: Iterable[Slot]) -> None:
        """Slots are owned no more; what waits of them is dropped."""

    def assigned(self, members: Mapping[str, Iterable[Slot]], me: str) -> None:
        """Tell the slots of every member of the group: from them follows who keeps which warm copies."""

    def wants_commit(self) -> bool:
        """Tell whether so much waits that a commit should not be put off."""
