"""The demo's processes as it sees them: orders in, news out, and a reason when one ends too soon."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kpsplit.demo.options import (
    FINISH,
    MemberNews,
    MemberOrders,
    WriterCommand,
    WriterNews,
    WriterOrders,
    WriterStage,
)
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.clock import Deadline

PATIENCE_SECONDS = 240.0
"""How long the processes may take together for what is asked of them: a slow machine is no failure."""
_TAIL = 2000
_KILLED_BY_OTHERS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}


class ChildDiedError(KpsplitError):
    """A process of the demo ended before it was told to."""


class ChildProcess(ABC):
    """``python -m MODULE``, with a line of orders on stdin. Its lines are read by threads of their own."""

    def __init__(self, kind: str, name: str, module: str, orders: str) -> None:
        self.name = name
        self.suspended = False
        self.killed = False
        self._kind = kind
        self._stderr = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for target in (self._read_news, self._read_stderr):
            threading.Thread(target=target, daemon=True).start()
        self.tell(orders)

    @property
    def alive(self) -> bool:
        """Return whether the process runs, suspended or not."""
        return self._process.poll() is None

    @property
    @abstractmethod
    def error(self) -> str | None:
        """What the process says went wrong."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return whether the process said that it has finished."""

    @abstractmethod
    def heard(self, line: str) -> None:
        """Take a line of its news."""

    def tell(self, line: str) -> None:
        """Send a line to the process."""
        pipe = self._process.stdin
        if pipe is None:
            return
        with suppress(BrokenPipeError):  # it ended: check() says why
            pipe.write(line.encode())
            pipe.flush()

    def check(self) -> None:
        """Do nothing while all is well.

        Raises:
            ChildDiedError: the process ended too soon, or had an error.
        """
        if self.error is not None:
            raise ChildDiedError(f"{self._kind} {self.name} failed: {self.error}")
        code = self._process.poll()
        if code is not None and (code != 0 or not self.done):
            raise ChildDiedError(f"{self._kind} {self.name} {self._how_it_ended(code)}")

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Stop the process by SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)
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

    def _read_news(self) -> None:
        for line in self._process.stdout or ():
            self.heard(line.decode())

    def _read_stderr(self) -> None:
        for line in self._process.stderr or ():
            self._stderr = (self._stderr + line)[-_TAIL:]


# -- what a child does about its parent ------------------------------------------------------------


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends: a suspended one could not see that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# -- the writers -----------------------------------------------------------------------------------


POLL_SECONDS = 0.02
STOP_SECONDS = 5.0
SUSPEND_SECONDS = 60.0


class WriterProcess(ChildProcess):
    """One writer's process."""

    def __init__(self, orders: WriterOrders) -> None:
        self.orders = orders
        self.news = WriterNews()
        super().__init__("writer", orders.name, "kpsplit.demo.worker", orders.encode())

    @property
    def error(self) -> str | None:
        """What the writer says went wrong."""
        return self.news.error

    @property
    def done(self) -> bool:
        """Return whether it said that it has finished."""
        return self.news.stage is WriterStage.DONE

    def heard(self, line: str) -> None:
        """Take a line of its news."""
        self.news = WriterNews.decode(line)

    def command(self, command: WriterCommand) -> None:
        """Give a command."""
        self.tell(f"{command}\n")

    def suspend(self) -> None:
        """Make the process stop by SIGSTOP in the middle of its work; return when it has stopped.

        Raises:
            DeadlineExceededError: it has not. ChildDiedError: it ended instead.
        """
        self.command(WriterCommand.SUSPEND)
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


class WriterProcesses:
    """All writers; a context manager that ends all."""

    def __init__(self, orders: Iterable[WriterOrders]) -> None:
        self._orders = tuple(orders)
        self.all: list[WriterProcess] = []

    def __enter__(self) -> Self:
        """Start them."""
        try:
            for orders in self._orders:
                self.all.append(WriterProcess(orders))
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

    def wait(self, what: str, until: Callable[[WriterProcess], bool], seconds: float) -> None:
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
            child.command(WriterCommand.FINISH)
        self.wait("finish", lambda child: not child.alive and child.done, seconds)


# -- the members of the group ----------------------------------------------------------------------


class MemberProcess(ChildProcess):
    """One member's process; it has loaded everything and waits until it is told to ``join``."""

    def __init__(self, orders: MemberOrders) -> None:
        self.orders = orders
        self.news = MemberNews()
        super().__init__("group member", orders.name, "kpsplit.demo.member", "")

    def join(self) -> None:
        """Have it join the group."""
        self.tell(self.orders.encode())

    @property
    def error(self) -> str | None:
        """What the member says went wrong."""
        return self.news.error

    @property
    def done(self) -> bool:
        """Return whether it said that it has left."""
        return self.news.done

    def heard(self, line: str) -> None:
        """Take a line of its news."""
        self.news = MemberNews.decode(line)

    def check(self) -> None:
        """Do nothing while all is well, or if it was killed on purpose."""
        if not self.killed:
            super().check()


class MemberProcesses:
    """All members that ever were; a context manager that ends all processes."""

    def __init__(self, orders_for: Callable[[str], MemberOrders]) -> None:
        self.all: list[MemberProcess] = []
        self._prepared: dict[str, MemberProcess] = {}
        self._orders_for = orders_for

    def __enter__(self) -> Self:
        """Return self; members come by ``join``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End those that still run."""
        deadline = Deadline(STOP_SECONDS)
        for member in (*self.all, *self._prepared.values()):
            member.end(deadline)

    def __str__(self) -> str:
        """Return what each has come to."""
        return ", ".join(f"{m.name} {_standing(m)}" for m in self.all)

    def prepare(self, names: Iterable[str]) -> None:
        """Start processes that join later: a start takes a core for a second, and brokers share it."""
        for name in names:
            self._prepared[name] = MemberProcess(self._orders_for(name))

    def join(self, names: Collection[str]) -> None:
        """Have members join, those that are not prepared as well."""
        self.prepare(name for name in names if name not in self._prepared)
        for name in names:
            self.all.append(self._prepared.pop(name))
            self.all[-1].join()

    def named(self, name: str) -> MemberProcess:
        """Return a member."""
        return next(member for member in self.all if member.name == name)

    def check(self) -> None:
        """Raise if one of them is not well."""
        for member in self.all:
            member.check()

    def journals(self) -> dict[str, Path]:
        """Return where each member wrote down what it worked on."""
        return {member.name: Path(member.orders.journal) for member in self.all}

    def wait(
        self, what: str, until: Callable[[], bool], seconds: float, between: float = POLL_SECONDS
    ) -> None:
        """Return when a condition holds.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: a member is not well.
        """
        deadline = Deadline(seconds)
        while not until():
            self.check()
            if deadline.left() <= 0:
                raise DeadlineExceededError(f"waited {seconds:.0f} s for the group to {what}: {self}")
            time.sleep(between)

    def finish(self, seconds: float) -> None:
        """Make all that live leave the group; return when they have.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: a member is not well.
        """
        living = [member for member in self.all if not member.killed]
        for member in living:
            member.resume()
            member.tell(FINISH)
        self.wait("end", lambda: all(not m.alive and m.done for m in living), seconds)


def _standing(member: MemberProcess) -> str:
    if member.killed or member.suspended:
        return "was killed" if member.killed else "is suspended"
    return f"has {member.news.slots} slots and worked on {member.news.worked_on:,} records"
