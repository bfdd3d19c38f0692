"""The thread for what has to wait for brokers."""

from __future__ import annotations

import threading
import time

import pytest

from kpsplit.consumer.broker_executor import BrokerExecutor


def test_whatever_a_job_raises_the_next_one_is_run() -> None:
    executor = BrokerExecutor("test", None)

    def leave() -> None:
        raise SystemExit

    left, next_one = executor.run(leave), executor.run(lambda: 7)
    with pytest.raises(SystemExit):
        left.result(10)
    assert next_one.result(10) == 7
    executor.close(10)


def test_jobs_that_two_threads_give_first_are_run_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would commit and look up starts at the same time, by clients that are used by one thread."""

    class SlowlyMade(threading.Thread):
        def __init__(self, *args: object, **kwargs: object) -> None:
            time.sleep(0.2 * (threading.current_thread() is not threading.main_thread()))
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    runners: set[int] = set()
    both = threading.Barrier(2)

    def job() -> None:
        runners.add(threading.get_ident())
        time.sleep(0.2)

    def give() -> None:
        both.wait(10)
        futures.append(executor.run(job))

    givers, futures = [threading.Thread(target=give) for _ in range(2)], []
    monkeypatch.setattr(threading, "Thread", SlowlyMade)
    executor = BrokerExecutor("test", None)
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(10)
    for future in futures:
        future.result(10)
    executor.close(10)
    assert len(runners) == 1
