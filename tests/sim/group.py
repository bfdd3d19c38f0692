"""A simulated consumer group: its coordinator, and the offset log with the transactions of commits."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpsplit.consumer.fetch.batch import OwnedSlot
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.offsets import RangeCommit
from tests.sim.control import TRANSACTION_SECONDS, Fate
from tests.sim.logs import PARENT

GROUP = "g"
SLOTS = 2


@dataclass(slots=True)
class CommitTransaction:
    """One commit in the offset log. ``at``: the log offset of its first record."""

    at: int
    records: tuple[RangeCommit, ...]
    opened: float
    member: str
    fate: Fate = Fate.OPEN
    encoded: list[tuple[bytes, bytes]] = field(default_factory=list)


class OffsetLog:
    """The partition of the offset log that is about the one logical partition."""

    def __init__(self) -> None:
        self.transactions: list[CommitTransaction] = []
        self.committed: list[CommitTransaction] = []
        """What was committed since the oracle last looked."""

    def begin(self, records: tuple[RangeCommit, ...], member: str, now: float) -> CommitTransaction:
        """Write range commits in an open transaction."""
        last = self.transactions[-1] if self.transactions else None
        at = last.at + len(last.records) if last else 0
        transaction = CommitTransaction(at, records, now, member)
        transaction.encoded = [(r.key, r.encode()) for r in records]
        self.transactions.append(transaction)
        return transaction

    def commit(self, transaction: CommitTransaction) -> bool:
        """Commit; False if the transaction is over already."""
        if transaction.fate is not Fate.OPEN:
            return False
        transaction.fate = Fate.COMMITTED
        self.committed.append(transaction)
        return True

    def abort(self, member: str) -> None:
        """Abort what a member left open, as the registration of its successor makes the broker do."""
        for transaction in self.transactions:
            if transaction.member == member and transaction.fate is Fate.OPEN:
                transaction.fate = Fate.ABORTED

    def time_out(self, now: float) -> None:
        """Abort transactions that have been open for too long."""
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN and now > transaction.opened + TRANSACTION_SECONDS:
                transaction.fate = Fate.ABORTED

    def end(self) -> int:
        """Return the high watermark, counted in transactions."""
        return len(self.transactions)

    def stable(self) -> int:
        """Return the last stable offset, counted in transactions."""
        fates = (i for i, t in enumerate(self.transactions) if t.fate is Fate.OPEN)
        return next(fates, len(self.transactions))


class OffsetTail:
    """The offset log as one reader has folded it."""

    def __init__(self, log: OffsetLog) -> None:
        self._log = log
        self.read = 0
        self.fold = CommitFold()

    def follow(self) -> int:
        """Fold what can be seen by now; return how far that is."""
        stable = self._log.stable()
        for transaction in self._log.transactions[self.read : stable]:
            if transaction.fate is Fate.COMMITTED:
                for number, (key, value) in enumerate(transaction.encoded):
                    self.fold.fold(key, value, transaction.at + number)
        self.read = max(self.read, stable)
        return self.read


class Coordinator:
    """Kafka's side of the group: generation, who owns which slot, ordinary offsets."""

    def __init__(self) -> None:
        self.generation = 1
        self.slots = [OwnedSlot(PARENT, index, SLOTS) for index in range(SLOTS)]
        self.owner: dict[OwnedSlot, str] = {}
        self.offsets: dict[PhysicalPartition, int] = {}

    def assign(self, slots: list[OwnedSlot], member: str) -> None:
        """Give slots to a member, in a new generation."""
        self.generation += 1
        for slot in slots:
            self.owner[slot] = member

    def admits(self, generation: int) -> bool:
        """Tell whether a commit of a generation is taken."""
        return generation == self.generation
