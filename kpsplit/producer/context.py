"""What the parts of one Producer share, and the locks that guard it.

Lock order: ``poll_lock`` before ``lock``. ``lock`` guards routes, fences and what is held; ``poll_lock``
makes one thread at a time take librdkafka's reports, so that a segment's ``done`` has a single writer.
"""

from __future__ import annotations

import threading
from collections import deque

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.backlog import Tally
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.messages import Unrouted
from kpsplit.producer.quick_lock import QuickLock
from kpsplit.producer.routes import Fence, PassThrough, TopicRoute


class Context:
    """See the module.

    ``instance``: the number in this producer's stamps. ``wake``: set when the library's thread has work.
    ``routes``: how each topic is treated; ``fast_routes``: the fences of those that the hot path knows, and
    ``fast_plain``: the topics that it gives to librdkafka as they are; ``refused``: topics that are not
    written to, and why. ``unrouted``: records of topics that are not looked up yet; ``tally``: how many
    records wait there and in the fences; ``failures``: how many failed, save those of aborted transactions.
    ``collecting``: the library's thread takes reports in hand now. ``fatal``: why nothing will ever be sent
    again; ``forked``: that is because this is a child process. ``ended``: there will be no lease any more.
    ``accepting``: the hot path may take records; not once the producer is being closed.
    """

    def __init__(self, settings: ProducerSettings, instance: int) -> None:
        self.settings = settings
        self.instance = instance
        self.lock = QuickLock()
        self.poll_lock = QuickLock()
        self.wake = threading.Event()
        self.routes: dict[str, TopicRoute | PassThrough] = {}
        self.fast_routes: dict[str, list[Fence]] = {}
        self.fast_plain: set[str] = set()
        self.unrouted: dict[str, deque[Unrouted]] = {}
        self.tally = Tally()
        self.failures = 0
        self.refused: dict[str, KpsplitError] = {}
        self.lease_until = 0.0
        self.ended = False
        self.accepting = True
        self.in_transaction = False
        self.collecting = False
        self.fatal: KpsplitError | None = None
        self.forked = False

    def lease_valid(self) -> bool:
        """Tell whether the view of the control topic is still good."""
        return monotonic() < self.lease_until

    def add_route(self, topic: str, route: TopicRoute) -> None:
        """Route an enrolled topic from now on (``lock`` held)."""
        self.routes[topic] = route
        if route.by_crc and self.accepting:
            self.fast_routes[topic] = route.fences

    def accept_no_more(self) -> None:
        """Take everything from the hot path: the other one refuses (``lock`` held)."""
        self.accepting = False
        self.fast_routes.clear()
        self.fast_plain.clear()

    def remove_route(self, topic: str) -> None:
        """Forget a topic's route (``lock`` held)."""
        route = self.routes.pop(topic, None)
        self.fast_routes.pop(topic, None)
        self.fast_plain.discard(topic)
        if isinstance(route, TopicRoute):
            for fence in route.fences:
                fence.suspend(True)  # the hot path may have found it a moment ago
                fence.backlog.leave()

    def clear_routes(self) -> None:
        """Forget all routes (``lock`` held)."""
        for topic in list(self.routes):
            self.remove_route(topic)

    def fences(self) -> list[Fence]:
        """Return the fences of all enrolled topics."""
        return [f for route in self.routes.values() if isinstance(route, TopicRoute) for f in route.fences]

    def refresh(self, fence: Fence) -> None:
        """Tell the hot path of a partition what its fence says (``lock`` held)."""
        for writer in fence.closing:
            writer.good_until = 0.0
        for writer in fence.writers:
            writer.good_until = 0.0 if writer.fenced or self.collecting else self.lease_until
            writer.stamp_as(fence.state, self.instance)
