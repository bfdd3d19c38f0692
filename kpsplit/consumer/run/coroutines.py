"""Workers that are tasks of one event loop in a thread of its own: for handlers that are ``async def``."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from kpsplit.consumer.run.dead_letters import Letters
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.output import Output
from kpsplit.consumer.run.policies import DeadLetter, Rest
from kpsplit.consumer.run.work_queue import Desk
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline

log = logging.getLogger(__name__)

AsyncCall = Callable[[Any], Awaitable[tuple[Output, ...]]]
"""Calls the handler with a record; gives what is to be written."""


class CoroutineWorkers:
    """``count`` tasks. Everything that has no lock belongs to the loop's thread."""

    def __init__(self, desk: Desk, count: int, call: AsyncCall, letters: Letters) -> None:
        self._desk = desk
        self._count = count
        self._call = call
        self._letters = letters
        self._loop = asyncio.new_event_loop()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned = False
        """Workers are cancelled by us; any other cancellation is a handler's own."""
        self._thread = threading.Thread(target=self._run, name="kpsplit-coroutines", daemon=True)
        desk.wake = self._wake

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def join(self, deadline: Deadline) -> bool:
        """Wait until every task has ended after ``desk.end()``; False if some were not in time."""
        self._thread.join(deadline.left())
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Cancel what is still being worked on: it is not committed."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(self._count)]
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cancel(self) -> None:
        self._abandoned = True
        for task in self._tasks:
            task.cancel()

    # -- a worker ------------------------------------------------------------------------------------

    async def _work(self) -> None:
        over = False
        while not over:
            try:
                await asyncio.sleep(0)  # every worker is inside this before any handler is called
                await self._serve()
                over = True
            except asyncio.CancelledError:
                if self._abandoned:
                    raise
                await self._go_on()  # a handler has cancelled the task of an idle worker
            except BaseException as error:
                log.exception("kpsplit: internal error in a worker")
                self._desk.end(error)
                over = True

    async def _serve(self) -> None:
        desk = self._desk
        while (lane := await self._next()) is not None:
            try:
                with lane.attempt:
                    outputs = await self._call(lane.record)
            except asyncio.CancelledError as error:
                if self._abandoned:
                    desk.give_back(lane)
                    raise
                await self._failed(lane, _failure(error))
            except BaseException as error:  # noqa: BLE001 - the policy decides; an exit in a task ends the run
                await self._failed(lane, error)
            else:
                desk.done(lane, outputs)

    async def _next(self) -> Lane | None:
        """Wait for a lane; None when the run is over."""
        desk = self._desk
        while not desk.closed:
            with desk.lock:
                lane = desk.take()
            if lane is not None:
                return lane
            # Nothing is missed: who makes a lane ready now wakes through the loop, so behind this line.
            turn = self._loop.create_future()
            self._idle.append(turn)
            await turn
        return None

    async def _go_on(self) -> None:
        """End what a handler has begun with the task of a worker: a cancellation is over with the handler."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not self._abandoned:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # one that was asked for and not raised yet comes out here
            while task.uncancel():
                pass

    async def _failed(self, lane: Lane, error: BaseException) -> None:
        await self._go_on()
        record = lane.record
        step = self._desk.failed(lane, error)
        if isinstance(step, Rest):
            self._loop.call_later(step.seconds, self._try_again, lane)
        elif isinstance(step, DeadLetter):
            try:
                outputs = await asyncio.to_thread(self._letters.deliver, record, error, step.topic)
            except KpsplitError as undelivered:
                self._desk.undeliverable(lane, undelivered)
            else:
                self._desk.done_with_letter(lane, outputs)

    def _try_again(self, lane: Lane) -> None:
        with self._desk.lock:
            ready = self._desk.try_again(lane)
        self._wake_now(ready)

    # -- waiting -------------------------------------------------------------------------------------

    def _wake(self, lanes: int) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_now, lanes)

    def _wake_now(self, lanes: int) -> None:
        count = len(self._idle) if lanes < 0 else min(lanes, len(self._idle))
        for _ in range(count):
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)


def _failure(error: asyncio.CancelledError) -> Exception:
    """Return a cancellation by the handler itself as a failure like any other, on which policies decide."""
    failure = CancelledError("the handler was cancelled by itself")
    failure.__cause__ = error
    return failure
