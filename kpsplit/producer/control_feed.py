"""What the library's thread knows of the control topic and of its own answers; shared by its tasks."""

from __future__ import annotations

from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import AdminUse, Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.registration import Registration
from kpsplit.splitter.partition_state import PartitionState


class ControlFeed:
    """``tail``: None until the control topic was found. Owned by the library's thread."""

    def __init__(self, connection: Connection, dispatcher: Dispatcher) -> None:
        settings = dispatcher.settings
        self.connection = connection
        self.dispatcher = dispatcher
        self.tail: ControlTail | None = None
        self.registration = Registration(
            connection,
            dispatcher.instance,
            settings.client_id,
            settings.transactional_id,
            self.lease_seconds,
        )
        self.admin = AdminUse(connection)
        """A client for looks at topics."""

    def close(self) -> None:
        """End the tail, and let go of the admin client."""
        if self.tail is not None:
            self.tail.close()
        self.admin.close()

    def following(self) -> ControlTail:
        """Return the tail.

        Raises:
            KpsplitError: there is none yet.
        """
        if self.tail is None:
            raise KpsplitError("the control topic was not found yet", retriable=True)
        return self.tail

    def lease_seconds(self) -> float:
        """Return the length of a lease as the control topic says."""
        return self.following().view.settings.lease_ms / 1000

    def states(self) -> list[PartitionState]:
        """Return the states of all partitions of our topics, those that were added a moment ago as well.

        An operator counts on our answers for every partition of a topic that we registered.
        """
        fenced = {f.state.parent: f.state for f in self.dispatcher.fences()}
        topics = self.registration.record.topics
        others = self.following().view.states
        return [*fenced.values(), *(s for p, s in others.items() if p.topic in topics and p not in fenced)]
