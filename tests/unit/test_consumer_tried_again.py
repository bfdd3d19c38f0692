"""What stops a log, or the whole consumer: tried again, or told to whoever polls."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.clock import monotonic
from kpsplit.consumer.fetch import physical_reader as probing
from kpsplit.consumer.fetch import reader as reading
from kpsplit.consumer.fetch.batch import size_of
from kpsplit.consumer.fetch.gaps import GapFound, GapPolicy, ReadingEvent, Unreadable
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, GapReason
from tests.unit.consumer_samples import message
from tests.unit.engine_world import World, poller_of
from tests.unit.samples import PARENT, UNSPLIT, operated, split_attempt

SLOT = OwnedSlot(PARENT, 0, 1)
ROOM = 1 << 20
SPLIT = operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 8})


class Member:
    """A reader of one log; the test says what the client and the brokers answer, and what time it is."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, state: PartitionState, on_gap: GapPolicy = GapPolicy.ERROR
    ) -> None:
        self.events: list[ReadingEvent] = []
        self.now = 100.0
        self.due: list[Message] = []
        self.refusal: int | None = None
        self.asked = 0
        self.high, self.leader_epoch = 20, 5
        monkeypatch.setattr(reading, "monotonic", lambda: self.now)
        connection = Connection({"bootstrap.servers": "localhost:1"})
        self.reader = SlotReader(connection, {}, self.events.append, on_gap=on_gap)
        self.reader._admin._client = self  # type: ignore[assignment]
        monkeypatch.setattr(self.reader, "_fetch", self._fetched)
        self.reader.update(state)
        self.reader.own(SLOT, Cursor.at_start(SLOT.range))

    def _fetched(self, seconds: float, count: int) -> list[Message]:
        assigned = self.reader._assigned
        given, self.due = (self.due, []) if PARENT in assigned else ([], self.due)
        return given

    def steps(self, count: int) -> list[bytes | None]:
        """Read; return the values of what is handed out."""
        return [
            m.value() for _ in range(count) for batch in self.reader.step(0, ROOM) for m in batch.messages
        ]

    # the brokers' answers

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        future: Future[Any] = Future()
        if self.refusal is None:
            future.set_result(SimpleNamespace(topic_id=UNSPLIT.topic_id))
        else:
            future.set_exception(KafkaException(KafkaError(self.refusal, "told by a test")))
        return {PARENT.topic: future}

    def list_offsets(self, asked: Any, isolation_level: Any, **_: Any) -> dict[Any, Future[Any]]:
        ((place, spec),) = asked.items()
        future: Future[Any] = Future()
        committed = isolation_level is probing.IsolationLevel.READ_COMMITTED
        offset = 0 if spec is probing._EARLIEST else 2 if committed else 20
        future.set_result(SimpleNamespace(offset=min(offset, self.high), leader_epoch=self.leader_epoch))
        return {place: future}


def test_a_log_that_could_not_be_described_is_read_when_the_right_was_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member(monkeypatch, UNSPLIT)
    member.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    member.due = [message(0, value=b"0")]
    for _ in range(6):
        assert member.steps(5) == []
        member.now += 40
    assert len([e for e in member.events if isinstance(e, Unreadable)]) == 1, "told once, however often tried"
    member.refusal = None
    member.now += 40
    assert member.steps(5) == [b"0"]
    member.reader.close()


def test_a_stopped_log_is_tried_after_longer_and_longer_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(monkeypatch, UNSPLIT)
    member.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    for _ in range(1000):
        member.steps(3)
        member.now += 0.1
    assert 6 <= member.asked <= 10, "after 1, 2, 4, 8, 16 and 30 s of the 100"
    member.reader.close()


def test_an_open_transaction_before_a_segments_end_is_looked_at_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Member(monkeypatch, SPLIT)
    member.steps(4)
    end = Message(PARENT.topic, PARENT.partition, 2, error=KafkaError(KafkaError._PARTITION_EOF, ""))
    member.due = [message(0, value=b"0"), message(1, value=b"1"), end]
    assert member.steps(2) == [b"0", b"1"]
    before = member.asked
    member.steps(40)
    assert member.asked - before <= 2
    assert not member.events
    member.reader.close()


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._PARTITION_EOF])
def test_a_deposed_leader_is_asked_once_a_second_until_the_present_one_answers(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Records are not skipped because it does not know them."""
    first, *others = SPLIT.lineage
    ended = replace(SPLIT, lineage=Lineage(PARENT, (replace(first, end_leader_epoch=5), *others)))
    member = Member(monkeypatch, ended, on_gap=GapPolicy.SKIP_AND_REPORT)
    member.steps(4)
    member.high, member.leader_epoch = 2, 4
    outside = Message(PARENT.topic, PARENT.partition, 2, error=KafkaError(code, "told by a test"))
    member.due = [message(0, value=b"0"), message(1, value=b"1"), outside]
    assert member.steps(2) == [b"0", b"1"]
    before = member.asked

    def go_on() -> None:
        if code == KafkaError._AUTO_OFFSET_RESET:  # that leader says so whenever it is asked for records
            member.due = [outside]
        member.steps(1)

    for _ in range(40):
        go_on()
    assert member.asked - before <= 2
    assert not member.events
    member.leader_epoch = 5
    end = monotonic() + 20
    while not member.events and monotonic() < end:
        go_on()
    assert [e.gap.reason for e in member.events if isinstance(e, GapFound)] == [GapReason.CUT_OFF]
    member.reader.close()


def test_poll_raises_when_the_engines_thread_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise SystemError("told by a test")

    with World() as world:
        poller = poller_of(world)
        monkeypatch.setattr(world.engine, "_chores", die)
        assert world.engine.ended(20)
        for call in (lambda: poller.poll(5), lambda: poller.consume(1, 5)):
            with pytest.raises(
                KpsplitError, match="background thread has ended: SystemError: told by a test"
            ):
                call()
        with pytest.raises(KpsplitError, match="background thread has ended"):
            world.engine.ask(lambda: None).result(5)


@pytest.mark.usefixtures("both_paths")
def test_keys_and_headers_count_as_memory() -> None:
    small = size_of([message(0, b"k", value=b"v")])
    assert size_of([message(0, b"k" * 5000, value=b"v")]) >= small + 4999
    headers = [("name", b"x" * 7000)]
    heavy = [Message("t", 0, n, b"k", b"v", headers=headers) for n in range(10)]
    assert size_of(heavy) >= 10 * (small + 7000)
