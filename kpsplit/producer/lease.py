"""When a reading of the control topic renews a producer's lease, and what happens when the lease runs out.

docs/protocol.md, "The producer's side". A lease says: until then no operator cuts a segment of ours unless we
answered its PREPARE and acknowledged its fence. That rests on two rules:

1. Nothing is *owed* when the lease is renewed: every PREPARE in the view is answered. So while an operator
   waits for us in vain our lease runs out. An answer counts for readings that were asked for after it. A
   fence need not be acknowledged: a producer that has it in its view holds, and reports nothing more as
   final.
2. A registration ends with its lease (``registration``). Only a reading that was asked for after the
   registration renews a lease, and only while the registration is good. An operator that found us silent for
   a lease, with its attempt still under way, so knows that our registration is over, and may remove it: we
   register again, under another key, before we answer or write anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.log_ends import EndRequest
from kpsplit.producer.registration import ControlFeed
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.registrations import to_answer


def owes(states: Iterable[PartitionState], own: ProducerRegistration) -> bool:
    """Tell whether an operator waits for the answer to a PREPARE."""
    return bool(to_answer(states, own))


EXPIRY_SECONDS = 0.5
RETRY_SECONDS = 0.05


class LeaseTask:
    """Owned by the library's thread. ``adopted``: the tail's progress that is applied to the fences."""

    def __init__(self, feed: ControlFeed) -> None:
        self._feed = feed
        self._dispatcher = feed.dispatcher
        self._request: EndRequest | None = None
        self._renew_at = 0.0
        self._expire_at = 0.0
        self.adopted = -1

    def watch_time(self) -> None:
        """Hold everything once the lease has run out; fail what has waited too long."""
        now = monotonic()
        dispatcher = self._dispatcher
        if now >= dispatcher.lease_until > 0:
            with dispatcher.lock.first:
                dispatcher.lapse()
            self._renew_at = 0.0
        if now >= self._expire_at:
            self._expire_at = now + EXPIRY_SECONDS
            with dispatcher.lock.first:
                dispatcher.expire(now)

    def answered(self) -> None:
        """Note an answer: it counts only for ends of the control topic that are asked for after it."""
        self._request = None
        self._renew_at = 0.0

    def renew(self) -> None:
        """Renew the lease, without waiting.

        The view is good for a lease from when the end was asked for, once it is read and applied.
        """
        request = self._asked()
        if request is None or not request.done():
            return
        tail = self._feed.following()
        try:
            ends = request.result()
        except KpsplitError:
            self._request = None
            raise
        if not tail.reached(ends) or self.adopted != tail.progress():
            return
        self._request = None
        self._renew_from(request.asked)

    def _asked(self) -> EndRequest | None:
        """Return the question for the control topic's end that is on its way, None if it is not time yet."""
        if self._request is None and monotonic() >= self._renew_at:
            self._feed.registration.register_again(Deadline(self._feed.lease_seconds()))
            self._request = self._feed.following().ask_end()
        return self._request

    def _renew_from(self, asked: float) -> None:
        dispatcher, own = self._dispatcher, self._feed.registration
        if owes(self._feed.states(), own.record) or not own.renews(asked):
            self._renew_at = monotonic() + RETRY_SECONDS
            return
        lease = self._feed.lease_seconds()
        with dispatcher.lock.first:
            dispatcher.renew(asked + lease)
        self._renew_at = asked + lease / 4
