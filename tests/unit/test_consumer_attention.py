"""Attention that a Consumer's engine asks for between any two steps of a poll."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kpsplit import Consumer
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.errors import KpsplitError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor
from tests.unit.consumer_samples import WHOLE_SLOT, batch, message

SECONDS = 20.0


def in_time(call: Callable[[], Any]) -> Any:
    """What a call returns; it must return."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "the call does not return"
    return found[0]


def running() -> Consumer:
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"})
    consumer.stats()
    return consumer


def test_attention_that_comes_behind_its_callback_does_not_hold_up_polls_for_ever() -> None:
    """The application's thread may serve a callback before the engine's has asked for attention to it."""
    with running() as consumer:
        assert in_time(lambda: [consumer.poll(0)]) == [None]
        consumer._buffer.ask_attention()
        assert in_time(lambda: [consumer.poll(0)]) == [None]
        consumer._buffer.ask_attention()
        assert in_time(lambda: [consumer.consume(5, 0)]) == [[]]


def test_a_poll_inside_a_callback_is_refused() -> None:
    with running() as consumer:
        raised: list[KpsplitError] = []

        def callback() -> None:
            with pytest.raises(KpsplitError) as caught:
                consumer.poll(0)
            raised.append(caught.value)

        consumer._events.call(callback)
        in_time(lambda: [consumer.poll(0)])
        assert "inside a callback" in raised[0].message


def test_records_are_handed_out_behind_a_callback_that_came_while_the_last_one_was_served() -> None:
    buffer = FetchBuffer()
    events = Events(buffer.ask_attention)
    buffer.taken(WHOLE_SLOT, Cursor(WHOLE, {}))
    served: list[str] = []
    events.call(lambda: served.append("first"))

    def attended() -> None:
        events.call(lambda: served.append("second"))
        buffer.offer(batch([message(0)], 0, 1, (WHOLE_SLOT,)))
        buffer.attended()

    events.attend(attended)
    with pytest.raises(IndexError):
        buffer.take()
    events.attend(buffer.attended)
    assert served == ["first", "second"]
    assert buffer.take().offset() == 0


def test_another_thread_is_handed_out_nothing_while_a_callback_runs() -> None:
    buffer = FetchBuffer()
    events = Events(buffer.ask_attention)
    inside, over = threading.Event(), threading.Event()

    def callback() -> None:
        inside.set()
        assert over.wait(SECONDS)

    events.call(callback)
    thread = threading.Thread(target=lambda: events.attend(buffer.attended), daemon=True)
    thread.start()
    assert inside.wait(SECONDS)
    events.attend(buffer.attended)
    assert buffer.attention
    over.set()
    thread.join(SECONDS)
    assert not buffer.attention


@pytest.mark.parametrize(
    "ask", [lambda c: c.poll(0.05), lambda c: c.consume(5, 0.05)], ids=["poll", "consume"]
)
def test_a_poll_returns_in_time_while_another_thread_runs_a_callback(ask) -> None:
    """``close()`` in another thread does so: its on_revoke may wait for the thread that polls to stop."""
    inside, over = threading.Event(), threading.Event()

    def callback() -> None:
        inside.set()
        assert over.wait(SECONDS)

    with running() as consumer:
        consumer._events.call(callback)
        other = threading.Thread(target=consumer._events.serve, daemon=True)
        other.start()
        try:
            assert inside.wait(SECONDS)
            assert in_time(lambda: [ask(consumer)]) in ([None], [[]])
        finally:
            over.set()
            other.join(SECONDS)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Consumer, Callable[[], None]]]:
    """A Consumer, and its ``stop()`` that returns when the run knows of it and has asked for attention."""
    with running() as consumer:
        asked, ask = threading.Event(), consumer._buffer.ask_attention

        def ask_attention() -> None:
            ask()
            asked.set()

        def stopped() -> None:
            consumer.stop()
            assert asked.wait(SECONDS)

        monkeypatch.setattr(consumer._buffer, "ask_attention", ask_attention)
        yield consumer, stopped


def test_a_run_that_is_stopped_while_a_callback_runs_ends(stop) -> None:
    consumer, stopped = stop
    consumer._events.call(stopped)
    assert in_time(lambda: [consumer.run(print)])


def test_a_run_that_is_stopped_just_before_it_looks_for_events_ends(stop, monkeypatch) -> None:
    consumer, stopped = stop
    attend = consumer._poller.attend

    def late() -> Any:
        stopped()
        return attend()

    monkeypatch.setattr(consumer._poller, "attend", late)
    assert in_time(lambda: [consumer.run(print)])
