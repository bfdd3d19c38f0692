"""Operators that enrol the same topic at once, on slow brokers: simulated, on a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import session as module
from kpsplit.control.enrolment import Enroller
from kpsplit.control.session import EnrolmentRecords
from kpsplit.errors import ConflictError, DeadlineExceededError, FencedError, UnknownOutcomeError
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.records.control import Enrolment
from tests.unit.test_enrolment import FIRST


class Turns:
    """Functions that run in turn, each in a thread, on a clock that only their sleeping moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self._line: list[tuple[float, int, threading.Semaphore]] = []
        self._count, self._main, self._alive = 0, threading.Semaphore(0), 0

    def sleep(self, seconds: float) -> None:
        mine = threading.Semaphore(0)
        self._count += 1
        heappush(self._line, (self.now + seconds, self._count, mine))
        self._main.release()
        mine.acquire()

    def run(self, *functions: Callable[[], None]) -> None:
        def begin(function: Callable[[], None]) -> None:
            self.sleep(0.0)
            try:
                function()
            finally:
                self._alive -= 1
                self._main.release()

        self._alive = len(functions)
        for function in functions:
            threading.Thread(target=begin, args=(function,), daemon=True).start()
            self._main.acquire()
        while self._alive:
            at, _, next_one = heappop(self._line)
            self.now = max(self.now, at)
            next_one.release()
            self._main.acquire()


class SlowBrokers:
    """Where the enrolment of one topic stands, and what each part of a try takes."""

    def __init__(self, claim: float, read: float, write: float) -> None:
        self.claim, self.read, self.write = claim, read, write
        self.holder: SlowLog | None = None
        self.found: Enrolment | None = None


class SlowLog:
    """The log of an enrolment, as one of several operators has it."""

    def __init__(self, brokers: SlowBrokers, sleep: Callable[[float], None]) -> None:
        self.brokers, self.sleep = brokers, sleep

    def look(self, _deadline: Any) -> Enrolment | None:
        self.sleep(0.2)
        return self.brokers.found

    def claim(self, deadline: Any) -> Enrolment | None:
        self.sleep(self.brokers.claim)
        self.brokers.holder = self
        self.sleep(self.brokers.read)
        deadline.check("the claim")
        return self.brokers.found

    def withdraw(self, *_: Any) -> None:
        """There is nothing to withdraw."""

    def record(self, enrolment: Enrolment, _deadline: Any, _hint: str) -> None:
        self.sleep(self.brokers.write / 2)
        if self.brokers.holder is not self:
            self.sleep(self.brokers.write / 2)
            raise FencedError("another operator took over")
        self.brokers.found = enrolment
        self.sleep(self.brokers.write / 2)


@pytest.mark.parametrize("part", range(1, 11))
@pytest.mark.parametrize("others", [1, 4])
@pytest.mark.parametrize(("claim", "read", "write"), [(0.3, 2.0, 3.0), (1.0, 3.0, 4.0), (2.0, 2.0, 3.0)])
def test_operators_that_enrol_at_once_on_slow_brokers_do_not_fence_each_other_until_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch, claim: float, read: float, write: float, others: int, part: int
) -> None:
    """``part``: how long after each other they begin, in tenths of the time in which they may be fenced."""
    turns, brokers, found = Turns(), SlowBrokers(claim, read, write), list[Enrolment | None]()
    monkeypatch.setattr(module, "monotonic", lambda: turns.now)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=turns.sleep))
    monkeypatch.setattr(module, "random", Random(part))
    begun = replace(FIRST, settled=False)

    def enrol(after: float) -> None:
        turns.sleep(after)
        log = SlowLog(brokers, turns.sleep)
        session = SimpleNamespace(tail=None, enrolments=lambda *_: log, admin=None)
        enroller = Enroller(cast(Any, session), cast(Any, None), lambda _: None)
        with suppress(DeadlineExceededError):
            enroller._write("Enrol", None, begun, Deadline(120, lambda: turns.now))
            found.append(brokers.found)

    turns.run(*(partial(enrol, number * part / 10 * (read + write)) for number in range(others + 1)))
    assert found == [begun] * (others + 1)


class Unsure(SlowLog):
    """The brokers answer a commit with an error that does not say what became of it, so many times."""

    def __init__(self, times: int, *, written: bool) -> None:
        super().__init__(SlowBrokers(0.0, 0.0, 0.0), lambda _: None)
        self.times, self.written = times, written

    def record(self, enrolment: Enrolment, _deadline: Any, _hint: str) -> None:
        self.sleep(self.brokers.write)
        self.times -= 1
        if self.times < 0 or self.written:
            self.brokers.found = enrolment
        if self.times >= 0:
            raise UnknownOutcomeError("Unknown broker error")


@pytest.mark.parametrize("written", [True, False])
def test_an_enrolment_of_unknown_outcome_is_decided_by_the_next_claim(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """A broker answers so to an operator that another one fences while it commits."""
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None))
    log, done, begun = Unsure(1, written=written), list[StepDone](), replace(FIRST, settled=False)
    records = EnrolmentRecords(cast(Any, lambda *_: log), cast(Any, done.append))
    records.write("Enrol", None, begun, Deadline(60), "look again")
    assert (log.brokers.found, [step.name for step in done]) == (begun, ["Enrol"])
    assert log.times == (0 if written else -1), "it is not written twice"


def test_an_enrolment_of_unknown_outcome_that_cannot_be_decided_says_that_it_may_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None))
    log, other = Unsure(1, written=False), replace(FIRST, slots=64)
    monkeypatch.setattr(log, "claim", lambda _: other if log.times == 0 else None)
    with pytest.raises(ConflictError) as caught:
        EnrolmentRecords(cast(Any, lambda *_: log), lambda _: None).write(
            "Enrol", None, replace(FIRST, settled=False), Deadline(60), "look again"
        )
    assert caught.value.changed is None


def test_an_enrolment_of_unknown_outcome_says_so_when_there_is_no_time_left_to_decide_it() -> None:
    log, now = Unsure(1, written=False), [0.0]
    log.brokers.write, log.sleep = 2.0, now.append
    with pytest.raises(UnknownOutcomeError):
        EnrolmentRecords(cast(Any, lambda *_: log), lambda _: None).write(
            "Enrol", None, replace(FIRST, settled=False), Deadline(1, lambda: sum(now)), "look again"
        )
    assert log.times == 0
