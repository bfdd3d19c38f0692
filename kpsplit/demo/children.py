"""The writers' processes as the demo sees them: start, suspend, resume, finish, never leave one behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from kpsplit.demo.orders import Command, News, Orders, Stage
from kpsplit.demo.process import ChildProcess
from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.clock import Deadline

POLL_SECONDS = 0.02
STOP_SECONDS = 5.0
SUSPEND_SECONDS = 60.0


class Child(ChildProcess):
    """One writer's process."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.news = News()
        super().__init__("writer", orders.name, "kpsplit.demo.worker", orders.encode())

    @property
    def error(self) -> str | None:
        """What the writer says went wrong."""
        return self.news.error

    @property
    def done(self) -> bool:
        """Tell whether it said that it has finished."""
        return self.news.stage is Stage.DONE

    def heard(self, line: str) -> None:
        """Take a line of its news."""
        self.news = News.decode(line)

    def command(self, command: Command) -> None:
        """Give a command."""
        self.tell(f"{command}\n")

    def suspend(self) -> None:
        """Make the process stop by SIGSTOP in the middle of its work; return when it has stopped.

        Raises:
            DeadlineExceededError: it has not. ChildDiedError: it ended instead.
        """
        self.command(Command.SUSPEND)
        deadline = Deadline(SUSPEND_SECONDS)
        while not self._has_stopped():
            self.check()
            deadline.check(f"writer {self.name} to be suspended")
            time.sleep(POLL_SECONDS)
        self.suspended = True

    def _has_stopped(self) -> bool:
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False


class Children:
    """All writers; a context manager that leaves none behind."""

    def __init__(self, orders: Iterable[Orders]) -> None:
        self._orders = tuple(orders)
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        """Start them."""
        try:
            for orders in self._orders:
                self.all.append(Child(orders))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End those that still run."""
        self.end()

    def end(self) -> None:
        """End those that still run."""
        deadline = Deadline(STOP_SECONDS)
        for child in self.all:
            child.end(deadline)

    def check(self) -> None:
        """Raise if one of them is not well."""
        for child in self.all:
            child.check()

    def wait(self, what: str, until: Callable[[Child], bool], seconds: float) -> None:
        """Return when something holds for every writer.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: one of them is not well.
        """
        deadline = Deadline(seconds)
        while True:
            self.check()
            late = [child.name for child in self.all if not until(child)]
            if not late:
                return
            if deadline.left() <= 0:
                raise DeadlineExceededError(f"waited {seconds:.0f} s for {', '.join(late)} to {what}")
            time.sleep(POLL_SECONDS)

    def finish(self, seconds: float) -> None:
        """Make all of them finish; return when they have ended."""
        for child in self.all:
            child.command(Command.FINISH)
        self.wait("finish", lambda child: not child.alive and child.done, seconds)
