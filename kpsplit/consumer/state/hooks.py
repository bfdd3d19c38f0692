"""What the consumer's engine calls so that a state store follows its slots and commits.

In the order of a slot's life: ``taken`` when it was assigned; ``ready`` is asked until it says True, before
any record of the slot is handed out; ``attempt`` around each try of a handler; ``before_commit`` at every
commit, after the moment when the positions to be committed are fixed; ``released`` after the last commit,
or at once when the slot was lost, or when its records will be handed out again (then ``taken`` as above).
After each rebalance ``assigned`` gives the group's assignment. Nothing waits for long, except
``StateCommit.write`` and ``flush``, which come from a thread that may wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol

from confluent_kafka import Producer

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.writes import CommitCoverage, RecordPlace
from kpsplit.consumer.state.slots import Slot
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition


class StateCommit(Protocol):
    """The part that state has in one commit: there are two ways through it.

    * in a transaction: ``write`` (it may be repeated by a new transaction of the same commit), then
      ``committed``, ``aborted``, or, where the outcome is unknown, ``StateHooks.released``;
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
        """The transaction is committed.

        A slot whose local store cannot follow is not ``ready`` afterwards: what else waited of it is gone.
        """

    def aborted(self) -> None:
        """The transaction is aborted, and what was processed stays processed: the writes wait."""


class StateAttempt(Protocol):
    """One try of a handler: what it writes is invisible until ``publish``."""

    def __enter__(self) -> object:
        """Begin, in the thread or task that calls the handler."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; an error is raised on."""

    def publish(self) -> None:
        """The record counts as processed.

        Raises:
            KpsplitError: the slot was released meanwhile; the record does not count.
        """


class StateHooks(Protocol):
    """A state store, as the engine sees it."""

    @property
    def standbys(self) -> int:
        """How many other members keep a warm copy; without one ``assigned`` is not needed."""

    def bind(self, group: str, connection: Connection) -> None:
        """A Consumer of a group, with a connection, begins to use the store.

        Raises:
            KpsplitError: it is another group's, another Consumer uses it, or it cannot be opened.
        """

    def unbind(self) -> None:
        """The Consumer is closed."""

    def user_changed(self, before: str | None, username: str, password: str) -> None:
        """The Consumer, which logged in as ``before``, uses these SASL credentials from now on."""

    def taken(self, slots: Iterable[Slot]) -> None:
        """Slots were assigned: begin to restore what is missing of their state."""

    def ready(self, slot: Slot) -> bool:
        """Return whether a slot's state is restored.

        Raises:
            KpsplitError: it cannot be; ``released`` and ``taken`` try again.
        """

    def attempt(self, slot: Slot, place: RecordPlace) -> StateAttempt:
        """Return the unit of one try of a handler on the record at a place.

        Raises:
            KpsplitError: the slot's state is not there.
        """

    def waits(self, slot: Slot) -> bool:
        """Return whether something of a slot waits for a commit."""

    def before_commit(
        self, slots: Iterable[Slot], covers: Mapping[PhysicalPartition, CommitCoverage] | None = None
    ) -> StateCommit:
        """Take what waits of these slots into a commit.

        Args:
            slots: the slots whose positions are committed.
            covers: by logical partition, which records the positions cover; None: all.
        """

    def released(self, slots: Iterable[Slot]) -> None:
        """Slots are owned no more; what waits of them is dropped."""

    def assigned(self, members: Mapping[str, Iterable[Slot]], me: str) -> None:
        """Give the slots of every member; which member keeps which warm copy follows from them."""

    def wants_commit(self) -> bool:
        """Return whether so much waits that a commit should not be put off."""
