"""Commits that carry outputs: one transaction for both, through ``kpsplit.Producer`` (design, section 10).

The producer routes outputs to enrolled topics. Where a split moves a partition under a transaction, the
commit is refused and nothing of it is in the log; it is tried again with the same outputs. When the outcome
of a commit is not known, nothing is guessed: the slots start anew from what the log says, and what was not
committed is processed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.batch import OwnedSlot
from kpsplit.consumer.committing import Processed
from kpsplit.consumer.run.desk import Desk
from kpsplit.consumer.run.outbox import Transfer
from kpsplit.consumer.run.producing import produce_with_room
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.ports import Deadline


class OutputCarrier:
    """Implements ``Carrier``: takes the outputs of exactly those records along that a commit covers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def load(self, processed: Sequence[Processed]) -> OutputLoad:
        """Return what goes with a commit."""
        return OutputLoad(self._desk, self._desk.covered(processed))

    def keeps(self, slot: OwnedSlot) -> bool:
        """Tell whether outputs of a slot wait for a commit."""
        return self._desk.keeps(slot)

    def make_producer(self, config: Mapping[str, Any]) -> Any:
        """Make the producer that commits."""
        return routing_producer(config)

    def abandon(self, producer: Any) -> None:
        """Let go of one whose commit is undecided."""
        producer.abandon()


class OutputLoad:
    """Implements ``Load``: what goes with one commit."""

    def __init__(self, desk: Desk, transfer: Transfer) -> None:
        self._desk = desk
        self._transfer = transfer

    def write(self, producer: Any, deadline: Deadline) -> None:
        """Write the outputs with the producer of the transaction.

        Raises:
            KafkaException: one was refused, or not delivered.
        """
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        for output in self._transfer.outputs():
            produce_with_room(producer, output, report)
        if producer.flush(max(deadline.left(), 0.0)):
            failures.append(KafkaError(KafkaError._TIMED_OUT, "outputs were not acknowledged in time"))
        if failures:
            raise KafkaException(failures[0])

    def committed(self) -> None:
        """The transaction was committed."""
        self._desk.committed(self._transfer)

    def aborted(self) -> None:
        """The transaction was aborted: the outputs wait for the next, which is put together anew."""


def routing_producer(config: Mapping[str, Any]) -> Any:
    """Make a ``kpsplit.Producer``; loaded only where something is produced."""
    from kpsplit.producer import Producer

    return Producer(config)


def following_producer(connection: Connection) -> Any:
    """Make a ``kpsplit.Producer`` that logs in as the connection does, whenever that changes."""
    return connection.follow(routing_producer(connection.properties))
