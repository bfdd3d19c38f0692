"""This process's side of the supervisor, one process under it, and how Kafka's programs are called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kpsplit.clock import Deadline
from kpsplit.devcluster.jars import Java, ensure_jars, expected_jars, find_java
from kpsplit.errors import KpsplitError

START_SECONDS = 180.0
"""For all brokers to be ready: 6 on two idle cores, over 90 on a busy machine.

A broker that ends is reported at once.
"""

# Run as a file, in isolated mode: it starts quickly, and nothing in the current folder shadows its imports.
_SUPERVISOR = Path(__file__).with_name("supervisor.py")

_POLL = 0.02  # seconds between looks at whether a process has ended
_KILL_SECONDS = 30.0  # for a broker to end after SIGKILL
_SUPERVISOR_EXIT = 180.0  # seconds for the supervisor to kill the brokers and remove 100,000 files


class SupervisorClient:
    """Starts the supervisor and talks to it, from any thread. At its end it removes ``temporary``."""

    def __init__(self, temporary: Path | None = None, inherited: Sequence[int] = ()) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        arguments = [str(self._owner), *([str(temporary)] if temporary else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_SUPERVISOR), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherited,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, **request: object) -> dict[str, Any]:
        """Send one request and return the answer. Raises KpsplitError: it has ended, or refuses."""
        if os.getpid() != self._owner:
            raise KpsplitError("an embedded cluster can be used only by the process that started it")
        with self._lock:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        if error := answer.get("error"):
            raise KpsplitError(f"the supervisor of the embedded cluster reports: {error}")
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # for the type checker: both are pipes
        try:
            stdin.write(line)
            stdin.flush()
            answer = stdout.readline()
        except (OSError, ValueError) as error:
            raise KpsplitError("the supervisor of the embedded cluster has ended") from error
        if not answer:
            raise KpsplitError("the supervisor of the embedded cluster has ended")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def close(self) -> None:
        """Let the supervisor end, and the brokers with it; return when that is done."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._say_end()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait(_SUPERVISOR_EXIT)

    def _say_end(self) -> None:
        """Tell the supervisor: closing the pipe says nothing if a forked copy of this process holds it."""
        stdin = self._process.stdin
        with suppress(OSError, ValueError):  # it has ended, or this was closed before
            if stdin is not None:
                stdin.write(b'{"op": "end"}\n')
                stdin.flush()


class ManagedProcess:
    """One process under the supervisor. ``paused``: whether SIGSTOP was the last word."""

    def __init__(self, supervisor: SupervisorClient, name: str, command: Sequence[str], log: Path) -> None:
        self._supervisor = supervisor
        self._name = name
        self.paused = False
        answer = supervisor.request(op="start", id=name, command=list(command), log=str(log))
        self.pid = int(answer["pid"])

    @property
    def exit_code(self) -> int | None:
        """How it ended (negative: by that signal); None while it runs, paused or not."""
        ended: int | None = self._supervisor.request(op="status")["ended"][self._name]
        return ended

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process has ended already."""
        self.paused |= number == signal.SIGSTOP  # also if it is not seen to stop
        sent: bool = self._supervisor.request(op="signal", id=self._name, signal=int(number))["sent"]
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
        self.wait(Deadline(_KILL_SECONDS))
        self.paused = False

    def terminate(self, grace: float) -> None:
        """SIGTERM; SIGKILL if that did not help within `grace` seconds, or the process is paused."""
        if not self.paused:
            self.send(signal.SIGTERM)
            self.wait(Deadline(grace))
        self.kill()


_LOGGING = Path(__file__).with_name("log4j2.properties")

# Start quickly and stay small: one compiler, one collector thread, no performance data in /tmp.
_OPTIONS = (
    "-XX:MetaspaceSize=96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={_LOGGING}",
)


@dataclass(frozen=True, slots=True)
class KafkaRuntime:
    """What runs Kafka's classes. ``plugins``: jars, or folders of classes, besides those in ``jars``."""

    java: Java
    jars: Path
    heap_mb: int = 384
    log_level: str = "INFO"
    plugins: tuple[Path, ...] = ()

    @classmethod
    def find(cls, *, heap_mb: int, log_level: str, plugins: tuple[Path, ...] = ()) -> Self:
        """With the Java of this machine, and jars that are downloaded if need be."""
        java = find_java()
        return cls(java, ensure_jars(java), heap_mb, log_level, plugins)

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """The command that runs `main_class`, given with its package."""
        # The jars by name, not ``*``: nothing that was put into the folder later is ever run.
        jars = [self.jars / name for name in expected_jars()]
        return [
            str(self.java.path),
            *_OPTIONS,
            # Room for new objects from the start: growing it bit by bit cost a broker 1 s of pauses a minute.
            *(f"-Xmn{self.heap_mb // 6}m", f"-Xms{self.heap_mb // 3}m", f"-Xmx{self.heap_mb}m"),
            f"-Dkpsplit.log.level={self.log_level}",
            *("-cp", os.pathsep.join(map(str, (*jars, *self.plugins)))),
            main_class,
            *arguments,
        ]
