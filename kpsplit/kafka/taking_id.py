"""Takes a transactional id, however short the time of each try."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from kpsplit.kafka.error_map import error_of
from kpsplit.splitter.ports import Deadline

MIN_TIMEOUT = 0.05


class TakingId:
    """Makes a transactional producer ready. Not thread safe.

    What was not over in time is gone on with at the next call: where connecting takes longer than a deadline,
    beginning anew each time would never end.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._opening: Producer | None = None

    def open(self) -> Producer:
        """Have a producer connect while something else is done, and return it."""
        self._opening = self._opening or self._make()
        return self._opening

    def take(self, deadline: Deadline) -> Producer:
        """Return a producer that has the id; whoever had it before is fenced.

        Raises:
            KafkaException: not in time, or refused.
        """
        producer = self.open()
        try:
            producer.init_transactions(max(deadline.left(), MIN_TIMEOUT))
        except KafkaException as exception:
            error = error_of(exception)
            if error is None or not error.retriable():
                self._opening = None
            raise
        self._opening = None
        return producer

    def forget(self) -> None:
        """Let go of a producer that is not ready."""
        self._opening = None
