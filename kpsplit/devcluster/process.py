"""This process's side of the keeper, and one JVM under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline

# Run as a file, in isolated mode: it starts quickly, and nothing in the current folder shadows its imports.
_KEEPER = Path(__file__).with_name("keeper.py")

_POLL = 0.02  # seconds between looks at whether a process has ended
_KEEPER_EXIT = 30.0  # seconds for the keeper to kill the brokers and remove their data


class KeeperClient:
    """Starts the keeper and talks to it. May be used from several threads.

    Args:
        temporary: a folder that the keeper removes when all is over.
        inherited: file descriptors that stay open until then (the lock on a data folder).
    """

    def __init__(self, temporary: Path | None = None, inherited: Sequence[int] = ()) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        arguments = [str(self._owner), *([str(temporary)] if temporary else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_KEEPER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherited,
        )

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._process.pid

    def request(self, **request: object) -> dict[str, Any]:
        """Send one request and return the answer.

        Raises:
            KpsplitError: the keeper has ended, or answered with an error.
        """
        if os.getpid() != self._owner:
            raise KpsplitError("an embedded cluster can be used only by the process that started it")
        with self._lock:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        if error := answer.get("error"):
            raise KpsplitError(f"the keeper of the embedded cluster reports: {error}")
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # for the type checker: both are pipes
        try:
            stdin.write(line)
            stdin.flush()
            answer = stdout.readline()
        except (OSError, ValueError) as error:
            raise KpsplitError("the keeper of the embedded cluster has ended") from error
        if not answer:
            raise KpsplitError("the keeper of the embedded cluster has ended")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def close(self) -> None:
        """Let the keeper end, and the brokers with it; return when that is done."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._say_end()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait(_KEEPER_EXIT)

    def _say_end(self) -> None:
        """Tell the keeper: where a forked copy of this process holds the pipe, closing it says nothing."""
        stdin = self._process.stdin
        with suppress(OSError, ValueError):  # it has ended, or this was closed before
            if stdin is not None:
                stdin.write(b'{"op": "end"}\n')
                stdin.flush()


class ManagedProcess:
    """One process under the keeper.

    Attributes:
        pid: of the process that runs, or ran last.
        paused: whether SIGSTOP was the last word.
    """

    def __init__(self, keeper: KeeperClient, name: str, command: Sequence[str], log: Path) -> None:
        self._keeper = keeper
        self._name = name
        self.paused = False
        answer = keeper.request(op="start", id=name, command=list(command), log=str(log))
        self.pid = int(answer["pid"])

    @property
    def exit_code(self) -> int | None:
        """How it ended (negative: by that signal); None while it runs, paused or not."""
        ended: int | None = self._keeper.request(op="status")["ended"][self._name]
        return ended

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process has ended already."""
        self.paused |= number == signal.SIGSTOP  # also if it is not seen to stop
        sent: bool = self._keeper.request(op="signal", id=self._name, signal=int(number))["sent"]
        self.paused &= sent and number != signal.SIGCONT
        return sent

    def wait(self, deadline: Deadline) -> int | None:
        """Wait for the end; None if it did not come in time."""
        while (code := self.exit_code) is None and not deadline.expired():
            deadline.pause(_POLL)
        return code

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.send(signal.SIGKILL)
        self.wait(Deadline(_KEEPER_EXIT))
        self.paused = False

    def terminate(self, grace: float) -> None:
        """SIGTERM; SIGKILL if that did not help within `grace` seconds, or the process is paused."""
        if not self.paused:
            self.send(signal.SIGTERM)
            self.wait(Deadline(grace))
        self.kill()
