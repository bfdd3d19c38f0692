"""A process of the demo as its parent sees it: orders in, news out, and a reason when it ends too soon."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from kpsplit.errors import KpsplitError
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
        """Tell whether the process runs, suspended or not."""
        return self._process.poll() is None

    @property
    @abstractmethod
    def error(self) -> str | None:
        """What the process says went wrong."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Tell whether the process said that it has finished."""

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
