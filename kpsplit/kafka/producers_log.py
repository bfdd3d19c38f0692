"""The producers topic: registrations and answers (design, section 6)."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, Message

from kpsplit.errors import FutureVersionError, KpsplitError, RecordError, UnknownOutcomeError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import Expiry, ProducerRecord, decode_record
from kpsplit.splitter.writers import Registrations


class AcknowledgedWriter:
    """Writes single records with acks=all, and knows when each one was acknowledged. Not thread safe."""

    def __init__(self, connection: Connection, role: str) -> None:
        self._producer = connection.open_producer(
            role, enable_idempotence=True, linger_ms=0, message_timeout_ms=60_000
        )

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        deadline: Deadline,
        *,
        partition: int = 0,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> int:
        """Write one record and return its offset.

        Raises:
            UnknownOutcomeError: no acknowledgement in time; the record may be written.
            KpsplitError: it was refused.
        """
        reports: list[tuple[object, Message]] = []
        what = f"write to {topic}/{partition}"
        try:
            self._producer.produce(
                topic, value, key, partition, lambda e, m: reports.append((e, m)), headers=headers or []
            )
        except KafkaException as exception:
            raise translate(error_of(exception), what) from exception
        while not reports and deadline.left() > 0:
            self._producer.poll(min(0.1, deadline.left()))
        if not reports:
            raise UnknownOutcomeError(f"could not {what}: no acknowledgement in time")
        error, message = reports[0]
        if error is not None:
            raise translate(message.error(), what, writing=True)
        return message.offset() or 0


def end_of_registrations(connection: Connection, seconds: float) -> int | None:
    """Return where the producers topic ends; None if there is none, or that cannot be asked in time."""
    place = PhysicalPartition(PRODUCERS_TOPIC, 0)
    try:
        found = ClusterAdmin(connection).end_offsets([place], seconds=seconds).get(place)
    except KpsplitError:
        return None
    return None if found is None else found.offset


class ProducersLog:
    """Implements the driver's WritersPort. Not thread safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._registrations = Registrations()
        self._tail = LogTail(connection, PRODUCERS_TOPIC, self._fold)
        self._writer: AcknowledgedWriter | None = None
        self.garbage = 0

    def read(self, deadline: Deadline) -> Registrations:
        """Read the topic to the end that it has now."""
        self._tail.read_to_end(deadline)
        return self._registrations

    def await_change(self, seconds: float) -> None:
        """Return when a record arrived, or after that many seconds."""
        self._tail.poll(seconds)

    def expire(self, producers: Iterable[ProducerRecord], deadline: Deadline) -> None:
        """Note that these producers stayed silent; abort what their transactions left open.

        Not where another producer has taken the id since: it would be that one's transaction.
        """
        for record in producers:
            if record.transactional_id is not None and not self._registrations.superseded(record):
                self._fence_transactions(record.transactional_id, deadline)
            expiry = Expiry(record.instance, record.generation)
            self._writer = self._writer or AcknowledgedWriter(self._connection, "expiry")
            offset = self._writer.write(PRODUCERS_TOPIC, expiry.key, expiry.encode(), deadline)
            self._registrations.fold(expiry, offset)

    def close(self) -> None:
        """End the clients."""
        self._tail.close()

    def _fold(self, message: Message) -> None:
        try:
            record = decode_record(message.key(), message.value())
        except FutureVersionError:
            raise
        except RecordError:
            self.garbage += 1
        else:
            self._registrations.fold(record, message.offset() or 0)

    def _fence_transactions(self, transactional_id: str, deadline: Deadline) -> None:
        """Make the broker refuse the silent producer's open transaction: it may not commit beyond the cut."""
        fencer = self._connection.open_producer("fencer", transactional_id=transactional_id, linger_ms=0)
        try:
            fencer.init_transactions(max(deadline.left(), 0.05))
        except KafkaException as exception:
            raise translate(
                error_of(exception), f"end the open transaction of silent producer {transactional_id}"
            ) from exception
