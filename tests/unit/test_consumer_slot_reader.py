"""What the client gives, in its order: records, ends and errors of logs, also of those read no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.consumer.fetch import reader as readings
from kpsplit.consumer.fetch.gaps import EndReached, Found, GapFound, LogBounds, ReadingEvent, Unreadable
from kpsplit.consumer.fetch.reader import FIRST_REST_SECONDS, SlotReader
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import LEADER_MOVES
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, GapReason
from tests.unit.consumer_samples import WHOLE_SLOT, message
from tests.unit.samples import PARENT, UNSPLIT, merged, operated, phantom, split_attempt

pytestmark = pytest.mark.usefixtures("both_paths")
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


class Client:
    """Gives what a test hands it; ``assigned`` are the places from which it was asked to read, in order."""

    def __init__(self) -> None:
        self.assigned: list[tuple[str, int, int]] = []

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned += [(place.topic, place.partition, place.offset) for place in places]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        """It gives nothing of them any more."""

    def list_topics(self, topic: str, timeout: float) -> None:
        """It knows all leaders."""

    def close(self) -> None:
        """Nothing to do."""


class Merged(Fed):
    """Reads a partition that was split in halves and merged again, from the overflow record on."""

    def __init__(self, positions: dict[int, int], state: PartitionState | None = None) -> None:
        super().__init__()
        self.reader.close()
        self.client = Client()
        self.reader._consumer = self.client  # type: ignore[assignment]
        self.reader._identified.update({PARENT.topic, phantom(0).topic, phantom(0, 2).topic})
        self.reader.update(state or merged())
        self.reader.own(WHOLE_SLOT, Cursor(WHOLE_SLOT.range, positions))
        self.reader._arrange()
        self.reader.refreshed(self.reader.wants_refresh)
        self.reader._arrange()
        self.client.assigned.clear()

    @property
    def ends(self) -> list[int]:
        """The ends that were reported."""
        return [event.offset for event in self.events if isinstance(event, EndReached)]


def end(place: PhysicalPartition, offset: int) -> Message:
    return failure(place, KafkaError._PARTITION_EOF, offset)


def test_nothing_is_lost_where_one_step_brings_a_log_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out of the reopened parent, before the rest of a phantom had come, is read again."""
    fed = Merged({1: 1, 2: 0})
    before = [message(1), message(2, None, marker="s"), message(3, epoch=2)]
    between, after = message(0, source=phantom(0)), message(4, epoch=2)
    assert len(fed.take(monkeypatch, *before, between, after)) == 2
    assert fed.client.assigned == [(PARENT.topic, PARENT.partition, 3)]
    assert len(fed.take(monkeypatch, message(3, epoch=2), after)) == 2


def test_an_end_that_could_not_be_taken_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports an end once: here while the rest of a phantom is still to come."""
    fed = Merged({1: 1, 2: 0})
    first = [message(1), message(2, None, marker="s"), end(PARENT, 3), message(0, source=phantom(0))]
    assert len(fed.take(monkeypatch, *first)) == 2
    assert fed.ends == [] and fed.client.assigned == [(PARENT.topic, PARENT.partition, 3)]
    fed.take(monkeypatch, end(PARENT, 3))
    fed.take(monkeypatch)
    assert len(fed.ends) == 1 and len(fed.client.assigned) == 1


def test_when_slots_have_come_or_gone_the_end_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """``on_assign`` has named the partition anew, and the client reports an end only once."""
    fed, place = Merged({4: 3}), (PARENT.topic, PARENT.partition, 4)
    fed.take(monkeypatch, message(3, epoch=2), end(PARENT, 4))
    fed.take(monkeypatch)
    assert len(fed.ends) == 1 and fed.client.assigned == []
    fed.reader.own(OwnedSlot(PARENT, 1, 4), Cursor(OwnedSlot(PARENT, 1, 4).range, {4: 4}))
    fed.take(monkeypatch)
    assert fed.client.assigned == [place]
    fed.take(monkeypatch, end(PARENT, 4))
    fed.reader.disown([WHOLE_SLOT])
    fed.take(monkeypatch)
    assert fed.client.assigned == [place] * 2
    fed.take(monkeypatch, end(PARENT, 4))
    assert len(fed.ends) == 3


def test_a_log_that_ends_before_the_place_where_reading_goes_on_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The marker at 2 was cut off. Asked for 3, brokers say that it is outside; from 2 on nobody would."""
    fed = Merged({1: 1, 2: 1})
    assert len(fed.take(monkeypatch, message(1), end(PARENT, 2))) == 1
    assert fed.ends == [] and fed.client.assigned == [(PARENT.topic, PARENT.partition, 3)]


def test_an_end_after_which_more_of_the_log_comes_is_none(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives what it had fetched before, too: the log may go on after the last record as well."""
    assert fed.take(monkeypatch, record(FIRST, 0), end(FIRST, 1), record(FIRST, 1)) == [b"0", b"1"]
    assert fed.take(monkeypatch, end(FIRST, 2), record(FIRST, 2), end(FIRST, 3)) == [b"2"]
    assert fed.take(monkeypatch, end(FIRST, 3), failure(GONE, KafkaError._PARTITION_EOF)) == []
    ends = [event for event in fed.events if isinstance(event, EndReached)]
    assert ends == [EndReached(FIRST, 3)] * 2


def test_records_that_an_error_stands_for_are_read_again(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``check.crcs`` the client reports a broken batch, and gives what comes after it."""
    now = [100.0]
    monkeypatch.setattr(readings, "monotonic", lambda: now[0])
    broken = failure(FIRST, KafkaError._BAD_MSG, 1)
    assert fed.take(monkeypatch, record(FIRST, 0), broken, record(FIRST, 5)) == [b"0"]
    assert [(e.source, e.parent) for e in fed.events if isinstance(e, Unreadable)] == [(FIRST, FIRST)]
    assert FIRST not in fed.reader._assigned
    for _ in range(2):
        fed.take(monkeypatch)
        now[0] += FIRST_REST_SECONDS
    fed.take(monkeypatch)
    assert fed.reader._assigned[FIRST] == 1
    assert fed.take(monkeypatch, record(FIRST, 1), record(FIRST, 5)) == [b"1", b"5"]


class Probe:
    """Brokers are asked about a log; they answer when a test says so."""

    made: ClassVar[list[Probe]] = []

    def __init__(self, *args: object, holds_up: bool = True, **_: object) -> None:
        self.source, self.position = cast("tuple[PhysicalPartition, int]", args[2:4])
        self.holds_up, self.error, self.answered = holds_up, None, False
        self.found = Found("id-of-orders", LogBounds(0, 9, 9))
        self.made.append(self)

    def done(self) -> bool:
        return self.answered


def test_an_answer_about_a_place_that_reading_has_left_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log ends at 9, and the segment at 12."""
    monkeypatch.setattr(readings, "LogProbe", Probe)
    Probe.made.clear()
    fed = Merged({0: 7}, operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 12}))
    fed.take(monkeypatch, message(7), end(PARENT, 8))
    fed.take(monkeypatch, message(8), end(PARENT, 9))
    assert [probe.position for probe in Probe.made] == [8]
    for _ in range(3):
        Probe.made[-1].answered = True
        fed.take(monkeypatch)
    assert [probe.position for probe in Probe.made] == [8, 9]
    assert [event.gap.reason for event in fed.events if isinstance(event, GapFound)] == [GapReason.CUT_OFF]


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


@pytest.mark.parametrize("code", sorted(LEADER_MOVES))
def test_a_leader_that_moves_neither_ends_reading_nor_is_reported(
    fed: Fed, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client looks for the new one and passes over nothing: a log that cannot be read would rest."""
    assert fed.take(monkeypatch, record(FIRST, 0), failure(FIRST, code), record(FIRST, 1)) == [b"0", b"1"]
    assert fed.events == [] and not fed.reader._probes
    assert fed.reader._assigned[FIRST] == 2


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


def test_a_step_takes_no_more_records_than_are_wanted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, asked = Fed(FIRST), list[int]()

    def fetch(_seconds: float, count: int) -> list[Message]:
        asked.append(count)
        begin = sum(asked[:-1])
        return [record(FIRST, offset) for offset in range(begin, begin + count)]

    monkeypatch.setattr(fed.reader, "_fetch", fetch)
    fed.reader.most = 100
    for _ in range(5):
        fed.reader.step(0, ROOM)
    fed.reader.close()
    assert max(asked) == 100


def test_what_was_read_along_a_lineage_is_forgotten_where_the_topic_is_read_plainly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that returned to plain clients: the same log, and no segment of before means anything."""
    fed = Merged({4: 3})
    assert len(fed.take(monkeypatch, message(3, epoch=2), end(PARENT, 4))) == 1
    fed.reader.disown([WHOLE_SLOT])
    fed.reader.update(PartitionState.unsplit(PARENT, ""))
    fed.reader.own(WHOLE_SLOT, Cursor(WHOLE_SLOT.range, {0: 4}))
    fed.reader.refreshed(fed.reader.wants_refresh)
    fed.take(monkeypatch)
    assert fed.client.assigned[-1] == (PARENT.topic, PARENT.partition, 4)
    plain = [message(4), message(5, epoch=2), message(6, epoch=1)]
    assert len(fed.take(monkeypatch, *plain)) == 3, "no stamp is judged"
    assert fed.reader.cursor(WHOLE_SLOT) == Cursor(WHOLE_SLOT.range, {0: 7})
    assert fed.take(monkeypatch, end(PARENT, 7)) == [] and fed.ends[-1] == 7
