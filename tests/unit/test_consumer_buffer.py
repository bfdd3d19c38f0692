"""Records between the engine's thread and an application that polls."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from math import inf

import pytest
from confluent_kafka import Message

from kpsplit.clock import monotonic
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch import buffer as buffers
from kpsplit.consumer.fetch.batch import SHUT
from kpsplit.consumer.fetch.buffer import FetchBuffer, portion
from kpsplit.consumer.polling import Poller
from kpsplit.kafka.logical_message import relabelled, wrapped
from kpsplit.splitter.reading import Cursor
from tests.unit.consumer_samples import FIRST, HIGH, SECOND, batch, message
from tests.unit.samples import PARENT

pytestmark = pytest.mark.usefixtures("both_paths")
RECORDS = 60_000


@pytest.fixture(params=[False, True], ids=["lock-free", "locked"])
def buffer(request) -> FetchBuffer:
    made = FetchBuffer(locked=request.param)
    for slot in (FIRST, SECOND):
        made.taken(slot, Cursor(slot.range, {}))
    return made


def position(buffer: FetchBuffer, slot=FIRST) -> int | None:
    (cursor,) = buffer.cursor(slot)
    return cursor.positions.get(0)


def test_a_record_counts_as_processed_when_the_next_poll_asks_for_more(buffer) -> None:
    buffer.offer(batch([message(0), message(1)], 0, 2))
    assert buffer.take().offset() == 0
    assert position(buffer) == 0
    assert buffer.take().offset() == 1
    assert position(buffer) == 1
    with pytest.raises(IndexError):
        buffer.take()
    assert not buffer.wait(0)
    assert position(buffer) == 2


def test_poll_is_take_that_does_something_else_where_there_is_no_record(buffer) -> None:
    asked: list[float | None] = []
    poll = buffer.poller(asked.append)
    assert poll(3.0) is None
    buffer.offer(batch([message(0), message(1), message(2)], 0, 3))
    assert poll(4.0).offset() == 0
    assert position(buffer) == 0
    assert poll().offset() == 1
    assert position(buffer) == 1
    buffer.keep_open(SHUT)
    assert poll(5.0) is None, "the moment until which records may be handed out has passed"
    buffer.keep_open(inf)
    assert poll().offset() == 2
    assert poll() is None
    assert asked == [3.0, 5.0, -1]


def test_poll_reads_the_clock_of_leases_or_what_stands_in_its_place(monkeypatch) -> None:
    buffer = FetchBuffer(locked=False)
    buffer.taken(FIRST, Cursor(FIRST.range, {}))
    buffer.offer(batch([message(0), message(1)], 0, 2))
    poll = buffer.poller(lambda _timeout: None)
    buffer.keep_open(monotonic() - 0.001)
    assert poll() is None
    buffer.keep_open(monotonic() + 1000)
    assert poll().offset() == 0
    monkeypatch.setattr(buffers, "monotonic", lambda: monotonic() + 2000)
    buffer.keep_open(monotonic() + 1000)
    assert buffer.poller(lambda _timeout: None)() is None
    assert poll().offset() == 1


def test_poll_raises_for_arguments_that_it_does_not_have_and_hands_out_nothing(buffer) -> None:
    buffer.offer(batch([message(0)], 0, 1))
    poll = buffer.poller(lambda _timeout: None)
    for wrong in (lambda: poll(1, 2), lambda: poll(seconds=1)):
        with pytest.raises(TypeError):
            wrong()
    assert poll(timeout=0).offset() == 0
    assert poll.__name__ == "poll"
    assert list(inspect.signature(poll).parameters) == ["timeout"]


def test_nothing_stays_of_a_poll_that_is_dropped(buffer) -> None:
    class Keeper:
        def slowly(self, _timeout: float | None) -> None:
            pass

    keeper = Keeper()
    keeper.poll = buffer.poller(keeper.slowly)  # type: ignore[attr-defined]
    assert keeper.poll(0) is None
    gone = weakref.ref(keeper)
    del keeper
    gc.collect()
    assert gone() is None


def test_records_of_one_consume_count_together_when_the_next_call_asks_for_more(buffer) -> None:
    buffer.offer(batch([message(i) for i in range(5)], 0, 5))
    assert len(buffer.consume(3)) == 3
    assert position(buffer) == 0
    assert buffer.take().offset() == 3
    assert position(buffer) == 3
    assert len(buffer.consume(10)) == 1
    assert position(buffer) == 4
    assert buffer.consume(10) == []
    assert position(buffer) == 5


def test_a_mark_covers_everything_that_was_handed_out_until_then(buffer) -> None:
    buffer.offer(batch([message(i) for i in range(5)], 0, 5))
    buffer.consume(3)
    mark = buffer.mark()
    buffer.take()
    assert buffer.cursor_at(FIRST, mark).positions == {0: 3}
    assert buffer.handed_out == 4


def test_a_released_slot_is_handed_out_no_more_and_free_when_its_last_record_is_processed(buffer) -> None:
    buffer.offer(batch([message(0), message(1, HIGH), message(2), message(3, HIGH)], 0, 4))
    assert buffer.take().offset() == 0
    assert not buffer.release([FIRST])
    buffer.offer(batch([message(4), message(5, HIGH)], 4, 6))
    assert buffer.take().offset() == 1
    assert buffer.release([FIRST])
    assert position(buffer, FIRST) == 1, "where the first record stands that was withheld, or before"
    buffer.dropped([FIRST])
    assert [m.offset() for m in buffer.consume(10)] == [3, 5]
    buffer.wait(0)
    assert position(buffer, SECOND) == 6


def test_a_slot_that_is_released_and_taken_again_is_handed_out_again(buffer) -> None:
    buffer.release([FIRST])
    buffer.taken(FIRST, Cursor(FIRST.range, {0: 3}))
    buffer.offer(batch([message(3)], 3, 4))
    assert buffer.take().offset() == 3


def test_after_a_seek_what_was_offered_before_is_not_handed_out(buffer) -> None:
    buffer.offer(batch([message(0), message(1, HIGH)], 0, 2))
    buffer.taken(FIRST, Cursor(FIRST.range, {0: 50}))
    assert [m.offset() for m in buffer.consume(10)] == [1]
    buffer.wait(0)
    assert (position(buffer, FIRST), position(buffer, SECOND)) == (50, 2)


def test_what_is_taken_back_for_a_pause_is_read_again_from_where_the_application_is(buffer) -> None:
    buffer.offer(batch([message(i) for i in range(4)], 0, 4))
    buffer.take()
    back = buffer.pause([PARENT])
    assert {slot: cursor.positions for slot, cursor in back.items()} == {FIRST: {0: 1}, SECOND: {0: 1}}
    assert buffer.waiting_bytes() == 0
    buffer.offer(batch([message(i) for i in range(1, 4)], 1, 4))
    assert [m.offset() for m in buffer.consume(9)] == [1, 2, 3]
    buffer.wait(0)
    assert position(buffer) == 4


def test_attention_stops_handing_out_until_the_application_has_attended(buffer) -> None:
    buffer.offer(batch([message(0), message(1)], 0, 2))
    buffer.take()
    buffer.ask_attention()
    buffer.offer(batch([message(2)], 2, 3))
    with pytest.raises(IndexError):
        buffer.take()
    assert buffer.wait(10)
    assert buffer.waiting_bytes() > 0
    buffer.attended()
    assert [m.offset() for m in buffer.consume(9)] == [1, 2]


def test_a_slot_can_leave_while_attention_is_asked_for(buffer) -> None:
    buffer.offer(batch([message(0), message(1, HIGH)], 0, 2))
    buffer.ask_attention()
    assert buffer.release([FIRST])
    buffer.dropped([FIRST])
    buffer.attended()
    assert [m.offset() for m in buffer.consume(9)] == [1]


def test_an_application_that_waits_is_woken_by_records_and_by_a_call_for_attention(buffer) -> None:
    for wake in (lambda: buffer.offer(batch([message(0)], 0, 1)), buffer.ask_attention):
        came: list[bool] = []
        waiting = threading.Thread(target=lambda came=came: came.append(buffer.wait(600)), daemon=True)
        waiting.start()
        looks = buffer.looks
        while buffer.looks == looks:
            assert waiting.is_alive()
        wake()
        waiting.join(30)
        assert came == [True]
        buffer.consume(9)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("polled", [False, True], ids=["take", "poll"])
def test_every_record_is_handed_out_once_whatever_the_engine_does_meanwhile(buffer, polled: bool) -> None:
    """And what counts as processed is never more than what the application has finished."""
    finished = [0]
    given: list[int] = []
    wrong: list[tuple[int, int]] = []

    def nothing(_timeout: float | None) -> Message:
        raise IndexError

    take = buffer.poller(nothing) if polled else buffer.take

    def application() -> None:
        while len(given) < RECORDS:
            try:
                taken = [take()] if len(given) % 3 else buffer.consume(7)
            except IndexError:
                taken = []
            given.extend(m.offset() or 0 for m in taken)
            if not taken:
                buffer.wait(0.01)
            finished[0] = len(given)

    thread = threading.Thread(target=application, daemon=True)
    thread.start()
    offered = turns = 0
    while thread.is_alive():
        if offered < RECORDS:
            end = min(offered + 100, RECORDS)
            buffer.offer(batch([message(i, HIGH) for i in range(offered, end)], offered, end))
            offered = end
        (cursor,) = buffer.cursor(SECOND)
        done = finished[0]
        if cursor.positions.get(0, 0) > done:
            wrong.append((cursor.positions[0], done))
        turns += 1
        if turns % 5 == 0:
            for slot, at in buffer.pause([PARENT]).items():
                if slot == SECOND:
                    offered = at.positions.get(0, 0)
        if turns % 7 == 0:
            buffer.ask_attention()
            buffer.attended()
    assert given == list(range(RECORDS))
    assert not wrong


def test_a_record_on_its_way_to_the_application_does_not_count_as_processed(monkeypatch) -> None:
    """The engine looks right after a record was taken, before the application has it."""
    seen: list[int | None] = []

    class Watched(deque[Message]):
        def popleft(self) -> Message:
            taken = super().popleft()
            seen.append(position(buffer))
            return taken

    monkeypatch.setattr("kpsplit.consumer.fetch.buffer.deque", Watched)
    buffer = FetchBuffer(locked=False)
    buffer.taken(FIRST, Cursor(FIRST.range, {}))
    buffer.wait(0)
    buffer.offer(batch([message(i) for i in range(4)], 0, 4))
    poll = buffer.poller(lambda _timeout: None)
    buffer.take()
    poll()
    assert len(buffer.consume(2)) == 2
    assert seen == [0, 1, 1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_batch_that_an_exception_interrupts_is_counted_as_far_as_it_was_added(monkeypatch, error) -> None:
    class Interrupted(deque[Message]):
        def extend(self, messages: Iterable[Message]) -> None:
            given = iter(messages)
            if error is KeyboardInterrupt:  # as of a signal: when everything was added
                super().extend(given)
            else:  # when there is no room for the fourth
                super().extend(islice(given, 3))
                next(given)
            raise error

    monkeypatch.setattr("kpsplit.consumer.fetch.buffer.deque", Interrupted)
    buffer = FetchBuffer()
    buffer.taken(FIRST, Cursor(FIRST.range, {0: 0}))
    with pytest.raises(error):
        buffer.offer(batch([message(n) for n in range(5)], 0, 5))
    handed_out = []
    with suppress(IndexError):
        while True:
            handed_out.append(buffer.take().offset())
    assert handed_out == list(range(5 if error is KeyboardInterrupt else 3))
    assert buffer.start_over()[FIRST].positions == {0: len(handed_out)}


def test_reading_by_poll_does_not_make_the_garbage_collector_run(buffer) -> None:
    kind = relabelled(batch([], 0, 0).segment, PARENT)
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    for _ in range(20):
        assert buffer.waiting_bytes() == 0  # asked before each read: lets go of what is processed
        raw = [message(offset) for offset in range(portion())]
        waiting = batch([], 0, portion())
        waiting.messages.extend(wrapped(raw, kind))
        buffer.offer(waiting)
        del raw, waiting
        while buffer.wait(0):
            buffer.take()
    assert gc.get_stats()[0]["collections"] == before


def test_as_many_records_are_read_at_once_as_consume_asks_for() -> None:
    buffer, wanted = FetchBuffer(), list[int]()
    poller = Poller(buffer, Events(lambda: None))
    buffer.fetch = lambda _seconds: bool(wanted.append(buffer.most))
    poller.consume(1000, 0)
    poller.poll(0)
    poller.consume(1, 0)
    assert wanted == [1000, portion(), portion()]
