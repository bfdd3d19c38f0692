"""The processes of a scenario: writers, members of a group and others. Orders go in, news come out.

A process is ``python -m MODULE``. Its orders are the first line on its stdin, because they may hold secrets.
Later lines are commands. Each line on its stdout is its latest news.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from kpsplit.clock import Deadline
from kpsplit.errors import DeadlineExceededError, KpsplitError

# -- what goes through the pipes -------------------------------------------------------------------


FINISH = "finish"
"""Writer: stop (with a file: send the rest of it), wait for all reports, end. Member: leave the group."""
SUSPEND = "suspend"
"""Writer: stop yourself by SIGSTOP in the middle of a burst, with records in flight."""


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A value that is sent through a pipe as one line."""

    def encode(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> Self:
        fields = json.loads(line).items()
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders(JsonLine):
    """What one process is to do. ``properties`` may hold secrets; ``journal``: where it notes what it did."""

    name: str
    properties: dict[str, Any]
    topic: str
    journal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOrders(Orders):
    """What one writer is to do.

    ``plain``: with ``confluent_kafka.Producer``, which knows nothing of kpsplit. ``flush_seconds``: how long
    it waits for its last reports. ``input`` and ``expression``: the file and the expression that finds its
    keys; None: records with skewed keys. ``writers``: the names of all writers, among which lines are
    divided. ``stock``: how many lines are this writer's; its rate falls with what is left of them.
    """

    partitions: int
    rate: float
    seed: int
    plain: bool = False
    flush_seconds: float = 60.0
    writers: tuple[str, ...] = ()
    input: str | None = None
    expression: str | None = None
    stock: int | None = None
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOrders(Orders):
    """What one member of a group is to do."""

    group: str
    session_ms: int


class News(Protocol):
    """What a process reports; without arguments: what is known before its first line."""

    @property
    def done(self) -> bool:
        """Whether it has finished."""

    @property
    def error(self) -> str | None:
        """What went wrong."""

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read a line of news."""


class WriterStage(StrEnum):
    """What a writer is doing. DRAINING: it waits for reports."""

    STARTING = "starting"
    WRITING = "writing"
    DRAINING = "draining"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class WriterNews(JsonLine):
    """What a writer reports, several times a second.

    ``waiting``: accepted and not reported yet. ``held``, ``strays``, ``pauses_ms``: from
    ``Producer.layout_stats()``; ``held_in``: records held, per logical partition.
    """

    stage: WriterStage = WriterStage.STARTING
    sent: int = 0
    ok: int = 0
    failed: int = 0
    waiting: int = 0
    held: int = 0
    strays: int = 0
    pauses_ms: tuple[int, ...] = ()
    held_in: dict[str, int] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage", WriterStage(self.stage))  # JSON has the bare value

    @property
    def done(self) -> bool:
        return self.stage is WriterStage.DONE

    def __str__(self) -> str:
        return f"is {self.stage} and has {self.ok:,} of {self.sent:,} records reported"


@dataclass(frozen=True, slots=True)
class MemberNews(JsonLine):
    """What a member reports, several times a second.

    ``slots``: how many it owns; ``lost_at``: when slots were first taken from it that it had not given up.
    """

    worked_on: int = 0
    slots: int = 0
    lost_at: float | None = None
    done: bool = False
    error: str | None = None

    def __str__(self) -> str:
        return f"has {self.slots} slots and worked on {self.worked_on:,} records"


# -- a process, as its parent sees it --------------------------------------------------------------


PATIENCE_SECONDS = 240.0
"""How long processes may take together for what is asked of them: a slow machine is no failure."""
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.02
_SUSPEND_SECONDS = 60.0
_LAST_WORDS_SECONDS = 2.0
_STDERR_BYTES = 2000
_KILLED_BY_OTHERS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}

N = TypeVar("N", bound=News)


class ChildDiedError(KpsplitError):
    """A process of a scenario ended before it was asked to."""


class Endpoint(Generic[N]):
    """One process. Threads of their own read its stdout and stderr.

    Args:
        kind: what it is, for messages.
        module: what it runs.
        orders: sent at once, unless ``waits``: then ``begin`` sends them.
        news: what is known of it before it reports.
    """

    def __init__(self, kind: str, module: str, orders: Orders, news: N, waits: bool = False) -> None:
        self.name = orders.name
        self.orders = orders
        self.news = news
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
        readers = (self._read_news, self._read_stderr)
        self._readers = [threading.Thread(target=reader, daemon=True) for reader in readers]
        for thread in self._readers:
            thread.start()
        if not waits:
            self.begin()

    def __str__(self) -> str:
        state = "was killed" if self.killed else "is suspended" if self.suspended else self.news
        return f"{self.name} {state}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self) -> None:
        self._write(self.orders.encode())

    def tell(self, command: str) -> None:
        self._write(f"{command}\n")

    def heard(self, line: str) -> None:
        self.news = type(self.news).decode(line)

    def check(self) -> None:
        """Raises ChildDiedError: the process ended too soon (not after ``kill``), or had an error."""
        if self.killed:
            return
        code = self._process.poll()
        if code is not None:
            for thread in self._readers:  # its last words may still be in the pipes
                thread.join(_LAST_WORDS_SECONDS)
        if self.news.error is not None:
            raise ChildDiedError(f"{self._kind} {self.name} failed: {self.news.error}")
        if code is not None and (code != 0 or not self.news.done):
            raise ChildDiedError(f"{self._kind} {self.name} {self._how_it_ended(code)}")

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process is gone."""
        self._process.send_signal(number)

    def suspend(self) -> None:
        self.send_signal(signal.SIGSTOP)
        self.suspended = True

    def suspend_in_burst(self) -> None:
        """Make a writer stop itself with records in flight; raises ChildDiedError if it ends instead."""
        self.tell(SUSPEND)
        deadline = Deadline(_SUSPEND_SECONDS)
        while not self._has_stopped():
            self.check()
            deadline.check(f"{self._kind} {self.name} to be suspended")
            time.sleep(_POLL_SECONDS)
        self.suspended = True

    def resume(self) -> None:
        if self.suspended:
            self.suspended = False
            self.send_signal(signal.SIGCONT)

    def end(self, deadline: Deadline) -> None:
        """End the process: SIGTERM, then SIGKILL at the deadline."""
        with suppress(OSError):
            self.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            self._process.wait(max(0.1, deadline.left()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _write(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None:
            return
        with suppress(BrokenPipeError):  # it ended: check() says why
            pipe.write(line.encode())
            pipe.flush()

    def _has_stopped(self) -> bool:
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False

    def _how_it_ended(self, code: int) -> str:
        if -code in _KILLED_BY_OTHERS:  # what it wrote last, a warning perhaps, is not the reason
            return f"was killed by signal {-code}"
        tail = self._stderr.decode(errors="replace").strip().splitlines()
        reason = f": {tail[-1]}" if tail else ""
        return (f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}") + reason

    def _read_news(self) -> None:
        for line in self._process.stdout or ():
            self.heard(line.decode())

    def _read_stderr(self) -> None:
        for line in self._process.stderr or ():
            self._stderr = (self._stderr + line)[-_STDERR_BYTES:]


class Endpoints(Generic[N]):
    """Processes of one kind; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self.all: list[Endpoint[N]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = Deadline(STOP_SECONDS)
        for endpoint in self.all:
            endpoint.end(deadline)

    def __getitem__(self, name: str) -> Endpoint[N]:
        return next(endpoint for endpoint in self.all if endpoint.name == name)

    def check(self) -> None:
        """Raise if one of them is not well."""
        for endpoint in self.all:
            endpoint.check()

    def wait(
        self, what: str, until: Callable[[], bool], seconds: float, between: float = _POLL_SECONDS
    ) -> None:
        """Return when a condition holds. Raises DeadlineExceededError, or as ``check``."""
        deadline = Deadline(seconds)
        while not until():
            self.check()
            if deadline.left() <= 0:
                standing = ", ".join(str(endpoint) for endpoint in self.all)
                raise DeadlineExceededError(f"waited {seconds:.0f} s for {what}: {standing}")
            time.sleep(between)
        self.check()

    def finish(self, what: str, seconds: float) -> None:
        """Make all that were not killed finish; return when they have ended. Raises: as ``wait``."""
        living = [endpoint for endpoint in self.all if not endpoint.killed]
        for endpoint in living:
            endpoint.resume()
            endpoint.tell(FINISH)
        self.wait(what, lambda: all(not e.alive and e.news.done for e in living), seconds)


def keep_folder(folder: Path, prefix: str) -> Path:
    """Copy journals and logs, not brokers' data, to a new folder that stays; return it."""
    kept = Path(tempfile.mkdtemp(prefix=prefix))
    shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    return kept


# -- the same process, inside ----------------------------------------------------------------------


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends: a suspended one could not see that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def first_line() -> str:
    """Begin as the process of a scenario: return the line with its orders."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent decides
    return sys.stdin.readline()


def listen(obey: Callable[[str], None], gone: Callable[[], None]) -> None:
    """Call ``obey`` with each command, and ``gone`` when there is no parent any more; in a thread."""

    def serve() -> None:
        for line in sys.stdin:
            obey(line.strip())
        gone()

    threading.Thread(target=serve, daemon=True).start()


def report(news: JsonLine) -> None:
    sys.stdout.write(news.encode())
    sys.stdout.flush()
