"""The first calls of a Consumer, from several threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from kpsplit import Consumer

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
