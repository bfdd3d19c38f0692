"""What kpsplit's own writers make of an acknowledgement that does not say where the record stands."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.clock import Deadline
from kpsplit.errors import DeadlineExceededError, KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.kafka.cluster_admin import LogEnd
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import EnrolmentLog
from kpsplit.kafka.markers import Markers
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import Marker, MarkerKind
from kpsplit.splitter.steps import PlannedMarker
from tests.unit.samples import PARENT

SEAL = PlannedMarker(0, PARENT, Marker(MarkerKind.SEAL, PARENT, "attempt"))


class Acknowledging:
    """A client that is told at once that a record is written, at this offset or (None) somewhere."""

    def __init__(self, offset: int | None) -> None:
        self._message = Message(topic="t", partition=0, offset=-1001 if offset is None else offset)
        self._reports: list[Any] = []
        self.purged = False

    def produce(self, *arguments: Any, **_: Any) -> None:
        self._reports.append(arguments[4])

    def send(self, append: Any, _: int) -> None:
        self._reports.append(append.report)

    def poll(self, _: float) -> None:
        while self._reports:
            self._reports.pop()(None, self._message)

    def drop(self) -> None:
        self.purged = True


class Admin:
    connection = None

    def end_offsets(self, places: Any, seconds: float = 8.0) -> dict[PhysicalPartition, LogEnd]:
        return {place: LogEnd(5, 1) for place in places}


def markers(client: Acknowledging) -> Markers:
    made = Markers(Admin())  # type: ignore[arg-type]
    made._producers = [client]  # type: ignore[list-item]
    return made


def test_a_marker_is_cut_where_its_acknowledgement_says() -> None:
    (cut,) = markers(Acknowledging(7)).append([SEAL], Deadline(5))
    assert (cut.segment, cut.offset) == (0, 7)


def test_a_marker_of_which_it_is_not_said_where_it_stands_is_to_be_read_back() -> None:
    client = Acknowledging(None)
    made = markers(client)
    with pytest.raises(UnknownOutcomeError):
        made.append([SEAL], Deadline(5))
    assert client.purged and made._unknown == {"attempt"}


@pytest.mark.parametrize("offset", [0, 7])
def test_a_record_is_written_where_its_acknowledgement_says(offset: int, monkeypatch: Any) -> None:
    assert writer(offset, monkeypatch).write("topic", b"k", b"v", Deadline(5)) == offset


def test_a_record_of_which_it_is_not_said_where_it_stands_may_be_written(monkeypatch: Any) -> None:
    """A claim that took that for the first offset would read nothing before it."""
    with pytest.raises(UnknownOutcomeError):
        writer(None, monkeypatch).write("topic", b"k", b"v", Deadline(5))


def writer(offset: int | None, patch: pytest.MonkeyPatch) -> AcknowledgedWriter:
    connection = Connection({"bootstrap.servers": "127.0.0.1:1"})
    patch.setattr(connection, "open_producer", lambda *_, **__: Acknowledging(offset))
    return AcknowledgedWriter(connection, "tests")


@pytest.mark.parametrize("at_once", [True, False], ids=["refused", "reported"])
@pytest.mark.parametrize(
    ("code", "fatal", "clients"),
    [
        (KafkaError._FATAL, False, 2),
        (KafkaError._PURGE_QUEUE, False, 2),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, True, 2),
        (KafkaError._MSG_TIMED_OUT, False, 1),
    ],
)
def test_a_client_that_failed_for_good_is_replaced_for_the_next_write(
    monkeypatch: pytest.MonkeyPatch, code: int, fatal: bool, clients: int, at_once: bool
) -> None:
    """After any other error the client may still write, and must not be overtaken by another."""
    error = KafkaError(code, fatal=fatal)
    made: list[Acknowledging] = []

    class Failing(Acknowledging):
        def produce(self, *arguments: Any, **more: Any) -> None:
            if made == [self] and at_once:
                raise KafkaException(error)
            super().produce(*arguments, **more)
            self._message.set_error(error if made == [self] else None)

    def make(*_: object, **__: object) -> Acknowledging:
        made.append(Failing(7))
        return made[-1]

    connection = Connection({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(connection, "open_producer", make)
    writer = AcknowledgedWriter(connection, "tests")
    with pytest.raises(KpsplitError):
        writer.write("topic", b"k", b"v", Deadline(5))
    with nullcontext() if clients == 2 else pytest.raises(KpsplitError):
        assert writer.write("topic", b"k", b"v", Deadline(5)) == 7
    assert len(made) == clients


ENROLMENT = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=False, slots=4)


def enrolment_log(monkeypatch: pytest.MonkeyPatch, write: Any) -> EnrolmentLog:
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    log = EnrolmentLog(connection, "orders", cast(Any, None), AcknowledgedWriter(connection, "operator"))
    monkeypatch.setattr(log, "_take", lambda _: None)
    monkeypatch.setattr(log._producer, "write", write)
    return log


def test_a_claim_of_an_enrolment_whose_mark_no_broker_acknowledges_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnreachableError, match="no acknowledgement in time") as caught:
        enrolment_log(monkeypatch, None).claim(Deadline(0.2))
    assert caught.value.changed is False


def test_an_enrolment_is_not_written_when_there_is_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    log = enrolment_log(monkeypatch, lambda *given: written.append(given) or 0)
    with pytest.raises(DeadlineExceededError, match="record the enrolment of orders") as caught:
        log.record(ENROLMENT, Deadline(0), "look again")
    assert (written, caught.value.changed) == ([], False)


def test_an_enrolment_that_may_be_written_says_how_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any) -> int:
        raise UnknownOutcomeError("no answer")

    with pytest.raises(UnknownOutcomeError, match="no answer; run it again"):
        enrolment_log(monkeypatch, write).record(ENROLMENT, Deadline(5), "run it again")
