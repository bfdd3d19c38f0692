"""What the application's transactions change for a fence, pure (design, section 6).

A fence that is seen inside a transaction is *deferred*: the transaction goes on writing, its records are
final as before, and the fence holds and is acknowledged when it has ended. Otherwise an application that
flushes before it commits would wait for the end of the fence, and the fence for that of the transaction.

That is safe because an operator waits for each producer with transactions that answered its PREPARE in time,
until the producer acknowledges the fence or the attempt is rolled back. A producer that has a valid lease for
the segments when it sees the fence has answered in time. In every other case the fence holds at once: the
operator may go on without us, and may cut the log at any moment. The transaction is committed only with
records that are final.

Records of an aborted transaction are never sent again.
"""

from __future__ import annotations


class FenceTransactions:
    """See the module.

    ``deferred``: a fence waits for the end of the transaction under way.
    """

    def __init__(self) -> None:
        self.active = False
        self.deferred = False
        self._began = 0
        self._aborted: list[range] = []

    def begin(self, next_sequence: int, *, unresolved: bool) -> None:
        """Note the begin of a transaction. ``unresolved``: the fate of some earlier record is open."""
        self.active = True
        self._began = next_sequence
        if not unresolved:
            self._aborted.clear()

    def end(self, next_sequence: int, *, aborted: bool) -> None:
        """Note the end of a transaction, or that there is none."""
        self.active = self.deferred = False
        if aborted:
            self._aborted.append(range(self._began, next_sequence))

    def fence_seen(self, *, newly: bool, awaited: bool) -> None:
        """Take a view in which a fence is on. ``newly``: of another attempt than in the view before.

        ``awaited``: we have a valid lease, so the operator counts on our acknowledgement.
        """
        if newly:
            self.deferred = awaited and self.active

    def no_fence(self) -> None:
        """Take a view without a fence."""
        self.deferred = False

    def abandoned(self, sequence: int) -> bool:
        """Tell whether a record is of an aborted transaction."""
        return any(sequence in numbers for numbers in self._aborted)
