"""Workers that are threads or tasks: concurrency, failures, and the end, without brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import pytest
import tenacity
from confluent_kafka import Message

from kpsplit.clock import Deadline
from kpsplit.consumer.run.handlers import Output, asynchronous, synchronous
from kpsplit.consumer.run.outputs import letter_as_output
from kpsplit.consumer.run.policies import DeadLetter, HandlerError, Judge, Policy, Retry, Skip, Stop
from kpsplit.consumer.run.work_queue import LANE_SHARE, WorkQueue
from kpsplit.consumer.run.workers import CoroutineWorkers, ThreadWorkers
from kpsplit.errors import KpsplitError
from kpsplit.splitter.key_range import WHOLE, key_hash
from tests.unit.lane_samples import PATIENCE, WHOLE_SLOT, Worked, batch, eventually, keys_in, start

BUFFER = 1 << 20
SOON = tenacity.wait_fixed(0.01)
A, B = (keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(2))

Start = Callable[..., Any]


class Team:
    """A desk with workers of one kind; ended at the end of the test."""

    def __init__(
        self, kind: str, count: int, handle: Callable[[Any], None], policy: Policy, letters: Any
    ) -> None:
        self.work_queue = WorkQueue(count, BUFFER, Judge(policy), transactional=letters is letter_as_output)
        if kind == "threads":
            self.workers: Any = ThreadWorkers(
                self.work_queue, [synchronous(handle, transactional=False)] * count, letters
            )
        else:

            async def in_thread(record: Any) -> None:
                await asyncio.to_thread(handle, record)

            self.workers = CoroutineWorkers(
                self.work_queue, count, asynchronous(in_thread, transactional=False), letters
            )
        start(self.work_queue)
        self.workers.start()

    def end(self) -> bool:
        self.work_queue.end()
        return bool(self.workers.join(Deadline(PATIENCE)))


def no_letters(message: Any, error: BaseException, topic: str) -> tuple[Output, ...]:
    """A dead-letter topic that takes nothing."""
    raise KpsplitError(f"could not write to {topic}")


@pytest.fixture(params=["threads", "tasks"])
def team(request: pytest.FixtureRequest) -> Any:
    teams: list[Team] = []

    def make(
        count: int,
        handle: Callable[[Any], None],
        policy: Policy | None = None,
        letters: Any = None,
    ) -> Team:
        made = Team(request.param, count, handle, policy or Stop(), letters or letter_as_output)
        teams.append(made)
        return made

    yield make
    for made in teams:
        assert made.end()


def test_every_record_is_worked_on_once_in_the_order_of_its_key(team: Start) -> None:
    worked = Worked()

    def handle(record: Any) -> None:
        worked.begin(record)
        worked.end(record)

    crew = team(8, handle)
    keys = [b"%d" % (i % 37) for i in range(1000)]
    for first in range(0, 1000, 50):
        crew.work_queue.offer(batch(keys[first : first + 50], start=first))
    eventually(lambda: worked.count == 1000, "all records")
    assert worked.in_order()
    assert sorted(n for found in worked.offsets.values() for n in found) == list(range(1000))
    eventually(
        lambda: [c.positions for c in crew.work_queue.cursor(WHOLE_SLOT)] == [{0: 1000}], "all positions"
    )


class Unreadable(Message):
    """A record with a header name that is no text: asked a second time the client would end the process."""

    _headers: list[Any] | None = None

    def headers(self) -> Any:
        if self._headers is None:
            self._headers = [None]
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        assert self._headers != [None], "a segmentation fault"
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._headers = headers


def test_a_handler_may_ask_for_headers_that_cannot_be_read(team: Start) -> None:
    found: list[Any] = []
    crew = team(1, lambda record: found.append(record.headers()))
    unreadable = Unreadable(topic="orders", partition=3, offset=0, key=A, value=b"v")
    crew.work_queue.offer(replace(batch([A]), messages=[unreadable]))
    eventually(lambda: crew.work_queue.stats().processed or crew.work_queue.error, "the record")
    assert found == [[]]


def test_as_many_keys_as_workers_are_worked_on_at_once(team: Start) -> None:
    together = threading.Barrier(6)

    def handle(_record: Any) -> None:
        together.wait(PATIENCE)

    crew = team(6, handle)
    crew.work_queue.offer(batch([keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(48)][:12]))
    eventually(lambda: crew.work_queue.stats().processed == 12, "two rounds of six at once")


def test_a_slow_key_holds_back_no_other_lane(team: Start) -> None:
    let_go = threading.Event()

    def handle(record: Any) -> None:
        if record.offset() == 0:
            let_go.wait(PATIENCE)

    crew = team(2, handle)
    crew.work_queue.offer(batch([A, *[B] * 20, A]))
    eventually(lambda: crew.work_queue.stats().processed == 20, "the other lane's records")
    pieces = crew.work_queue.cursor(WHOLE_SLOT)
    assert [c.positions for c in pieces if key_hash(A) in c.range] == [{0: 0}]
    assert {c.positions[0] for c in pieces if key_hash(A) not in c.range} == {22}
    let_go.set()
    eventually(lambda: crew.work_queue.stats().processed == 22, "the slow lane's records")


def test_a_record_that_is_tried_again_holds_up_no_worker(team: Start) -> None:
    tried: list[int] = []
    let_go = threading.Event()

    def handle(record: Any) -> None:
        if record.offset() == 0 and not let_go.is_set():
            tried.append(record.offset())
            raise ConnectionError

    crew = team(1, handle, Retry(attempts=10_000, wait=SOON))
    crew.work_queue.offer(batch([A, B, B, A]))
    eventually(lambda: crew.work_queue.stats().processed == 2, "the other lane's records, by the only worker")
    eventually(lambda: len(tried) > 2, "more attempts")
    assert {0: 0} in [dict(c.positions) for c in crew.work_queue.cursor(WHOLE_SLOT)]
    let_go.set()
    eventually(lambda: crew.work_queue.stats().processed == 4, "the failing record and the one behind it")


def test_several_records_rest_at_once_and_each_is_tried_again(team: Start) -> None:
    failed: set[int] = set()

    def handle(record: Any) -> None:
        if record.offset() not in failed:
            failed.add(record.offset())
            raise ConnectionError

    crew = team(2, handle, Retry(attempts=3, wait=tenacity.wait_random(0, 0.02)))
    keys = [keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(16)]
    crew.work_queue.offer(batch(keys))
    eventually(lambda: crew.work_queue.stats().processed == 16, "second attempts of all")
    assert crew.work_queue.stats().failures == 16


def test_stop_ends_the_run_and_nothing_behind_the_record_is_worked_on(team: Start) -> None:
    seen: list[int] = []

    def handle(record: Any) -> None:
        seen.append(record.offset())
        if record.key() == A:
            raise ValueError("content")

    crew = team(2, handle)
    crew.work_queue.offer(batch([A, A, A]))
    assert crew.work_queue.over.wait(PATIENCE)
    assert crew.end()
    assert seen == [0]
    assert isinstance(crew.work_queue.error, HandlerError)
    assert isinstance(crew.work_queue.error.__cause__, ValueError)
    assert "content" not in str(crew.work_queue.error)
    assert {0: 0} in [dict(c.positions) for c in crew.work_queue.cursor(WHOLE_SLOT)]


def test_attempts_are_limited_and_then_the_last_word_of_the_policy_counts(team: Start) -> None:
    tried: list[int] = []

    def handle(record: Any) -> None:
        if record.key() == A:
            tried.append(record.offset())
            raise ValueError

    crew = team(2, handle, Retry(attempts=3, wait=SOON, then=Skip()))
    crew.work_queue.offer(batch([A, B]))
    eventually(lambda: crew.work_queue.stats().skipped == 1, "the record to be skipped")
    assert tried == [0, 0, 0]
    assert [c.positions for c in crew.work_queue.cursor(WHOLE_SLOT)] == [{0: 2}]


def test_what_is_not_worth_another_attempt_is_not_tried_again(team: Start) -> None:
    tried: list[int] = []

    def handle(record: Any) -> None:
        tried.append(record.offset())
        raise KeyError

    crew = team(1, handle, Retry(attempts=5, wait=SOON, on=ConnectionError, then=Skip()))
    crew.work_queue.offer(batch([A]))
    eventually(lambda: crew.work_queue.stats().skipped == 1, "the record to be skipped")
    assert tried == [0]


def test_a_dead_letter_counts_as_processed_and_one_that_cannot_be_written_ends_the_run(team: Start) -> None:
    def handle(_record: Any) -> None:
        raise ValueError

    written = team(1, handle, DeadLetter("letters"))
    written.work_queue.offer(batch([A]))
    eventually(lambda: written.work_queue.stats().dead_letters == 1, "the letter")
    assert [c.positions for c in written.work_queue.cursor(WHOLE_SLOT)] == [{0: 1}]
    refused = team(1, handle, DeadLetter("letters"), no_letters)
    refused.work_queue.offer(batch([A]))
    assert refused.work_queue.over.wait(PATIENCE)
    assert refused.end()
    assert {0: 0} in [dict(c.positions) for c in refused.work_queue.cursor(WHOLE_SLOT)]


def test_an_exit_in_a_handler_ends_the_run_whatever_the_policy(team: Start) -> None:
    def handle(_record: Any) -> None:
        raise SystemExit(3)

    crew = team(1, handle, Skip())
    crew.work_queue.offer(batch([A]))
    assert crew.work_queue.over.wait(PATIENCE)
    assert isinstance(crew.work_queue.error, HandlerError)


def test_a_worker_that_dies_of_a_defect_ends_the_run_with_it(team: Start) -> None:
    crew = team(2, lambda _: None)

    def broken(*_: Any) -> None:
        raise AssertionError("a defect")

    crew.work_queue.processed = broken
    crew.work_queue.offer(batch([A]))
    assert crew.work_queue.over.wait(PATIENCE)
    assert isinstance(crew.work_queue.error, AssertionError)


def test_of_a_full_lane_nothing_more_is_read_and_it_is_named() -> None:
    work_queue = WorkQueue(1, BUFFER, Judge(Stop()))
    start(work_queue)
    size = BUFFER // LANE_SHARE // 4
    work_queue.offer(batch([A] * 3, value=b"x" * size))
    assert not work_queue.backpressured()
    work_queue.offer(batch([A] * 2, start=3, value=b"x" * size))
    assert work_queue.waiting_bytes() < BUFFER, "the rest is for the others"
    [(parent, [range_])] = work_queue.backpressured().items()
    assert work_queue.stats().backpressured == (f"{parent} {range_}",)


def test_workers_that_find_nothing_sleep_until_records_come() -> None:
    """No polling: between two records a worker's thread does not run."""
    seen = threading.Event()
    work_queue = WorkQueue(2, BUFFER, Judge(Stop()))
    workers = ThreadWorkers(
        work_queue, [synchronous(lambda _: seen.set(), transactional=False)] * 2, letter_as_output
    )
    takes = 0
    take = work_queue.take

    def counted() -> Any:
        nonlocal takes
        takes += 1
        return take()

    work_queue.take = counted  # type: ignore[method-assign]
    start(work_queue)
    workers.start()
    eventually(lambda: takes == 2, "both to look once")
    assert not seen.wait(0.1)
    assert takes == 2
    work_queue.offer(batch([A]))
    assert seen.wait(PATIENCE)
    work_queue.end()
    assert workers.join(Deadline(PATIENCE))


def cancelling(how: str) -> Callable[[Any], Any]:
    """A handler that is cancelled at its first record, by what it does itself."""
    seen: list[int] = []

    async def handle(record: Any) -> None:
        seen.append(record.offset())
        if len(seen) > 1:
            return
        if how == "raises":
            raise asyncio.CancelledError
        if how == "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(PATIENCE)
        if how == "cancels itself and fails":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            raise ValueError
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "_work" in str(task.get_coro()):
                task.cancel()

    return handle


@pytest.mark.parametrize(
    "how", ["raises", "cancels itself", "cancels itself and fails", "cancels the others"]
)
@pytest.mark.parametrize("policy", [Skip(), Retry(2, wait=SOON), DeadLetter("dead")])
def test_a_handler_that_is_cancelled_by_itself_has_failed_and_no_worker_ends(
    how: str, policy: Policy
) -> None:
    work_queue = WorkQueue(2, BUFFER, Judge(policy), transactional=True)
    call = asynchronous(cancelling(how), transactional=False)
    workers = CoroutineWorkers(work_queue, 2, call, letter_as_output)
    start(work_queue)
    workers.start()
    work_queue.offer(batch([A]))

    def worker_ended() -> bool:
        return any(task.done() for task in workers._tasks)

    def at_rest() -> bool:
        return not work_queue.stats().busy and not work_queue.stats().parked

    eventually(lambda: worker_ended() or at_rest(), "the failure")
    work_queue.offer(batch([A, B, A, B], start=1))
    everything = [{0: 5}]
    eventually(
        lambda: worker_ended() or [c.positions for c in work_queue.cursor(WHOLE_SLOT)] == everything,
        "all records",
    )
    assert not worker_ended()
    assert work_queue.stats().failures == (how != "cancels the others")
    work_queue.end()
    assert workers.join(Deadline(PATIENCE))
    assert work_queue.error is None


def test_a_record_wakes_a_worker_although_others_that_were_idle_are_cancelled() -> None:
    """A cancelled worker waits for its next wake-up; the one before is still in the queue of the idle."""
    work_queue = WorkQueue(1, BUFFER, Judge(Stop()))
    call = asynchronous(cancelling("cancels the others"), transactional=False)
    workers = CoroutineWorkers(work_queue, 3, call, letter_as_output)
    start(work_queue)
    workers.start()
    for offset in range(3):
        eventually(lambda: idle(workers) == 3, "all workers to wait")
        work_queue.offer(batch([A], start=offset))
        eventually(lambda: work_queue.stats().processed > offset, f"record {offset}")  # noqa: B023 - at once
    work_queue.end()
    assert workers.join(Deadline(PATIENCE))


def idle(workers: CoroutineWorkers) -> int:
    """Return how many workers wait to be woken."""
    return sum(not turn.done() for turn in list(workers._idle))


def test_a_handler_that_is_cancelled_by_itself_ends_the_run_where_failures_do() -> None:
    work_queue = WorkQueue(1, BUFFER, Judge(Stop()))
    workers = CoroutineWorkers(
        work_queue, 1, asynchronous(cancelling("raises"), transactional=False), letter_as_output
    )
    start(work_queue)
    workers.start()
    work_queue.offer(batch([A]))
    assert work_queue.over.wait(PATIENCE)
    assert isinstance(work_queue.error, HandlerError)
    assert isinstance(work_queue.error.__cause__, CancelledError)
    assert workers.join(Deadline(PATIENCE))


def test_whoever_wakes_workers_whose_loop_has_just_ended_is_not_hurt(monkeypatch: pytest.MonkeyPatch) -> None:
    work_queue = WorkQueue(1, BUFFER, Judge(Stop()))
    workers = CoroutineWorkers(
        work_queue, 1, asynchronous(cancelling("raises"), transactional=False), letter_as_output
    )
    start(work_queue)
    workers.start()
    work_queue.end()
    assert workers.join(Deadline(PATIENCE))
    # What a thread has seen that looked a moment before.
    monkeypatch.setattr(workers._loop, "is_closed", lambda: False)
    monkeypatch.setattr(workers._thread, "is_alive", lambda: True)
    work_queue.offer(batch([A]))
    workers.abandon()
