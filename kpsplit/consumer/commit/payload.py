"""What a commit may carry besides positions: outputs of the records that it calls processed, and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kpsplit.consumer.commit.writes import Processed
from kpsplit.consumer.fetch.batch import OwnedSlot
from kpsplit.errors import KpsplitError
from kpsplit.splitter.ports import Deadline


class LoadError(KpsplitError):
    """What goes with a commit cannot be written before somebody has mended something; it is tried again."""


class Load(Protocol):
    """What goes with one commit."""

    def write(self, producer: Any, deadline: Deadline) -> None:
        """Write it inside the commit's transaction, in its thread. It may be written again by a later one.

        Raises:
            KafkaException, KpsplitError: it could not be; the transaction is aborted.
        """

    def committed(self) -> None:
        """The transaction was committed; engine's thread."""

    def aborted(self) -> None:
        """The transaction was aborted; engine's thread."""


class Loads:
    """Several loads as one."""

    def __init__(self, *loads: Load) -> None:
        self._loads = loads

    def write(self, producer: Any, deadline: Deadline) -> None:
        """See ``Load``."""
        for load in self._loads:
            load.write(producer, deadline)

    def committed(self) -> None:
        """See ``Load``."""
        for load in self._loads:
            load.committed()

    def aborted(self) -> None:
        """See ``Load``."""
        for load in self._loads:
            load.aborted()


class Carrier(Protocol):
    """Loads commits. While there is one, every commit is a transaction, of ordinary offsets too."""

    def load(self, processed: Sequence[Processed]) -> Load:
        """Return what goes with a commit of exactly this; engine's thread."""

    def keeps(self, slot: OwnedSlot) -> bool:
        """Tell whether something of a slot waits for a commit; engine's thread."""

    def make_producer(self, config: Mapping[str, Any]) -> Any:
        """Make the producer that commits."""

    def abandon(self, producer: Any) -> None:
        """Let go of one whose commit is undecided; it may still be inside a call that does not return."""
