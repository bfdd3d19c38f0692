"""The client library's clients, such that ``Credentials`` can follow them.

A module of its own: ``connection`` must not load the client library before a client is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka


class FollowingConsumer(confluent_kafka.Consumer):
    """A consumer that gets no new credentials once it begins to close: the library does not guard that."""

    def __init__(self, config: dict[str, Any], leave: Callable[[Any], None]) -> None:
        super().__init__(config)
        self._leave = leave

    def close(self) -> None:
        self._leave(self)
        super().close()


class FollowingProducer(confluent_kafka.Producer):
    """A producer that allows weak references."""
