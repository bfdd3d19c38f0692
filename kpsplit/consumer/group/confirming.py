"""Holds records back behind a sleep until the coordinator has confirmed the slots; ``ownership`` decides.

Owned by the engine's thread. The question is asked in the errands' thread.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from kpsplit.consumer.context import Context
from kpsplit.consumer.group.membership import Membership
from kpsplit.consumer.group.ownership import Question, Waking
from kpsplit.consumer.slots.assigned import Holding
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.groups import Members

log = logging.getLogger(__name__)


class Confirming:
    """See the module."""

    def __init__(self, context: Context, membership: Membership) -> None:
        self._context = context
        self._membership = membership
        self._waking = Waking(context.settings.known_for, monotonic())
        self._asked: tuple[Question, Future[Members]] | None = None
        self._lost_before = 0
        self._trouble: KpsplitError | None = None

    @property
    def held(self) -> bool:
        """Tell whether nothing is handed out until the coordinator has confirmed the slots."""
        return self._waking.held

    @property
    def until(self) -> float:
        """Until when records may be handed out, unless the engine turns before."""
        return self._waking.until

    def turned(self, now: float) -> None:
        """Note a turn of the engine: before it reads, behind requests, which may change the sink."""
        context = self._context
        if self._waking.turned(now, shared=self._membership.subscribed or bool(self._holdings())):
            log.info("kpsplit: this member has not run for a while; the group is asked who owns its slots")
            context.counts["held_after_sleep"] += 1
            self._lost_before = context.counts["slots_lost"]
        self._keep_open()

    def turn(self, *, nested: bool) -> None:
        """Behind a sleep: ask when it is time, take the answer when it is there. After the group was polled.

        Inside a rebalance (``nested``) nothing is lost by an answer: the rebalance decides.

        Raises:
            KpsplitError: the coordinator could not be asked; records are held back until it can.
        """
        if self.held:
            self._pursue(nested)
            self._keep_open()

    def _pursue(self, nested: bool) -> None:
        if self._asked is not None and self._asked[1].done():
            (question, answer), self._asked = self._asked, None
            self._take(question, answer, nested)
        if self._context.counts["slots_lost"] != self._lost_before:
            self._waking.expelled()
        self._waking.settle(self._holdings())
        if not self._waking.held:
            self._forget_trouble()
        elif self._asked is None:
            self._ask()

    def _ask(self) -> None:
        question = self._waking.question(monotonic(), self._holdings())
        if question is not None:
            self._asked = question, self._context.errands.run(self._context.ledger.members)

    def _take(self, question: Question, answer: Future[Members], nested: bool) -> None:
        now, context = monotonic(), self._context
        try:
            members = answer.result()
        except KpsplitError as error:
            self._waking.failed(now)
            self._trouble = KpsplitError(
                f"records are held back after a sleep: {error.message}", hint="the group is asked again"
            )
            raise self._trouble from error
        me = context.group.memberid()
        gone = self._waking.answered(now, question, members.assigned, me, self._holdings())
        if gone and not nested:
            log.warning("kpsplit: %d slots were given to other members during a sleep", len(gone))
            self._membership.lose(gone)

    def _forget_trouble(self) -> None:
        if self._trouble is not None and self._context.trouble is self._trouble:
            self._context.trouble = None
        self._trouble = None

    def _keep_open(self) -> None:
        self._context.sink.keep_open(self.until)

    def _holdings(self) -> list[Holding]:
        return [h for h in self._context.holdings if not h.by_hand]
