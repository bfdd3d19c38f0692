"""The writers' processes as the demo sees them: start, suspend, resume, finish, never leave one behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from kpsplit.demo.orders import Command, News, Orders, Stage
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.clock import Deadline

POLL_SECONDS = 0.02
STOP_SECONDS = 5.0
SUSPEND_SECONDS = 10.0
_TAIL = 2000
_KILLED_BY_OTHERS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}


class ChildDiedError(KpsplitError):
    """A writer ended before it was told to."""


class Child:
    """One writer's process. Its news are read by a thread of its own."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.news = News()
        self.suspended = False
        self._stderr = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kpsplit.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for target in (self._read_news, self._read_stderr):
            threading.Thread(target=target, daemon=True).start()
        self._tell(orders.encode())

    @property
    def name(self) -> str:
        """The writer's name."""
        return self.orders.name

    @property
    def alive(self) -> bool:
        """Tell whether the process runs, suspended or not."""
        return self._process.poll() is None

    def command(self, command: Command) -> None:
        """Give a command."""
        self._tell(f"{command}\n")

    def check(self) -> None:
        """Do nothing while all is well.

        Raises:
            ChildDiedError: the writer ended too soon, or had an error.
        """
        if self.news.error is not None:
            raise ChildDiedError(f"writer {self.name} failed: {self.news.error}")
        code = self._process.poll()
        if code is not None and (code != 0 or self.news.stage is not Stage.DONE):
            raise ChildDiedError(f"writer {self.name} {self._how_it_ended(code)}")

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

    def resume(self) -> None:
        """Let a suspended process go on."""
        if self.suspended:
            self.suspended = False
            self._process.send_signal(signal.SIGCONT)

    def end(self, deadline: Deadline) -> None:
        """End the process, politely first."""
        with suppress(OSError):
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            self._process.wait(max(0.1, deadline.left()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _how_it_ended(self, code: int) -> str:
        if -code in _KILLED_BY_OTHERS:  # what it said last, a warning perhaps, is not the reason
            return f"was killed by signal {-code}"
        tail = self._stderr.decode(errors="replace").strip().splitlines()
        reason = f": {tail[-1]}" if tail else ""
        return (f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}") + reason

    def _has_stopped(self) -> bool:
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None:
            return
        with suppress(BrokenPipeError):  # it ended: check() says why
            pipe.write(line.encode())
            pipe.flush()

    def _read_news(self) -> None:
        for line in self._process.stdout or ():
            self.news = News.decode(line.decode())

    def _read_stderr(self) -> None:
        for line in self._process.stderr or ():
            self._stderr = (self._stderr + line)[-_TAIL:]


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
        self.wait("finish", lambda child: not child.alive and child.news.stage is Stage.DONE, seconds)
