"""Simulated control and producers topics: transactions, claims, what readers can see of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kpsplit.errors import FencedError
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.claims import Claim
from kpsplit.splitter.records.producers import Entry
from kpsplit.splitter.writers import Registrations

TRANSACTION_SECONDS = 10.0
"""An open transaction that nobody ends is aborted after so long."""


class Fate(Enum):
    """What became of a transaction."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2


@dataclass(slots=True)
class ControlRecord:
    """One transaction. ``state`` None: somebody else's, about another partition."""

    offset: int
    state: PartitionState | None
    event: str
    opened: float
    fate: Fate = Fate.OPEN


class ControlLog:
    """See the module. ``truth``: the state that the log says, whoever can see it by now."""

    def __init__(self, first: PartitionState) -> None:
        self.records: list[ControlRecord] = []
        self.states: list[PartitionState] = [first]
        """The state behind so many records, as far as all before them are decided."""
        self.truth = first
        self.holder = 0
        self.claims: list[Claim] = []
        self.committed: list[ControlRecord] = []
        """What was committed since the oracle last looked."""

    def stable(self) -> int:
        """Return the last stable offset: how many records readers can see."""
        while len(self.states) <= len(self.records):
            record = self.records[len(self.states) - 1]
            if record.fate is Fate.OPEN:
                break
            seen = record.state is not None and record.fate is Fate.COMMITTED
            self.states.append(record.state if seen and record.state is not None else self.states[-1])
        return len(self.states) - 1

    def high_watermark(self) -> int:
        """Return where the log ends, records of open transactions included."""
        return len(self.records)

    def seen(self) -> PartitionState:
        """Return the state that a reader at the last stable offset knows."""
        return self.states[self.stable()]

    def claim(self) -> int:
        """Fence every earlier holder: its open transactions are aborted. Return the new holder's number."""
        self.holder += 1
        for record in self.records[len(self.states) - 1 :]:
            if record.fate is Fate.OPEN and record.state is not None:
                record.fate = Fate.ABORTED
        return self.holder

    def begin(self, holder: int, state: PartitionState | None, event: str, now: float) -> ControlRecord:
        """Write a record in an open transaction.

        Raises:
            FencedError: a newer holder claimed the operation.
        """
        if state is not None and holder != self.holder:
            raise FencedError("a newer operator claimed the operation")
        record = ControlRecord(len(self.records), state, event, now)
        self.records.append(record)
        return record

    def commit(self, holder: int, record: ControlRecord) -> None:
        """Commit a record's transaction.

        Raises:
            FencedError: a newer holder claimed the operation, or the transaction is over.
        """
        if record.fate is not Fate.OPEN or (record.state is not None and holder != self.holder):
            raise FencedError("a newer operator claimed the operation")
        record.fate = Fate.COMMITTED
        if record.state is not None:
            self.truth = record.state
            self.committed.append(record)

    def time_out(self, now: float) -> None:
        """Abort transactions that have been open for too long."""
        for record in self.records[len(self.states) - 1 :]:
            if record.fate is Fate.OPEN and now > record.opened + TRANSACTION_SECONDS:
                record.fate = Fate.ABORTED


class ProducersTopic:
    """The producers topic: not transactional, so everybody sees everything. ``frozen``: its leader is."""

    def __init__(self) -> None:
        self.length = 0
        self.frozen = False
        self._registrations = Registrations()

    def append(self, record: Entry) -> None:
        """Write a record."""
        self.length += 1
        self._registrations.fold(record)

    def read(self) -> Registrations:
        """Return the topic folded up to its present end."""
        registrations = Registrations()
        for record in self._registrations.all():
            registrations.fold(record)
        return registrations
