"""The first calls of a Consumer, from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kpsplit import Consumer
from kpsplit.consumer import client as module
from kpsplit.errors import KpsplitError

THREADS = 8


def engines() -> int:
    return sum(thread.name == "kpsplit-consumer" for thread in threading.enumerate())


def test_first_calls_from_several_threads_at_once_begin_one_membership() -> None:
    before, together = engines(), threading.Barrier(THREADS)
    with Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"}) as consumer:

        def ask() -> str:
            together.wait()
            return str(consumer.stats()["state"])

        with ThreadPoolExecutor(THREADS) as pool:
            states = [pool.submit(ask) for _ in range(THREADS)]
            assert {state.result() for state in states} == {"unsubscribed"}
        assert engines() - before == 1


@pytest.fixture
def in_the_middle(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What a signal handler does in the middle of the first call."""
    does: list[Callable[[], object]] = []
    original = module.ConsumerSession

    def interrupted(*arguments: Any) -> Any:
        made = original(*arguments)
        for call in does:
            call()
        return made

    monkeypatch.setattr(module, "ConsumerSession", interrupted)
    return does


def test_a_call_inside_the_first_call_is_refused_and_begins_nothing(in_the_middle) -> None:
    before = engines()
    with Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"}) as consumer:
        told: list[str] = []

        def handler() -> None:
            with pytest.raises(KpsplitError) as caught:
                consumer.stats()
            told.append(caught.value.message)

        in_the_middle.append(handler)
        assert consumer.stats()["state"] == "unsubscribed"
        assert told == ["this call came inside the first call, from a signal handler"]
        assert engines() - before == 1


def test_a_consumer_that_is_closed_inside_its_first_call_leaves_nothing_behind(in_the_middle) -> None:
    before = engines()
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"})
    in_the_middle.append(consumer.close)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.stats()
    assert engines() == before


def test_who_closes_while_another_thread_makes_the_first_call_closes_what_that_begins(in_the_middle) -> None:
    before, inside = engines(), threading.Event()
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"})
    closing = threading.Thread(target=consumer.close)

    def waits() -> None:
        closing.start()
        inside.set()
        closing.join(0.2)

    in_the_middle.append(waits)
    consumer.stats()
    assert inside.is_set()
    closing.join()
    assert engines() == before


def test_the_client_that_asks_for_committed_offsets_connects_with_the_first_call() -> None:
    """It takes a quarter of a second to find the group's coordinator: not only when a slot waits for it."""
    with Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"}) as consumer:
        assert consumer._query_client._client is None
        consumer.stats()
        assert consumer._session is not None
        consumer._session.engine._clients.members.run(lambda: None).result(10)
        assert consumer._query_client._client is not None
