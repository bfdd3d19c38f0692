"""Which outputs go into a transaction: those of the records that it calls processed, and no others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.writes import CommitPayloadError, Processed
from kpsplit.consumer.run import outputs as transactional
from kpsplit.consumer.run.handlers import Output, OutputError, dead_letter, outputs_of
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.outputs import DeadLetters, OutputParticipant
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.errors import InvariantError, KpsplitError, UsageError
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.data import STAMP_HEADER
from tests.unit.lane_samples import (
    FIRST,
    PARENT,
    PATIENCE,
    WHOLE_SLOT,
    batch,
    eventually,
    keys_in,
    record,
    start,
)

A, B = (keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(2))
STATE = PartitionState.unsplit(PARENT, "")
ROOM = 100_000


def work_queue() -> WorkQueue:
    made = WorkQueue(1, ROOM, Judge(Stop()), transactional=True)
    start(made)
    return made


def take(from_: WorkQueue) -> Lane:
    with from_.lock:
        lane = from_.take()
    assert lane is not None
    return lane


def done(on: WorkQueue, lane: Lane, value: bytes | None = None) -> None:
    on.done(lane, (Output("target", value=value or str(lane.record.offset()).encode()),))


def processed(on: WorkQueue, mode: Mode = Mode.SLOTS, slot: OwnedSlot = WHOLE_SLOT) -> list[Processed]:
    cursors = tuple(c.settled(STATE.lineage) for c in on.cursor(slot))
    return [Processed(STATE, mode, cursors, (), PARENT)]


def written(on: WorkQueue, commit: list[Processed]) -> list[bytes | str | None]:
    return [output.value for kept in on.covered(commit) for output in kept.outputs]


def test_outputs_of_a_lane_go_along_although_another_lane_is_behind() -> None:
    here = work_queue()
    here.offer(batch([A, B, B]))
    slow = take(here)
    done(here, take(here))
    done(here, take(here))
    assert written(here, processed(here)) == [b"1", b"2"]
    done(here, slow)
    assert sorted(written(here, processed(here))) == [b"0", b"1", b"2"]  # type: ignore[type-var]


def test_what_was_processed_after_a_commit_was_put_together_waits_for_the_next() -> None:
    here = work_queue()
    here.offer(batch([A, A, B]))
    done(here, take(here))
    commit = processed(here)
    done(here, take(here))
    done(here, take(here))
    transfer = here.covered(commit)
    assert [output.value for kept in transfer for output in kept.outputs] == [b"0"]
    here.committed(transfer)
    assert sorted(written(here, processed(here))) == [b"1", b"2"]  # type: ignore[type-var]


def test_a_refused_commit_is_tried_again_with_the_same_outputs_in_the_order_of_each_lane() -> None:
    here = work_queue()
    here.offer(batch([A] * 5))
    for _ in range(5):
        done(here, take(here))
    assert written(here, processed(here)) == written(here, processed(here)) == [b"0", b"1", b"2", b"3", b"4"]


def test_one_offset_for_all_keys_covers_only_what_lies_below_it() -> None:
    here = work_queue()
    here.offer(batch([B, A, B]))
    done(here, take(here))
    slow = take(here)
    assert slow.record.key() == A
    done(here, take(here))
    assert written(here, processed(here, Mode.PLAIN)) == [b"0"]
    done(here, slow)
    assert len(written(here, processed(here, Mode.PLAIN))) == 3


def test_outputs_of_a_slot_that_left_are_forgotten() -> None:
    here = work_queue()
    here.offer(batch([A, B]))
    done(here, take(here))
    late = take(here)
    commit = processed(here)
    here.dropped([WHOLE_SLOT])
    done(here, late)
    assert written(here, commit) == []
    assert here.waiting_bytes() == 0
    assert here.stats().late == 1


def test_room_that_a_slot_leaves_wakes_those_that_wait_for_it() -> None:
    low, high = OwnedSlot(PARENT, 0, 2), OwnedSlot(PARENT, 1, 2)
    here = WorkQueue(1, ROOM, Judge(Stop()), transactional=True)
    start(here, low, high)
    woken: list[int] = []
    here.offer(batch([A, B], slots=(low, high)))
    done(here, take(here), b"x" * ROOM)
    assert nothing_to_take(here)
    here.wake = woken.append
    here.dropped([low])
    assert woken
    assert take(here).record.key() == B


def test_a_transfer_that_was_committed_after_its_slot_had_left_changes_nothing() -> None:
    here = work_queue()
    here.offer(batch([A]))
    done(here, take(here))
    transfer = here.covered(processed(here))
    start(here)
    here.offer(batch([A]))
    done(here, take(here), b"again")
    here.committed(transfer)
    assert written(here, processed(here)) == [b"again"]


def test_a_full_outbox_gives_out_nothing_and_asks_for_a_commit_before() -> None:
    here = work_queue()
    asked: list[bool] = []
    here.on_attention = lambda: asked.append(True)
    here.offer(batch([A, A, A]))
    done(here, take(here), b"x" * (ROOM // 2))
    assert asked == [True]
    assert here.wants_commit()
    assert not here.wants_commit()
    done(here, take(here), b"x" * (ROOM // 2))
    assert here.waiting_bytes() > ROOM
    with here.lock:
        assert here.take() is None
    here.committed(here.covered(processed(here)))
    assert take(here).record.offset() == 2


def nothing_to_take(here: WorkQueue) -> bool:
    with here.lock:
        return here.take() is None


def test_a_full_outbox_still_gives_out_the_lane_that_one_offset_for_all_keys_waits_for() -> None:
    here = work_queue()
    woken: list[int] = []
    here.wake = woken.append
    here.offer(batch([A, B, B, A, B]))
    resting = take(here)
    here.scheduler.park(resting)
    done(here, take(here), b"x" * ROOM)
    assert nothing_to_take(here), "a commit may make room"
    commit = processed(here, Mode.PLAIN)
    woken.clear()
    assert not here.covered(commit)
    assert woken, "of those that sleep one can work now, if the lane has rested"
    assert nothing_to_take(here), "what is given out must not be ahead of the slowest lane"
    assert here.scheduler.unpark(resting) == 1
    assert take(here) is resting
    assert nothing_to_take(here)
    here.wants_commit()
    here.done(resting)
    assert here.wants_commit(), "now there is something to be covered"
    transfer = here.covered(processed(here, Mode.PLAIN))
    assert transfer
    assert nothing_to_take(here), "that commit will make room"
    here.committed(transfer)
    assert [take(here).record.offset(), take(here).record.offset()] == [2, 3]


def test_a_commit_that_makes_too_little_room_does_not_end_all_work() -> None:
    here = work_queue()
    here.offer(batch([B, A, B]))
    done(here, take(here))
    slow = take(here)
    done(here, take(here), b"x" * ROOM)
    here.scheduler.park(slow)
    transfer = here.covered(processed(here, Mode.PLAIN))
    assert transfer
    here.committed(transfer)
    here.scheduler.unpark(slow)
    assert take(here) is slow


def test_a_commit_beyond_the_known_lineage_carries_nothing() -> None:
    here = work_queue()
    ahead = Processed(STATE, Mode.SLOTS, (Cursor(WHOLE, {5: 3}),), (), PARENT)
    with pytest.raises(InvariantError):
        here.covered([ahead])


def test_a_handler_returns_nothing_one_output_or_several() -> None:
    one = Output("t", b"k", b"v")
    assert outputs_of(None) == ()
    assert outputs_of(one) == (one,)
    assert outputs_of(output for output in [one, one]) == (one, one)
    for wrong in (7, b"bytes", [one, "text"], "text"):
        with pytest.raises(OutputError):
            outputs_of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topic": None},
        {"value": 5},
        {"value": {"content": 1}},
        {"key": bytearray(b"content")},
        {"value": "content \ud800"},
        {"headers": [("name", 1)]},
        {"headers": [("name", "content \ud800")]},  # librdkafka's binding would end the process
        {"headers": [["name", b"content"]]},
        {"headers": "content"},
        {"partition": "content"},
        {"partition": -2},
        {"timestamp": 1.5},
        {"timestamp": 1 << 63},
    ],
)
def test_an_output_that_no_producer_takes_is_the_handlers_mistake(wrong: dict[str, Any]) -> None:
    with pytest.raises(OutputError, match=f"the {next(iter(wrong))} of an Output") as raised:
        outputs_of([Output(**{"topic": "t", **wrong})])
    assert "content" not in str(raised.value)


def test_everything_that_a_producer_takes_is_an_output() -> None:
    for output in (
        Output("t"),
        Output("t", "kéy", "välue", {"name": "välue"}, partition=7, timestamp=1),
        Output("t", b"", b"", [("name", None), ("name", b"\xff")]),
    ):
        assert outputs_of(output) == (output,)


def test_a_dead_letter_that_cannot_be_written_is_told_before_a_commit_fails_of_it() -> None:
    failed = record(FIRST, 12, A, b"value")
    failed.set_value({"parsed": "by the handler"})
    with pytest.raises(OutputError):
        dead_letter(failed, ValueError(), "letters")


class Refusing:
    """A producer that takes no output."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def produce(self, *_: Any, **__: Any) -> None:
        raise self._error

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={})


class Without:
    """A producer at brokers without a topic; it appears when it was ``asked`` for so many times."""

    def __init__(self, created: int) -> None:
        self._created = created
        self.asked = 0
        self.written: list[Any] = []

    def list_topics(self, topic: str, **_: Any) -> Any:
        self.asked += 1
        missing = None if self.asked > self._created else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=missing)})

    def produce(self, topic: str, value: Any, *_: Any, **__: Any) -> None:
        self.written.append(value)

    def flush(self, _: float) -> int:
        return 0


def test_an_output_for_a_topic_that_does_not_exist_is_told_with_the_first_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would wait for its topic until the commit's time is over, and fill the outbox without a word."""
    monkeypatch.setattr(transactional, "CREATION_SECONDS", 0.0)
    here, producer = work_queue(), Without(1)
    here.offer(batch([A, A]))
    done(here, take(here))
    participant = OutputParticipant(here)
    with pytest.raises(CommitPayloadError, match="topic target, which does not exist"):
        participant.payload(processed(here)).write(producer, Deadline(5))
    assert not producer.written
    assert not here.over.is_set(), "somebody may create it"
    payload = participant.payload(processed(here))
    payload.write(producer, Deadline(5))
    payload.committed()
    assert producer.written == [b"0"]
    done(here, take(here))
    participant.payload(processed(here)).write(producer, Deadline(5))
    assert producer.asked == 2, "a topic that was there is not asked for again"


def test_a_topic_that_brokers_create_when_they_are_asked_is_waited_for() -> None:
    here, producer = work_queue(), Without(2)
    here.offer(batch([A]))
    done(here, take(here))
    OutputParticipant(here).payload(processed(here)).write(producer, Deadline(5))
    assert producer.written == [b"0"]


def test_an_output_that_is_refused_whenever_it_is_written_ends_the_run() -> None:
    """It is in every commit from now on: nothing would be committed, and at last nothing worked on."""
    for error in (KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)), UsageError("no such partition")):
        here = work_queue()
        here.offer(batch([A]))
        done(here, take(here))
        payload = OutputParticipant(here).payload(processed(here))
        with pytest.raises(OutputError):
            payload.write(Refusing(error), Deadline(1))
        assert here.over.is_set()
        assert isinstance(here.error, OutputError)


def test_an_output_that_is_refused_for_the_moment_waits_for_the_next_commit() -> None:
    here = work_queue()
    here.offer(batch([A]))
    done(here, take(here))
    payload = OutputParticipant(here).payload(processed(here))
    with pytest.raises(KafkaException):
        payload.write(Refusing(KafkaException(KafkaError(KafkaError._TRANSPORT))), Deadline(1))
    assert not here.over.is_set()
    assert written(here, processed(here)) == [b"0"]


class Unanswered:
    """A producer to which no broker answers: what it was given is reported when it is purged."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.calls: list[str] = []

    def produce(self, *_: Any, on_delivery: Any, **more: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, seconds: float) -> int:
        time.sleep(0.001)
        return 0

    def flush(self, seconds: float) -> int:
        self.calls.append("flush")
        return len(self.waiting)

    def purge(self) -> None:
        self.calls.append("purge")
        while self.waiting:
            self.waiting.pop()(KafkaError(KafkaError._PURGE_QUEUE), None)

    def close(self, seconds: float) -> bool:
        self.calls.append(f"close with {len(self.waiting)} records")
        return True


def test_the_end_waits_no_longer_for_a_dead_letter_than_it_says_and_its_record_is_not_processed() -> None:
    producer = Unanswered()
    letters = DeadLetters(lambda: producer)
    here = work_queue()
    here.offer(batch([A]))
    lane = take(here)

    def work() -> None:
        try:
            letters.deliver(lane.record, ValueError(), "dead")
        except KpsplitError as error:
            here.undeliverable(lane, error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    eventually(lambda: producer.waiting, "the letter")
    letters.close(0.01)
    assert producer.calls == ["flush", "purge", "close with 0 records"]
    worker.join(PATIENCE)
    assert here.error is not None and not here.stats().processed
    assert {0: 0} in [c.positions for c in here.cursor(WHOLE_SLOT)]


def test_dead_letters_that_were_acknowledged_are_not_given_up() -> None:
    producer = Unanswered()
    letters = DeadLetters(lambda: producer)
    letters.close(1.0)
    letters._open()
    letters.close(1.0)
    assert producer.calls == ["flush", "close with 0 records"]


def test_a_dead_letter_has_the_records_own_content_and_no_text_of_the_error() -> None:
    failed = record(FIRST, 12, A, b"value")
    failed.set_headers([(STAMP_HEADER, b"x"), ("mine", b"1")])
    letter = dead_letter(failed, ValueError("secret"), "letters")
    assert (letter.topic, letter.key, letter.value) == ("letters", A, b"value")
    headers = dict(letter.headers or ())
    assert headers["mine"] == b"1"
    assert STAMP_HEADER not in headers
    assert headers["kpsplit.failed.error"] == b"ValueError"
    assert (headers["kpsplit.failed.topic"], headers["kpsplit.failed.offset"]) == (b"orders", b"12")
    assert not any(b"secret" in value for value in headers.values())
