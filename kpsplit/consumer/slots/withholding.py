"""Slots of which nothing is handed out for now (protocol, section 10).

A partition of a topic that is not enrolled is this member's alone only while the topic stays so. When an
enrolment is seen, nothing more of it is handed out; what was processed is committed. A member whose view is
old reads on what it reads: the first owner of a slot waits until nobody has the partition itself.
"""

from __future__ import annotations

from kpsplit.consumer.commit.committer import Committer
from kpsplit.consumer.commit.group_offsets import Start
from kpsplit.consumer.context import Context
from kpsplit.consumer.slots.assigned import Holding, Stage
from kpsplit.consumer.slots.initializer import begin, hold, may_begin, must_be_held


class Withholding:
    """Moves slots between READING and HELD."""

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer

    def turn(self) -> None:
        """Hold what must not be handed out now, let go what may be again."""
        for holding in self._context.holdings.on((Stage.READING, Stage.HELD)):
            if holding.stage is Stage.READING and must_be_held(self._context, holding):
                self._hold(holding)
            elif holding.stage is Stage.HELD and may_begin(self._context, holding):
                self._let_go(holding)

    def _hold(self, holding: Holding) -> None:
        hold(self._context, holding)
        if self._context.settings.auto_commit:
            self._committer.ask(self._committer.changed([holding]))

    def _let_go(self, holding: Holding) -> None:
        context = self._context
        if not context.sink.release([holding.slot]):
            return  # what the application still works on would be handed out again
        cursors, lineage = context.sink.cursor(holding.slot), context.lineage(holding.parent)
        pieces = context.settled(holding.slot, cursors, lineage)
        holding.start = Start(pieces, committed=bool(holding.committed))
        begin(context, holding)
