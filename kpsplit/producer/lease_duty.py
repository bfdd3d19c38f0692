"""Keeping the lease: renewing it by the rules of ``lease``, holding everything once it has run out."""

from __future__ import annotations

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.log_ends import EndRequest
from kpsplit.producer.control_feed import ControlFeed
from kpsplit.producer.lease import owes

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
        """Note an answer: it counts only for ends of the control topic that are asked for behind it."""
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
