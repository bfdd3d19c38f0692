"""Workers that are threads, and how threads wait for lanes.

A worker without a lane sleeps on a condition. One of those that sleep, the *keeper*, sleeps no longer than
until the next lane has rested; when it is woken for something else, another takes its place.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from kpsplit.consumer.run.dead_letters import Letters
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.output import Output
from kpsplit.consumer.run.policies import DeadLetter, Rest
from kpsplit.consumer.run.remote import GivenUpError
from kpsplit.consumer.run.work_queue import Desk
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic

log = logging.getLogger(__name__)

Call = Callable[[Any], tuple[Output, ...]]
"""Calls the handler with a record; returns what is to be written."""

ALL = 1 << 30


class ThreadWorkers:
    """One thread for each call; ``calls`` may be the same one for all."""

    def __init__(self, desk: Desk, calls: Sequence[Call], letters: Letters) -> None:
        self._desk = desk
        self._letters = letters
        self._condition = threading.Condition(desk.lock)
        self._resting: list[tuple[float, int, Lane]] = []
        self._keeper = inf
        """Until when the keeper sleeps."""
        desk.wake = self._wake
        self._threads = [
            threading.Thread(target=self._work, args=(call,), name=f"kpsplit-worker-{number}", daemon=True)
            for number, call in enumerate(calls)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self, deadline: Deadline) -> bool:
        """Wait until every thread has ended after ``desk.end()``; False if some were not in time."""
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
            self._desk.end(error)

    def _serve(self, call: Call) -> None:
        lane = self._next()
        while lane is not None:
            try:
                with lane.attempt:
                    outputs = call(lane.record)
            except GivenUpError:
                self._desk.give_back(lane)
                lane = self._next()
            except BaseException as error:  # noqa: BLE001 - the policy decides; an exit in a thread ends the run
                self._failed(lane, error)
                lane = self._next()
            else:
                lane = self._next(lane, outputs)

    def _next(self, done: Lane | None = None, outputs: tuple[Output, ...] = ()) -> Lane | None:
        """Note that a lane's record was processed, then wait for a lane; None when the run is over."""
        with self._condition:
            if done is not None:
                self._desk.processed(done, outputs)
            while not self._desk.closed:
                self._wake_rested()
                lane = self._desk.take()
                if lane is not None:
                    return lane
                self._sleep()
        return None

    def _failed(self, lane: Lane, error: BaseException) -> None:
        record = lane.record
        step = self._desk.failed(lane, error)
        if isinstance(step, Rest):
            with self._condition:
                heapq.heappush(self._resting, (monotonic() + step.seconds, lane.serial, lane))
        elif isinstance(step, DeadLetter):
            try:
                outputs = self._letters.deliver(record, error, step.topic)
            except KpsplitError as undelivered:
                self._desk.undeliverable(lane, undelivered)
            else:
                self._desk.done_with_letter(lane, outputs)

    # -- waiting, with the lock held -----------------------------------------------------------------

    def _sleep(self) -> None:
        due = self._resting[0][0] if self._resting else inf
        if due >= self._keeper:
            self._condition.wait()
            return
        self._keeper = due
        self._condition.wait(max(0.0, due - monotonic()))
        if self._keeper == due:
            self._keeper = inf

    def _wake_rested(self) -> None:
        """Let lanes go on that have rested; this worker takes one itself."""
        ready = 0
        while self._resting and self._resting[0][0] <= monotonic():
            ready += self._desk.try_again(heapq.heappop(self._resting)[2])
        if ready > 1 or (self._resting and self._resting[0][0] < self._keeper):
            self._condition.notify(max(1, ready - 1))

    def _wake(self, lanes: int) -> None:
        self._condition.notify(ALL if lanes < 0 else lanes)
