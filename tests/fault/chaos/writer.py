"""One writer of a run, a process: the demo's writer, which can also write in transactions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaException

from kpsplit.demo.endpoints import WriterOrders
from kpsplit.demo.records import Item, JournalWriter
from kpsplit.demo.writer import Writer, run_writer

TRANSACTION_MS = 600_000
"""Longer than any fault lasts: a writer that is fenced was fenced by kpsplit."""
CALL_SECONDS = 30.0


class TransactionalWriter(Writer):
    """Writes each portion in a transaction."""

    def __init__(self, orders: WriterOrders, journal: JournalWriter) -> None:
        self._reports: list[tuple[int, int | None, int | None]] = []
        """What was reported inside the transaction: number, partition, offset."""
        orders.properties.update(
            {"transactional.id": orders.transactional_id, "transaction.timeout.ms": TRANSACTION_MS}
        )
        super().__init__(orders, journal)
        _complete(lambda: self.client.init_transactions(CALL_SECONDS))

    def send(self, items: Sequence[Item]) -> None:
        """Send records and commit them, or abort where the library asks for that."""
        self.client.begin_transaction()
        super().send(items)
        committed = _complete(lambda: self.client.commit_transaction(CALL_SECONDS))
        if not committed:
            _complete(lambda: self.client.abort_transaction(CALL_SECONDS))
        reports, self._reports = self._reports, []
        for number, partition, offset in reports:
            self.noted(number, committed, partition, offset)

    def reported(self, sequence: int, error: Any, message: Any) -> None:
        """Take a delivery report: without an error, the end of the transaction decides."""
        if error is None:
            self._reports.append((sequence, message.partition(), message.offset()))
        else:
            super().reported(sequence, error, message)


def _complete(call: Callable[[], None]) -> bool:
    """Call until it succeeds; False: the transaction has to be aborted.

    Raises:
        KafkaException: the producer was fenced, or is of no use for another reason.
    """
    while True:
        try:
            call()
        except KafkaException as exception:
            error = exception.args[0]
            if error.txn_requires_abort():
                return False
            if not error.retriable():
                raise
        else:
            return True


def _make(orders: WriterOrders, journal: JournalWriter) -> Writer:
    return (Writer if orders.transactional_id is None else TransactionalWriter)(orders, journal)


if __name__ == "__main__":
    sys.exit(run_writer(_make))
