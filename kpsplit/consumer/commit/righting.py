"""Puts right what a member wrote of the group's ordinary offsets while others committed at the same time.

The range commits are right in any case; the ordinary offsets are what lag tools show. See ``commit.writes``.
"""

from __future__ import annotations

from concurrent.futures import Future

from kpsplit.consumer.commit.committer import Committer
from kpsplit.consumer.commit.group_offsets import Outdated
from kpsplit.consumer.commit.writes import Processed
from kpsplit.consumer.context import Context
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.assigned import Holding, Stage
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.key_range import KeyRange, uncovered
from kpsplit.splitter.lineage import PhysicalPartition

LOOK_SECONDS = 0.25
"""How long behind a commit its record is looked for in the offset log; each further look waits twice that."""
LOOKS = 6


class Righting:
    """See the module. Owned by the engine's thread; the log is read in the errands' thread.

    Nothing is done where commits carry outputs or state: they would have to be carried a second time.
    """

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer
        self._seen = 0
        self._looks = 0
        self._at = 0.0
        self._asked: tuple[int, Future[Outdated]] | None = None
        """Behind which commit, and the answer."""

    def turn(self) -> None:
        """Look behind each commit of this member, and commit once more what has to be."""
        commits = self._context.counts["commits"]
        if commits != self._seen:
            self._seen, self._looks = commits, LOOKS
            self._look_later()
        if self._asked is not None:
            behind, answer = self._asked
            if answer.done():
                self._asked = None
                # A commit that was begun since may have gone further, also one that failed: its outcome may
                # be unknown.
                if behind == self._committer.begun and self._committer.idle():
                    self._take(answer)
        elif self._looks and monotonic() >= self._at and self._committer.idle():
            self._look()

    def _look_later(self) -> None:
        self._at = monotonic() + LOOK_SECONDS * 2 ** (LOOKS - self._looks)

    def _look(self) -> None:
        self._looks -= 1
        self._look_later()
        context = self._context
        if context.carrier is not None or context.keeping.store is not None:
            return
        shared = [p for parent in context.holdings.parents() if (p := self._shared(parent)) is not None]
        if shared:
            member = context.member()
            asked = context.errands.run(lambda: context.ledger.outdated(shared, member))
            self._asked = self._committer.begun, asked

    def _shared(self, parent: PhysicalPartition) -> Processed | None:
        """Return where this member's ranges stand; None where nobody else has one, or some come or go."""
        holdings = self._context.holdings.of(parent)
        stands = tuple(cursor for h in holdings for cursor in h.committed)
        if not all(map(_stays, holdings)) or not uncovered(c.range for c in stands):
            return None
        first = holdings[0]
        if first.mode is Mode.PLAIN:
            return None
        return Processed(self._context.views.state(parent), first.mode, (), stands, first.place)

    def _take(self, answer: Future[Outdated]) -> None:
        try:
            found = answer.result()
        except KpsplitError:
            return  # whoever has to read the log says so
        cursors = {
            h.slot: h.committed for parent, again in found.items() for h in self._one_of(parent, again)
        }
        if cursors:
            self._context.counts["ordinary_offsets_righted"] += 1
            self._committer.ask(cursors, Future())  # one that nobody reads: on_commit is not called for it
        elif None not in found.values():
            self._looks = 0

    def _one_of(self, parent: PhysicalPartition, ranges: frozenset[KeyRange] | None) -> list[Holding]:
        """Return a slot that stands as the latest commit says: nothing older is written behind that."""
        holdings = self._context.holdings.of(parent)
        found = [
            h for h in holdings if _stays(h) and {c.range for c in h.committed} <= (ranges or frozenset())
        ]
        return found[:1]


def _stays(holding: Holding) -> bool:
    """Tell whether a slot stands where its latest commit says: not where the application has moved it since.

    That commit says nothing of the move, and its success must not count as having told it.
    """
    here = holding.stage in (Stage.READING, Stage.HELD) and not holding.final
    moved = holding.moves != holding.moves_told
    return here and not holding.by_hand and not moved and bool(holding.committed)
