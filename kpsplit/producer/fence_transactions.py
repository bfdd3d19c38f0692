"""What the application's transactions change for a fence, pure (design, section 6).

A fence that is seen inside a transaction is *deferred*: the transaction goes on writing, its records are
final as before, and the fence holds and is acknowledged when it has ended. Otherwise an application that
flushes before it commits would wait for the end of the fence, and the fence for that of the transaction.

That is safe because an operator waits for a producer with transactions, or has fenced its transactional id.
One that looked at the registrations before ours was there does neither: its fence is in the first view that
could open the segments to us, and holds at once.

Records of an aborted transaction are never sent again.
"""

from __future__ import annotations


class FenceTransactions:
    """See the module.

    ``deferred``: a fence waits for the end of the transaction under way; ``registering``: there may be a
    fence whose operator does not know us.
    """

    def __init__(self) -> None:
        self.active = False
        self.deferred = False
        self.registering = False
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

    def fence_seen(self, *, fenced: bool, newly: bool) -> None:
        """Take the fence of a newer view."""
        self.deferred = fenced and (self.deferred or (newly and self.active and not self.registering))

    def abandoned(self, sequence: int) -> bool:
        """Tell whether a record is of an aborted transaction."""
        return any(sequence in numbers for numbers in self._aborted)
