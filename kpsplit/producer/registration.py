"""A producer's own record in the producers topic (design, section 6). Owned by the library's thread."""

from __future__ import annotations

from dataclasses import replace

from kpsplit.errors import RecordError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import Certificate, PauseReport, ProducerRecord


class Registration:
    """Keeps the record and publishes it; every write is acknowledged before the call returns.

    Every method raises KpsplitError if the write is not known to have succeeded. What it would have promised
    is then not in ``record``; what an operator may hold against us is: the topics, for we must answer for
    them, and the generation, for it may be expired already and is never used twice.
    """

    def __init__(
        self,
        connection: Connection,
        instance: int,
        client_id: str,
        transactional_id: str | None,
        fenced_below: int | None = None,
    ) -> None:
        self._connection = connection
        self._writer: AcknowledgedWriter | None = None
        self._published = False
        self._registered: frozenset[str] = frozenset()
        self.record = ProducerRecord(
            instance=instance,
            generation=1,
            client_id=client_id,
            transactional_id=transactional_id,
            fenced_below=fenced_below,
        )

    @property
    def registered(self) -> bool:
        """Tell whether any topic is registered."""
        return self._published

    def add_topic(self, topic: str, ready: dict[str, str], deadline: Deadline) -> None:
        """Register a topic, with the answers to its PREPAREs; the caller then reads the control topic."""
        if topic in self._registered:
            return
        topics = tuple(sorted({*self.record.topics, topic}))
        self.record = replace(self.record, topics=topics)
        self._published = True
        self._publish(replace(self.record, ready={**self.record.ready, **ready}), deadline)

    def renew(self, deadline: Deadline) -> None:
        """Register again after the lease ran out: operators may have expired the old generation."""
        if self._published:
            self.record = replace(self.record, generation=self.record.generation + 1)
            self._publish(self.record, deadline)

    def answer_ready(self, partition: str, attempt_id: str, deadline: Deadline) -> None:
        """Answer PREPARE."""
        ready = {**self.record.ready, partition: attempt_id}
        self._publish(replace(self.record, ready=ready), deadline)

    def acknowledge(self, partition: str, attempt_id: str, deadline: Deadline) -> None:
        """Acknowledge FENCE."""
        acknowledged = {**self.record.acknowledged, partition: attempt_id}
        self._publish(replace(self.record, acknowledged=acknowledged), deadline)

    def report_pause(self, partition: str, pause: PauseReport, deadline: Deadline) -> None:
        """Report what an attempt cost."""
        pauses = {**self.record.pauses, partition: pause}
        self._publish(replace(self.record, pauses=pauses), deadline)

    def certify(self, certificates: dict[str, Certificate], deadline: Deadline) -> None:
        """Say at the end what was done.

        Of partitions where too many records failed to name them all, only that we closed: who waits for us
        must know that in any case.
        """
        if self._published:
            closed, said = replace(self.record, closed=True), dict(certificates)
            while said and not _fits(replace(closed, certificates=said)):
                del said[max(said, key=lambda parent: len(said[parent].failed))]
            self._publish(replace(closed, certificates=said), deadline)

    def _publish(self, record: ProducerRecord, deadline: Deadline) -> None:
        self._writer = self._writer or AcknowledgedWriter(self._connection, "registration")
        offset = self._writer.write(PRODUCERS_TOPIC, record.key, record.encode(), deadline)
        self.record = record if record.since is not None else replace(record, since=offset)
        self._published = True
        self._registered = frozenset(record.topics)


def _fits(record: ProducerRecord) -> bool:
    try:
        record.encode()
    except RecordError:
        return False
    return True
