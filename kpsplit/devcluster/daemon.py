"""The process that owns a cluster in the background: `python -m kpsplit.devcluster.daemon`.

It starts the cluster, writes the file that describes it, and waits for SIGTERM or SIGINT. The brokers end
with it, as they end with any process that uses `DevCluster`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.jars import cache_folder
from kpsplit.devcluster.storage import locked
from kpsplit.errors import EXIT_CONFLICT, ConflictError, KpsplitError
from kpsplit.files import write_whole

_AFTER_NAME = 19  # index of the start time among the fields of /proc/PID/stat that follow the name


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for as long as it lives. ``started`` is compared only: its form is the system's own."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        started = _started(pid)
        return cls(pid, started) if started else None

    @property
    def alive(self) -> bool:
        return _started(self.pid) == self.started


def _started(pid: int) -> str | None:
    """Start time of a process that runs; None for one that does not exist or has ended unreaped."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name in parentheses may hold blanks
        return None if fields[0] in "ZX" else fields[_AFTER_NAME]
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


@dataclass(frozen=True, slots=True)
class RunningBroker:
    id: int
    port: int
    process: ProcessIdentity
    log: str


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster in the background: it ends with its ``owner``; ``data`` is None for temporary data."""

    bootstrap: str
    owner: ProcessIdentity
    brokers: tuple[RunningBroker, ...]
    data: str | None

    @classmethod
    def of(cls, cluster: DevCluster, owner: ProcessIdentity, data: Path | None) -> RunningCluster:
        """Describe a cluster that was just started. Raises KpsplitError: a broker has ended already."""
        brokers = []
        for broker in cluster.brokers:
            process = ProcessIdentity.of(broker.pid) if broker.pid else None
            if process is None:
                raise KpsplitError(f"broker {broker.id} ended right after the start:\n{broker.tail()}")
            brokers.append(RunningBroker(broker.id, broker.port, process, str(broker.log)))
        return cls(cluster.bootstrap, owner, tuple(brokers), str(data) if data else None)

    @classmethod
    def load(cls, folder: Path) -> RunningCluster | None:
        """The cluster that runs according to the file in `folder`; None if there is none any more."""
        try:
            saved = json.loads(state_file(folder).read_text())
            owner = ProcessIdentity(**saved["owner"])
            brokers = tuple(
                RunningBroker(b["id"], b["port"], ProcessIdentity(**b["process"]), b["log"])
                for b in saved["brokers"]
            )
            found = cls(saved["bootstrap"], owner, brokers, saved["data"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return found if owner.alive else None

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(state_file(folder), f"{json.dumps(asdict(self), indent=2)}\n".encode())

    @property
    def ended(self) -> bool:
        """Whether nothing of the cluster runs any more."""
        return not self.owner.alive and not any(broker.process.alive for broker in self.brokers)


def state_file(folder: Path) -> Path:
    return folder / "running.json"


def run_folder(data: Path | None) -> Path:
    """Where a cluster's file is: in its data folder, or in the cache folder if it has none."""
    return (data or cache_folder() / "cluster").resolve()


_LOOK = 1.0  # seconds between looks at whether any broker is left
_POLL = 0.05  # seconds between looks at another process
_KILL_AFTER = 30.0  # seconds for an orderly end
_GRACE = 10.0  # seconds after the limit in which the process itself says what was not ready


def serve(
    brokers: int, data: Path | None, timeout: float, announce: Callable[[RunningCluster], None]
) -> None:
    """Run a cluster in this process until SIGTERM or SIGINT; it must be ready after ``timeout`` seconds."""
    folder = run_folder(data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    starting = ConflictError(
        "an embedded cluster is running or starting", hint="see `kpsplit cluster status`"
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = DevCluster(brokers, data)
    with locked(folder / "running.lock", starting), ExitStack() as stack:
        cluster.start(timeout)
        stack.callback(cluster.stop)
        owner = ProcessIdentity.of(os.getpid())
        assert owner is not None  # for the type checker: this process runs
        running = RunningCluster.of(cluster, owner, data)
        running.save(folder)
        try:
            announce(running)
            _wait(cluster)
        except KeyboardInterrupt:
            pass
        finally:
            state_file(folder).unlink(missing_ok=True)


def _wait(cluster: DevCluster) -> None:
    forever = threading.Event()
    while any(broker.alive for broker in cluster.brokers):
        forever.wait(_LOOK)
    raise KpsplitError("all brokers of the embedded cluster have ended", hint="see their logs")


def start_detached(brokers: int, data: Path | None, timeout: float) -> RunningCluster:
    """Start a cluster that outlives this process, and return when it is ready. Raises as ``serve``."""
    folder = run_folder(data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "daemon.log"
    command = [
        sys.executable,
        "-m",
        "kpsplit.devcluster.daemon",
        f"--brokers={brokers}",
        f"--timeout={timeout}",
    ]
    command += [f"--data={data.resolve()}"] if data else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return _await_ready(process, folder, log, Deadline(timeout + _GRACE))
    except BaseException:
        process.terminate()
        raise


def _await_ready(
    process: subprocess.Popen[bytes], folder: Path, log: Path, deadline: Deadline
) -> RunningCluster:
    while True:
        running = RunningCluster.load(folder)
        if running is not None and running.owner.pid == process.pid:
            return running
        if (code := process.poll()) is not None:
            kind = ConflictError if code == EXIT_CONFLICT else KpsplitError
            raise kind(log.read_text().strip() or f"the cluster ended with exit code {code}")
        deadline.check("the embedded cluster to start", hint=f"see {log}")
        deadline.pause(_POLL)


def stop_detached(running: RunningCluster) -> None:
    """End a cluster in the background, and return when nothing of it runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if running.owner.alive:  # never signal a process that merely has the same number
            os.kill(running.owner.pid, number)
        deadline = Deadline(_KILL_AFTER)
        while not running.ended and not deadline.expired():
            deadline.pause(_POLL)
    if not running.ended:
        raise KpsplitError("the embedded cluster did not end", hint="see `kpsplit cluster status`")


def main() -> int:
    """Serve with the arguments of the command line; errors are one line on stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    try:
        serve(arguments.brokers, arguments.data, arguments.timeout, announce=lambda running: None)
    except KpsplitError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
