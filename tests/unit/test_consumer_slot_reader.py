"""What the client tells of logs that are read no more: it drops their records, and keeps their errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.consumer.fetch.gaps import ReadingEvent, Unreadable
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor

ROOM = 1 << 20
FIRST, SECOND, GONE = (PhysicalPartition(topic, 0) for topic in ("first", "second", "gone"))


class Fed:
    """A reader without brokers that is given messages in the client's place."""

    def __init__(self, *owned: PhysicalPartition) -> None:
        self.events: list[ReadingEvent] = []
        self.reader = SlotReader(Connection({"bootstrap.servers": "localhost:1"}), {}, self.events.append)
        for parent in owned:
            self.own(parent)

    def own(self, parent: PhysicalPartition) -> None:
        """Read a partition from its beginning."""
        self.reader.update(PartitionState.unsplit(parent, ""))
        slot = OwnedSlot(parent, 0, 1)
        self.reader.own(slot, Cursor(slot.range, {0: 0}))

    def take(self, monkeypatch: pytest.MonkeyPatch, *messages: Message) -> list[bytes | None]:
        """Return the values of the records that are handed out."""
        monkeypatch.setattr(self.reader, "_fetch", lambda seconds, count: list(messages))
        return [m.value() for batch in self.reader.step(0, ROOM) for m in batch.messages]


@pytest.fixture(params=[(FIRST,), (FIRST, SECOND)], ids=["one log", "two logs"])
def fed(request: pytest.FixtureRequest) -> Iterator[Fed]:
    one = Fed(*request.param)
    yield one
    one.reader.close()


def record(place: PhysicalPartition, offset: int) -> Message:
    return Message(place.topic, place.partition, offset, key=b"k", value=b"%d" % offset)


def failure(place: PhysicalPartition, code: int, offset: int = 0) -> Message:
    return Message(place.topic, place.partition, offset, error=KafkaError(code, "told by a test"))


@pytest.mark.parametrize(
    "code",
    [KafkaError._AUTO_OFFSET_RESET, KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED],
    ids=["out of range", "end", "no right"],
)
def test_an_error_of_a_log_that_is_read_no_more_is_nobodys(
    fed: Fed, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = failure(GONE, code, 100)
    assert fed.take(monkeypatch, stale) == []
    assert fed.take(monkeypatch, record(FIRST, 0), stale, record(FIRST, 1)) == [b"0", b"1"]
    assert fed.take(monkeypatch, record(FIRST, 2)) == [b"2"]
    assert fed.events == [] and not fed.reader._probes


def test_an_error_of_a_log_that_is_read_is_looked_into(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fed.take(monkeypatch, record(FIRST, 0), failure(FIRST, KafkaError._AUTO_OFFSET_RESET)) == [b"0"]
    assert set(fed.reader._probes) == {FIRST}


def test_an_error_of_no_log_is_told(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message(error=KafkaError(KafkaError._AUTHENTICATION, "told by a test"))
    assert fed.take(monkeypatch, record(FIRST, 0), message) == [b"0"]
    told = [event for event in fed.events if isinstance(event, Unreadable)]
    assert [event.source for event in told] == [None]


def test_the_client_is_asked_for_the_leaders_of_a_topic_that_it_begins_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself it would ask within a second. It does not wait for the answer, and says so."""
    one, other = (PhysicalPartition("topic", number) for number in range(2))
    fed = Fed(one)
    asked: list[tuple[str, float]] = []

    def list_topics(topic: str, timeout: float) -> None:
        asked.append((topic, timeout))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "told by a test"))

    monkeypatch.setattr(fed.reader._consumer, "list_topics", list_topics)
    assert fed.take(monkeypatch, record(one, 0)) == [b"0"]
    fed.own(other)
    assert fed.take(monkeypatch, record(one, 1), record(other, 0)) == [b"1", b"0"]
    assert asked == [("topic", 0)], "once for all partitions of a topic"
    fed.reader.disown([OwnedSlot(one, 0, 1), OwnedSlot(other, 0, 1)])
    assert fed.take(monkeypatch) == []
    fed.own(other)
    assert fed.take(monkeypatch, record(other, 0)) == [b"0"]
    assert asked == [("topic", 0)] * 2, "it may have forgotten them meanwhile"
    fed.reader.close()
