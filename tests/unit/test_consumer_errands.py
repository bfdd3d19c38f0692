"""The thread for what has to wait for brokers."""

from __future__ import annotations

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
