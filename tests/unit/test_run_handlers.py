"""What may be given to ``run()``, and what is refused before anything begins."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from kpsplit import DeadLetter, Retry, Skip, Stop
from kpsplit.consumer.run.handlers import check_handler, is_async, synchronous
from kpsplit.consumer.run.policies import Judge, check_policy, stopped
from kpsplit.errors import ConfigurationError, UsageError
from tests.unit.lane_samples import FIRST, record


async def coroutine(_record: Any) -> None: ...


def plain(_record: Any) -> None: ...


class Called:
    async def __call__(self, record: Any) -> None: ...

    async def method(self, record: Any) -> None: ...


def test_async_handlers_are_known_in_whatever_form_they_come() -> None:
    for handler in (coroutine, functools.partial(coroutine), Called(), Called().method):
        assert is_async(handler)
    for other in (plain, functools.partial(plain), print):
        assert not is_async(other)


def test_a_handler_that_does_not_fit_its_executor_is_refused() -> None:
    check_handler(plain, executor="process")
    for handler, executor in ((coroutine, "process"), (plain, "fibre"), ("text", "thread")):
        with pytest.raises(ConfigurationError):
            check_handler(handler, executor=executor)


def test_a_handler_that_returns_work_not_done_is_an_error() -> None:
    def forgets(record: Any) -> Any:
        return coroutine(record)

    def generator(record: Any) -> Any:
        yield record

    for handler in (forgets, generator):
        with pytest.raises(UsageError, match="nothing was done yet"):
            synchronous(handler, transactional=False)(record(FIRST, 0, b"k"))


def test_what_is_no_policy_is_refused() -> None:
    for policy in (Stop(), Skip(), DeadLetter("t"), Retry(then=Skip())):
        assert check_policy(policy) is policy
    for wrong in ("skip", Stop, DeadLetter(""), Retry(then=None)):  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            check_policy(wrong)
    with pytest.raises(ConfigurationError):
        Retry(attempts=0)


def test_each_record_has_attempts_of_its_own() -> None:
    judge = Judge(Retry(attempts=2, then=Skip()))
    _, first = judge.failed(ValueError(), None)
    _, other = judge.failed(ValueError(), None)
    assert first is not other
    assert judge.failed(ValueError(), first) == (Skip(), None)
    assert judge.failed(ValueError(), other) == (Skip(), None)


def test_the_error_of_a_run_names_class_and_place_only() -> None:
    text = str(stopped(record(FIRST, 4, b"key", b"value"), ValueError("secret")))
    assert "orders/3 at offset 4: ValueError" in text
    assert not any(word in text for word in ("secret", "key", "value"))
