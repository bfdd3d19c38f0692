"""Slots as the state store names them, and what the consumer's engine calls so that a store follows them.

The engine's calls, in the order of a slot's life: ``taken`` when it was assigned; ``ready`` is asked until it
says True, before any record of the slot is handed out; ``attempt`` around each try of a handler;
``before_commit`` at every commit, after the moment when the positions to be committed are fixed; ``released``
after the last commit, or at once when the slot was lost, or when its records will be handed out again (then
``taken`` as above). Before the group is joined ``joins`` is asked until it says True. After each rebalance
``assigned`` gives the group's assignment. Nothing waits for long, except ``StateCommit.write`` and ``flush``,
which come from a thread that may wait.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from confluent_kafka import Producer

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.writes import CommitCoverage, RecordPlace
from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import MAX_SLOTS, slot_number
from kpsplit.splitter.lineage import PhysicalPartition

MAX_RECORD_BYTES = 900_000
"""Key and value together: below the changelog's ``max.message.bytes`` with all that Kafka adds."""

PLACE = struct.Struct(">IHH")
"""Partition, slots per partition, index: what names a slot within its topic."""


@dataclass(frozen=True, slots=True, order=True)
class SlotId:
    """One slot, by value: slot ``index`` of ``slots`` of a logical partition."""

    topic: str
    partition: int
    index: int
    slots: int

    def __post_init__(self) -> None:
        """Refuse what is no slot."""
        if not 0 <= self.index < self.slots <= MAX_SLOTS or self.partition < 0:
            raise UsageError(f"{self} is not a slot")

    @classmethod
    def of(cls, slot: OwnedSlot | SlotId) -> SlotId:
        """Return the name of a slot of the engine's."""
        if isinstance(slot, SlotId):
            return slot
        return cls(slot.parent.topic, slot.parent.partition, slot.index, slot.slots)

    def __str__(self) -> str:
        """Return the form used in messages: ``orders/3#2of4``."""
        return f"{self.topic}/{self.partition}#{self.index}of{self.slots}"

    @property
    def parent(self) -> PhysicalPartition:
        """The logical partition."""
        return PhysicalPartition(self.topic, self.partition)

    @property
    def number(self) -> int:
        """The slot's number in its topic, which is its partition of the slots topic and of the changelog."""
        return slot_number(self.partition, self.index, self.slots)

    @property
    def place(self) -> bytes:
        """8 bytes that name the slot within its topic; they are in every changelog record."""
        return PLACE.pack(self.partition, self.slots, self.index)

    @property
    def prefix(self) -> bytes:
        """What the slot's keys begin with in the local store; no slot's prefix begins another's."""
        topic = self.topic.encode("ascii")
        return len(topic).to_bytes(2, "big") + topic + self.place

    @classmethod
    def from_prefix(cls, data: bytes) -> SlotId:
        """Return the slot of a prefix.

        Raises:
            ValueError: these bytes are no prefix.
        """
        length = int.from_bytes(data[:2], "big")
        if len(data) != 2 + length + PLACE.size:
            raise ValueError("not a slot's prefix")
        partition, slots, index = PLACE.unpack(data[2 + length :])
        return cls(data[2 : 2 + length].decode("ascii"), partition, index, slots)


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """When a member whose copies are to be warm joins its group; pure.

    Args:
        seconds: so long it waits at most; 0: not at all.
        max_lag: so many changelog records a copy may lack.
    """

    seconds: float
    max_lag: int

    def reason(
        self, others: Collection[SlotId] | None, lags: Mapping[SlotId, int | None], waited: float
    ) -> str:
        """Return why the member joins now; empty: it waits.

        Args:
            others: the slots that members go on with meanwhile; None: not known yet.
            lags: what is followed, and what each copy lacks (None: not known yet). What is not followed
                has a changelog that cannot be read: waiting would not help.
            waited: for so many seconds.
        """
        if others is not None and not others:
            return "no other member goes on with slots of its topics"
        if waited >= self.seconds:
            return f"its copies are not warm after {waited:.1f} s"
        if others is None:
            return ""
        lacking = [lags[slot] for slot in others if slot in lags]
        warm = all(lag is not None and lag <= self.max_lag for lag in lacking)
        return "its copies are warm" if warm else ""


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
    """One try of a handler, in its thread or task: what it writes is invisible until ``publish``."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        """How many other members keep a warm copy of each slot."""

    @property
    def warm_seconds(self) -> float:
        """How long a member may wait for warm copies before it joins; 0: it joins at once.

        Without this and without ``standbys`` neither ``joins`` nor ``assigned`` is needed.
        """

    def bind(self, group: str, connection: Connection) -> None:
        """A Consumer of a group, with a connection, begins to use the store.

        Raises:
            KpsplitError: it is another group's, another Consumer uses it, or it cannot be opened.
        """

    def unbind(self) -> None:
        """The Consumer is closed."""

    def user_changed(self, before: str | None, username: str, password: str) -> None:
        """The Consumer, which logged in as ``before``, uses these SASL credentials from now on."""

    def taken(self, slots: Iterable[OwnedSlot]) -> None:
        """Slots were assigned: begin to restore what is missing of their state."""

    def ready(self, slot: OwnedSlot) -> bool:
        """Return whether a slot's state is restored.

        Raises:
            KpsplitError: it cannot be; ``released`` and ``taken`` try again.
        """

    def attempt(self, slot: OwnedSlot, place: RecordPlace) -> StateAttempt:
        """Return the unit of one try of a handler on the record at a place.

        Raises:
            KpsplitError: the slot's state is not there.
        """

    def waits(self, slot: OwnedSlot) -> bool:
        """Return whether something of a slot waits for a commit."""

    def before_commit(
        self, slots: Iterable[OwnedSlot], covers: Mapping[PhysicalPartition, CommitCoverage] | None = None
    ) -> StateCommit:
        """Take what waits of these slots into a commit.

        Args:
            slots: the slots whose positions are committed.
            covers: by logical partition, which records the positions cover; None: all.
        """

    def released(self, slots: Iterable[OwnedSlot]) -> None:
        """Slots are owned no more; what waits of them is dropped."""

    def joins(self, others: Iterable[OwnedSlot] | None, waited: float) -> bool:
        """Return whether a member that waits to join joins now; follow the slots of others until then.

        Args:
            others: the slots that members go on with meanwhile; None: not known yet.
            waited: for so many seconds.
        """

    def assigned(self, members: Mapping[str, Iterable[OwnedSlot]], me: str) -> None:
        """Give the slots of every member; which member keeps which warm copy follows from them."""

    def wants_commit(self) -> bool:
        """Return whether so much waits that a commit should not be put off."""
