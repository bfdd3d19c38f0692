"""What a commit may carry besides positions: outputs of the records that it calls processed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kpsplit.consumer.committing import Processed


class Load(Protocol):
    """What goes with one commit."""

    def write(self, producer: Any) -> None:
        """Write it inside the commit's transaction, acknowledged; errands' thread.

        Raises:
            KafkaException: it could not be; the transaction is aborted.
        """

    def committed(self) -> None:
        """The transaction was committed; engine's thread."""


class Carrier(Protocol):
    """Loads commits. While there is one, every commit is a transaction, of ordinary offsets too."""

    def load(self, processed: Sequence[Processed]) -> Load:
        """Return what goes with a commit of exactly this; engine's thread."""

    def make_producer(self, config: Mapping[str, Any]) -> Any:
        """Make the producer that commits."""
