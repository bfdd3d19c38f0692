"""Workers: threads, threads with a process each, and tasks of one event loop in its own thread.

A thread without a lane sleeps on a condition. One of those that sleep, the *timer*, sleeps no longer than
until the next lane has rested; when it is woken for something else, another takes its place.

A thread with a process sends it a record through a pipe and waits for the answer, so a process that dies is
known at once, with the record that it was working on; a new one takes its place. Processes are started by
*spawn* and end with their pipe: none outlives a parent that was killed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import multiprocessing
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.run.handlers import AsyncCall, Call, Handler, Output, Record, RemoteError, serve
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.policies import DeadLetter, Rest
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.errors import ConfigurationError, KpsplitError

log = logging.getLogger(__name__)

Letters = Callable[[Any, BaseException, str], tuple[Output, ...]]
"""Writes a dead letter for a record and its error to a topic, or returns it to be written with the commit.

Raises KpsplitError if it cannot be written.
"""

START_SECONDS = 60.0
"""How long a process may take to import the handler's module."""
END_SECONDS = 2.0

_HINT = 'executor="process" needs a function at the top level of a module that can be imported'

_spawn = multiprocessing.get_context("spawn")

ALL = 1 << 30


class GivenUpError(BaseException):
    """A call was ended from outside because the run ends: the handler did not fail."""


class WorkerDiedError(KpsplitError):
    """The process in which a handler ran is gone; how far the handler came is not known."""


class RemoteTracebackError(Exception):
    """The cause of an error from another process: its traceback there, as text."""


class ThreadWorkers:
    """One thread for each call; ``calls`` may be the same one for all."""

    def __init__(self, work_queue: WorkQueue, calls: Sequence[Call], letters: Letters) -> None:
        self._work_queue = work_queue
        self._letters = letters
        self._condition = threading.Condition(work_queue.lock)
        self._resting: list[tuple[float, int, Lane]] = []
        self._timer = inf
        """Until when the timer sleeps."""
        work_queue.wake = self._wake
        self._threads = [
            threading.Thread(target=self._work, args=(call,), name=f"kpsplit-worker-{number}", daemon=True)
            for number, call in enumerate(calls)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, deadline: Deadline) -> bool:
        """Wait until every thread has ended after ``work_queue.end()``; False if some were not in time."""
        for thread in self._threads:
            thread.join(deadline.left())
        return not any(thread.is_alive() for thread in self._threads)

    def abandon(self) -> None:
        """Do nothing: a thread cannot be ended; what it still does is not committed."""

    # -- a worker ------------------------------------------------------------------------------------

    def _work(self, call: Call) -> None:
        try:
            self._serve(call)
        except BaseException as error:
            log.exception("kpsplit: internal error in a worker")
            self._work_queue.end(error)

    def _serve(self, call: Call) -> None:
        lane = self._next()
        while lane is not None:
            try:
                with lane.attempt:
                    outputs = call(lane.record)
            except GivenUpError:
                self._work_queue.give_back(lane)
                lane = self._next()
            except BaseException as error:  # noqa: BLE001 - the policy decides; an exit in a thread ends the run
                self._failed(lane, error)
                lane = self._next()
            else:
                lane = self._next(lane, outputs)

    def _next(self, done: Lane | None = None, outputs: tuple[Output, ...] = ()) -> Lane | None:
        """Note that a lane's record was processed, then wait for a lane; None when the run is over."""
        work_queue = self._work_queue
        with work_queue.lock:  # the condition's
            if done is not None:
                work_queue.processed(done, outputs)
            while not work_queue.closed:
                if self._resting:
                    self._wake_rested()
                lane = work_queue.take()
                if lane is not None:
                    return lane
                self._sleep()
        return None

    def _failed(self, lane: Lane, error: BaseException) -> None:
        record = lane.record
        step = self._work_queue.failed(lane, error)
        if isinstance(step, Rest):
            with self._condition:
                heapq.heappush(self._resting, (monotonic() + step.seconds, lane.serial, lane))
        elif isinstance(step, DeadLetter):
            try:
                outputs = self._letters(record, error, step.topic)
            except KpsplitError as undelivered:
                self._work_queue.undeliverable(lane, undelivered)
            else:
                self._work_queue.done_with_letter(lane, outputs)

    # -- waiting, with the lock held -----------------------------------------------------------------

    def _sleep(self) -> None:
        due = self._resting[0][0] if self._resting else inf
        if due >= self._timer:
            self._condition.wait()
            return
        self._timer = due
        self._condition.wait(max(0.0, due - monotonic()))
        if self._timer == due:
            self._timer = inf

    def _wake_rested(self) -> None:
        """Let lanes go on that have rested; this worker takes one itself."""
        ready = 0
        while self._resting and self._resting[0][0] <= monotonic():
            ready += self._work_queue.scheduler.unpark(heapq.heappop(self._resting)[2])
        if ready > 1 or (self._resting and self._resting[0][0] < self._timer):
            self._condition.notify(max(1, ready - 1))

    def _wake(self, lanes: int) -> None:
        self._condition.notify(ALL if lanes < 0 else lanes)


def packed(handler: Handler) -> bytes:
    """Return a handler as what is sent to processes.

    Raises:
        ConfigurationError: it cannot be imported there.
    """
    try:
        return pickle.dumps(handler)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the handler cannot be sent to a process ({type(error).__name__})",
            hint=_HINT,
        ) from error


class RemoteHandler:
    """Calls a handler in a process of its own.

    One thread calls it. ``give_up`` may come from any thread meanwhile; the rest is for before and after.

    Args:
        handler: from ``packed``.
        transactional: whether the handler returns outputs.
    """

    def __init__(self, handler: bytes, *, transactional: bool) -> None:
        self._handler = handler
        self._transactional = transactional
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._given_up = False

    def start(self) -> None:
        """Start the process; it imports the handler while others start."""
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(
            target=serve,
            args=(theirs, self._handler, self._transactional),
            name="kpsplit-handler",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until the process has imported the handler.

        Raises:
            ConfigurationError: it could not.
        """
        problem: str | None = "it did not start"
        if self._pipe is not None:
            with suppress(EOFError, OSError):
                problem = self._pipe.recv() if self._pipe.poll(START_SECONDS) else "it took too long"
        if problem is not None:
            raise ConfigurationError(f"a process cannot use the handler: {problem}", hint=_HINT)

    def __call__(self, message: Any) -> tuple[Output, ...]:
        """Call the handler there.

        Raises:
            GivenUpError: ``give_up`` was called. WorkerDiedError: the process ended while it worked on the
                record. BaseException: what the handler raised.
        """
        record = Record.of(message)
        pipe = self._pipe or self._restarted()
        try:
            pipe.send(record)
        except OSError:  # it ended while it had nothing to do
            pipe = self._restarted()
            pipe.send(record)
        try:
            outputs, error, trace = pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if error is not None:
            raise _unpacked(error) from RemoteTracebackError(trace)
        return outputs  # type: ignore[no-any-return]

    def give_up(self) -> None:
        """End the process, whatever it works on."""
        self._given_up = True
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """End the process, which has nothing to do."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(END_SECONDS)
            self._process.kill()
            self._process.join()
            self._process = None

    def _restarted(self) -> Connection:
        self._check_given_up()
        self.close()
        self.start()
        self.ready()
        if self._pipe is None:
            raise WorkerDiedError("the process of a handler did not start", hint="see what it printed")
        return self._pipe

    def _died(self) -> WorkerDiedError:
        self._check_given_up()
        code = None
        if self._process is not None:
            self._process.join(END_SECONDS)
            code = self._process.exitcode
        self.close()
        return WorkerDiedError(
            f"the process of a handler ended with exit code {code}",
            hint="what it did with the record is not known; a new process takes its place",
            changed=None,
        )

    def _check_given_up(self) -> None:
        if self._given_up:
            raise GivenUpError


def _unpacked(data: bytes) -> BaseException:
    try:
        error: BaseException = pickle.loads(data)
    except Exception as problem:  # noqa: BLE001 - as above
        return RemoteError(f"what the handler raised cannot be read ({type(problem).__name__})")
    return error


class ProcessWorkers(ThreadWorkers):
    """``handler`` is from ``remote.packed``; the processes are started, all at once, by ``start``."""

    def __init__(
        self, work_queue: WorkQueue, count: int, handler: bytes, letters: Letters, *, transactional: bool
    ) -> None:
        self._handlers = [RemoteHandler(handler, transactional=transactional) for _ in range(count)]
        super().__init__(work_queue, self._handlers, letters)

    def start(self) -> None:
        """Raises ConfigurationError: the handler cannot be imported in the processes."""
        try:
            for handler in self._handlers:
                handler.start()
            for handler in self._handlers:
                handler.ready()
        except BaseException:
            self._close()
            raise
        super().start()

    def join(self, deadline: Deadline) -> bool:
        ended = super().join(deadline)
        if ended:
            self._close()
        return ended

    def abandon(self) -> None:
        """End the processes; what they work on is not committed."""
        for handler in self._handlers:
            handler.give_up()

    def _close(self) -> None:
        for handler in self._handlers:
            handler.close()


class CoroutineWorkers:
    """``count`` tasks. Everything that has no lock belongs to the loop's thread."""

    def __init__(self, work_queue: WorkQueue, count: int, call: AsyncCall, letters: Letters) -> None:
        self._work_queue = work_queue
        self._count = count
        self._call = call
        self._letters = letters
        self._loop = asyncio.new_event_loop()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned = False
        """Workers are cancelled by us; any other cancellation is a handler's own."""
        self._thread = threading.Thread(target=self._run, name="kpsplit-coroutines", daemon=True)
        work_queue.wake = self._wake

    def start(self) -> None:
        self._thread.start()

    def join(self, deadline: Deadline) -> bool:
        self._thread.join(deadline.left())
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Cancel what is still being worked on: it is not committed."""
        self._in_loop(self._cancel)

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
                self._work_queue.end(error)
                over = True

    async def _serve(self) -> None:
        work_queue = self._work_queue
        while (lane := await self._next()) is not None:
            try:
                with lane.attempt:
                    outputs = await self._call(lane.record)
            except asyncio.CancelledError as error:
                if self._abandoned:
                    work_queue.give_back(lane)
                    raise
                await self._failed(lane, _failure(error))
            except BaseException as error:  # noqa: BLE001 - the policy decides; an exit in a task ends the run
                await self._failed(lane, error)
            else:
                work_queue.done(lane, outputs)

    async def _next(self) -> Lane | None:
        """Wait for a lane; None when the run is over."""
        work_queue = self._work_queue
        while not work_queue.closed:
            with work_queue.lock:
                lane = work_queue.take()
            if lane is not None:
                return lane
            # Nothing is missed: what makes a lane ready now wakes through the loop, so after this line.
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
        step = self._work_queue.failed(lane, error)
        if isinstance(step, Rest):
            self._loop.call_later(step.seconds, self._try_again, lane)
        elif isinstance(step, DeadLetter):
            try:
                outputs = await asyncio.to_thread(self._letters, record, error, step.topic)
            except KpsplitError as undelivered:
                self._work_queue.undeliverable(lane, undelivered)
            else:
                self._work_queue.done_with_letter(lane, outputs)

    def _try_again(self, lane: Lane) -> None:
        with self._work_queue.lock:
            ready = self._work_queue.scheduler.unpark(lane)
        self._wake_now(ready)

    # -- waiting -------------------------------------------------------------------------------------

    def _wake(self, lanes: int) -> None:
        self._in_loop(self._wake_now, lanes)

    def _in_loop(self, callback: Callable[..., None], *arguments: int) -> None:
        with suppress(RuntimeError):  # the loop is closed, perhaps since a moment ago: its tasks have ended
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _wake_now(self, lanes: int) -> None:
        left = ALL if lanes < 0 else lanes
        while left > 0 and self._idle:
            turn = self._idle.popleft()
            if not turn.done():  # else its worker was cancelled, and waits for another turn
                turn.set_result(None)
                left -= 1


def _failure(error: asyncio.CancelledError) -> Exception:
    """Return a cancellation by the handler itself as a failure like any other, on which policies decide."""
    failure = CancelledError("the handler was cancelled by itself")
    failure.__cause__ = error
    return failure
