"""The small process between a program and its brokers, which ends the brokers when the program ends.

    program ──pipe──▶ supervisor ──▶ JVM, JVM, JVM

The brokers must not outlive the program, even if it is killed by SIGKILL and can do nothing any more:

* The program says so, or ends, however: the pipe on the supervisor's stdin closes, or its parent changes
  (a forked copy of the program may hold the pipe open). The supervisor kills the brokers, also paused ones.
* The supervisor itself is killed: on Linux the kernel kills each broker, by PR_SET_PDEATHSIG.
* Ctrl-C in the program's terminal: nothing, until the program decides. The supervisor has its own session.

Requests are lines of JSON on stdin, each answered by a line on stdout:

    {"op": "start", "id": "0", "command": [...], "log": PATH}   → {"pid": N}
    {"op": "signal", "id": "0", "signal": N}                    → {"sent": true}, false if it has ended
    {"op": "status"}                                            → {"ended": {"0": null, "1": -9}}
    {"op": "end"}                                               → {} once no broker is left

The supervisor is the parent of the brokers, so a signal through it never hits a process that merely got the
same number later. It runs in one thread, on the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK = 0.5  # seconds between looks at who the parent is
_CHUNK = 65536  # bytes read at once
_STOP_SECONDS = 30.0  # for a process to stop, however busy the machine is
_STOP_POLL = 0.001  # seconds between looks at whether it has

Reply = dict[str, Any]


class Supervisor:
    """Starts processes, signals them, knows how they ended, and kills what is left."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._preexec = _die_with_parent()

    def handle(self, request: dict[str, Any]) -> Reply:
        """Answer one request; an error is an answer too."""
        operations: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "start": self._start,
            "signal": self._signal,
            "status": self._status,
            "end": self._end,
        }
        try:
            return operations[request["op"]](request)
        except (KeyError, OSError, subprocess.SubprocessError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def kill_all(self) -> None:
        """Kill what still runs, and wait for the end of it. SIGKILL ends stopped processes too."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()

    def _start(self, request: dict[str, Any]) -> Reply:
        with open(request["log"], "ab") as log:
            # preexec_fn is unsafe where there are threads; there are none here.
            child = subprocess.Popen(
                request["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self._preexec,  # noqa: PLW1509
            )
        self._children[request["id"]] = child
        return {"pid": child.pid}

    def _signal(self, request: dict[str, Any]) -> Reply:
        child = self._children[request["id"]]
        running = child.poll() is None
        if running:
            child.send_signal(request["signal"])
        if running and request["signal"] == signal.SIGSTOP:
            _await_stopped(child.pid)
        return {"sent": running}

    def _status(self, request: dict[str, Any]) -> Reply:
        return {"ended": {name: child.poll() for name, child in self._children.items()}}

    def _end(self, request: dict[str, Any]) -> Reply:
        self.kill_all()
        return {}


def _await_stopped(pid: int) -> None:
    """Return once a child that got SIGSTOP has stopped (or ended): until then some of its threads run."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return
    until = time.monotonic() + _STOP_SECONDS
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} did not stop within {_STOP_SECONDS:g} s of SIGSTOP")
        time.sleep(_STOP_POLL)


def _die_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes a broker, so that the kernel kills it with the supervisor."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    supervisor = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the call above
            os._exit(1)

    return prepare


def _requests(parent: int) -> Iterator[dict[str, Any]]:
    """Requests from stdin, until the parent closes it or is gone."""
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], _PARENT_CHECK)[0]:
            continue
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


def main(arguments: list[str]) -> None:
    """Serve until the parent (its process id) is gone; then kill the brokers and remove the folders."""
    parent, *temporary = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    supervisor = Supervisor()
    try:
        for request in _requests(int(parent)):
            os.write(1, json.dumps(supervisor.handle(request)).encode() + b"\n")
            if request.get("op") == "end":
                break
    except BrokenPipeError:
        pass  # the parent ended before it read the answer
    finally:
        supervisor.kill_all()
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
