"""The producers topic: registrations and answers (protocol, section 6.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Message

from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError, RecordError, UnknownOutcomeError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, failed_for_good, translate
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.control_plane import Registrations
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration, decode_entry

if TYPE_CHECKING:
    from kpsplit.kafka.following import FollowingProducer


class AcknowledgedWriter:
    """Writes single records with acks=all, and knows when each one was acknowledged. Not thread safe.

    A client that failed for good (a right was missing, say) is replaced for the next write.
    """

    def __init__(self, connection: Connection, role: str, *, idempotent: bool = True) -> None:
        self._make = partial(
            connection.open_producer,
            role,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=0,
            message_timeout_ms=60_000,
            socket_timeout_ms=connection.answer_ms(),
        )
        self._made: FollowingProducer | None = self._make()  # at once: it connects meanwhile

    @property
    def _producer(self) -> FollowingProducer:
        self._made = self._made or self._make()
        return self._made

    def write(
        self, topic: str, key: bytes | None, value: bytes | None, deadline: Deadline, *, partition: int = 0
    ) -> int:
        """Write one record and return its offset.

        Raises:
            UnknownOutcomeError: no acknowledgement in time; the record may be written.
            KpsplitError: it was refused.
        """
        (offset,) = self.write_all(topic, [(key, value)], deadline, partition=partition)
        return offset

    def send(self, topic: str, key: bytes, value: bytes, partition: int) -> None:
        """Write one record without waiting; whether that succeeds is not reported."""
        with suppress(BufferError, KafkaException):
            self._producer.produce(topic, value, key, partition)
            self._producer.poll(0)

    def write_all(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        deadline: Deadline,
        *,
        partition: int = 0,
    ) -> list[int]:
        """Write records (key, value) in this order, wait for them together, return their offsets.

        Raises: as ``write``; some of the records may be written then.
        """
        try:
            return self._write_all(topic, records, deadline, partition)
        except (KpsplitError, KafkaException) as raised:
            if failed_for_good(raised):
                self._made = None
            raise

    def _write_all(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        deadline: Deadline,
        partition: int,
    ) -> list[int]:
        reports: list[Message] = []

        def report(_: object, message: Message) -> None:
            reports.append(message)

        what, left, producer = f"write to {topic}/{partition}", deque(records), self._producer
        count = len(left)
        while left:
            key, value = left[0]
            try:
                producer.produce(topic, value, key, partition, report)
                left.popleft()
            except BufferError:  # the client's queue is full
                deadline.check(what)
                producer.poll(min(0.1, deadline.left()))
            except KafkaException as exception:
                raise translate(error_of(exception), what) from exception
        while len(reports) < count and not deadline.expired():
            producer.poll(min(0.1, deadline.left()))
        if len(reports) < count:
            raise UnknownOutcomeError(f"could not {what}: no acknowledgement in time")
        for message in reports:
            if (error := message.error()) is not None:
                raise translate(error, what, writing=True) from KafkaException(error)
        offsets = [offset for message in reports if (offset := message.offset()) is not None]
        if len(offsets) < count:
            raise UnknownOutcomeError(
                f"could not {what}: an acknowledgement does not say where it was written"
            )
        return offsets


class ProducersLog:
    """Implements the driver's WritersPort. Not thread safe.

    No client of kpsplit writes there in transactions. Everything is read, whatever transaction it is of: one
    that stays open would hide the registrations and answers after it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._registrations = Registrations()
        self._tail = LogTail(connection, PRODUCERS_TOPIC, self._fold, everything=True)
        self._writer: AcknowledgedWriter | None = None
        self.garbage: dict[bytes, str] = {}
        """Keys whose latest record is none that kpsplit writes, and what is wrong with it."""

    def read(self, deadline: Deadline) -> Registrations:
        self._tail.read_to_end(deadline)
        return self._registrations

    def await_change(self, seconds: float) -> None:
        self._tail.poll(seconds)

    def remove(self, producers: Iterable[ProducerRegistration], deadline: Deadline) -> None:
        self._writer = self._writer or AcknowledgedWriter(self._connection, "registrations")
        self._writer.write_all(PRODUCERS_TOPIC, [(record.key, None) for record in producers], deadline)

    def pause_reports(self, partition: str, attempt_id: str, deadline: Deadline) -> dict[str, PauseReport]:
        """Return by instance name what producers report of an attempt's pause, as far as it comes in time.

        Awaited are the producers that acknowledged the fence. Never raises: the operation is over.
        """
        reports: dict[str, PauseReport] = {}
        with suppress(KpsplitError):
            while True:
                read = self.read(deadline).all()
                held = [r for r in read if r.acknowledged.get(partition) == attempt_id]
                reports = {
                    instance_name(r.instance): pause
                    for r in held
                    if (pause := r.pauses.get(partition)) and pause.attempt == attempt_id
                }
                if len(reports) == len({r.instance for r in held}) or deadline.left() <= 0:
                    break
                self.await_change(deadline.left())
        return reports

    def close(self) -> None:
        self._tail.close()
        self._writer = None

    def _fold(self, message: Message) -> None:
        key = message.key() or b""
        self.garbage.pop(key, None)
        try:
            self._registrations.fold(decode_entry(key, message.value()))
        except RecordError as error:
            self.garbage[key] = error.message
