"""Handlers in processes of their own, without brokers."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity

from kpsplit.clock import Deadline
from kpsplit.consumer.run.outputs import letter_as_output
from kpsplit.consumer.run.policies import HandlerError, Judge, Policy, Retry, Stop
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.consumer.run.workers import ProcessWorkers, RemoteError, RemoteHandler, WorkerDiedError, packed
from kpsplit.errors import ConfigurationError, UsageError
from tests.unit import run_handlers
from tests.unit.lane_samples import FIRST, PATIENCE, WHOLE_SLOT, batch, eventually, record, start

SECONDS = 180.0


@pytest.fixture
def remote() -> Iterator[Callable[..., RemoteHandler]]:
    """Makes handlers in processes; ended at the end of the test."""
    made: list[RemoteHandler] = []

    def make(handler: Callable[[Any], Any], *, transactional: bool = False) -> RemoteHandler:
        handler_there = RemoteHandler(packed(handler), transactional=transactional)
        made.append(handler_there)
        handler_there.start()
        handler_there.ready()
        return handler_there

    yield make
    for handler in made:
        handler.close()


def team(handler: Callable[[Any], Any], policy: Policy) -> tuple[WorkQueue, ProcessWorkers]:
    work_queue = WorkQueue(1, 1 << 20, Judge(policy))
    workers = ProcessWorkers(work_queue, 1, packed(handler), letter_as_output, transactional=False)
    start(work_queue)
    workers.start()
    return work_queue, workers


def test_a_record_tells_the_same_there_as_here(remote: Callable[..., RemoteHandler]) -> None:
    call = remote(run_handlers.tell, transactional=True)
    here = record(FIRST, 7, b"k", b"value")
    [output] = call(here)
    told = ast.literal_eval(output.value.decode())  # type: ignore[union-attr]
    assert told[:-1] == (
        "orders",
        3,
        7,
        b"k",
        here.headers(),
        here.timestamp(),
        ("orders", 3, 7),
        5,
        None,
    )
    assert told[-1] != os.getpid()


def test_what_a_handler_raises_there_is_raised_here_with_its_traceback(
    remote: Callable[..., RemoteHandler],
) -> None:
    call = remote(run_handlers.fail)
    with pytest.raises(ValueError, match="as it is") as raised:
        call(record(FIRST, 0, b"k", b"as it is"))
    assert "run_handlers.py" in str(raised.value.__cause__)
    with pytest.raises(RemoteError, match="OddError"):
        call(record(FIRST, 0, b"k", b"odd"))


def test_a_process_that_dies_fails_its_record_and_a_new_one_goes_on(tmp_path: Path) -> None:
    again = Retry(attempts=2, wait=tenacity.wait_none(), on=WorkerDiedError)
    work_queue, workers = team(run_handlers.die_once, again)
    work_queue.offer(batch([b"a", b"b"], value=str(tmp_path / "died").encode()))
    eventually(lambda: work_queue.stats().processed == 2 or work_queue.over.is_set(), "both records")
    assert work_queue.error is None
    assert work_queue.stats().failures == 1
    work_queue.end()
    assert workers.join(Deadline(SECONDS))


def test_a_process_that_dies_stops_the_run_by_default(tmp_path: Path) -> None:
    work_queue, workers = team(run_handlers.die_once, Stop())
    work_queue.offer(batch([b"a"], value=str(tmp_path / "died").encode()))
    assert work_queue.over.wait(SECONDS)
    assert workers.join(Deadline(SECONDS))
    assert isinstance(work_queue.error, HandlerError)
    assert isinstance(work_queue.error.__cause__, WorkerDiedError)
    assert "exit code 7" in str(work_queue.error.__cause__)


def test_a_process_that_works_on_when_the_run_ends_is_given_up_without_a_failure(tmp_path: Path) -> None:
    began = tmp_path / "began"
    work_queue, workers = team(run_handlers.sleep, Stop())
    work_queue.offer(batch([b"a"], value=str(began).encode()))
    eventually(began.exists, "the handler to begin")
    work_queue.end()
    assert not workers.join(Deadline(0.05))
    workers.abandon()
    assert workers.join(Deadline(PATIENCE))
    assert work_queue.error is None
    assert work_queue.stats().failures == 0
    assert [c.positions[0] for c in work_queue.cursor(WHOLE_SLOT) if c.positions[0] == 0] == [0]


def test_a_handler_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="top level of a module"):
        packed(lambda record: None)


def test_a_handler_that_cannot_be_imported_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(record: Any) -> None: ...

    moved.__qualname__ = "moved"
    monkeypatch.setattr(run_handlers, "moved", moved, raising=False)
    moved.__module__ = run_handlers.__name__
    handler = RemoteHandler(packed(moved), transactional=False)
    handler.start()
    try:
        with pytest.raises(ConfigurationError, match="AttributeError"):
            handler.ready()
    finally:
        handler.close()


def test_a_handler_that_has_done_nothing_yet_fails_in_a_process_as_in_a_thread(
    remote: Callable[..., RemoteHandler],
) -> None:
    call = remote(run_handlers.tell)  # a generator: it runs only where its outputs are wanted
    with pytest.raises(UsageError, match="nothing was done yet"):
        call(record(FIRST, 0, b"k"))
