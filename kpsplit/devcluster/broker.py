"""One broker of the embedded cluster, and what a test may do to it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from kpsplit.devcluster.config import NodeAddress
from kpsplit.devcluster.process import KeeperClient, ManagedProcess
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline

_GRACE = 10.0  # seconds for a broker to stop by itself
_TAIL = 25  # lines of a log that are shown in an error


class Broker:
    """A node of the cluster: broker and controller in one JVM.

    Attributes:
        id: Kafka's `node.id`, and the index in `DevCluster.brokers`.
        port: for clients, on loopback.
        log: the file with what the JVM wrote, over all its lives.
    """

    def __init__(
        self,
        address: NodeAddress,
        command: Sequence[str],
        log: Path,
        keeper: KeeperClient,
        before_start: Callable[[NodeAddress], None],
        when_started: Callable[[Broker, Deadline], None],
    ) -> None:
        self.address = address
        self.id = address.id
        self.port = address.port
        self.log = log
        self._command = command
        self._keeper = keeper
        self._before_start = before_start
        self._when_started = when_started
        self._process: ManagedProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the JVM; None if it does not run."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """Whether the JVM exists, paused or not."""
        return self._process is not None and self._process.exit_code is None

    @property
    def paused(self) -> bool:
        """Whether the JVM exists and is suspended."""
        return self._process is not None and self._process.paused and self.alive

    def launch(self) -> None:
        """Start the JVM and return at once. Nothing happens if it runs."""
        if not self.alive:
            self._before_start(self.address)
            self._process = ManagedProcess(self._keeper, str(self.id), self._command, self.log)

    def kill(self) -> None:
        """SIGKILL: the broker has no time for anything. Returns when it is gone."""
        if self._process is not None:
            self._process.kill()

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting; nothing for a broker that does not run."""
        if self._process is not None:
            self._process.send(signal.SIGTERM)

    def stop(self, grace: float = _GRACE) -> None:
        """SIGTERM: the broker hands over its leaderships; SIGKILL after `grace` seconds."""
        if self._process is not None:
            self._process.terminate(grace)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers.

        Raises:
            KpsplitError: the broker does not run.
        """
        self._send(signal.SIGSTOP, "paused")

    def resume(self) -> None:
        """SIGCONT: the broker goes on where it was.

        Raises:
            KpsplitError: the broker does not run.
        """
        self._send(signal.SIGCONT, "resumed")

    def restart(self, timeout: float = 60.0, *, wait: bool = True) -> None:
        """Start the broker again, killing it first if it runs.

        Args:
            timeout: seconds until it must be ready.
            wait: False returns without waiting, for a cluster that has no quorum yet.

        Raises:
            DeadlineExceededError: not ready in time.
            KpsplitError: the JVM ended; the message has the end of its log.
        """
        deadline = Deadline(timeout)
        self.kill()
        self.launch()
        if wait:
            self._when_started(self, deadline)

    def tail(self, lines: int = _TAIL) -> str:
        """The last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def check_alive(self) -> None:
        """Raise KpsplitError, with the end of the log, if the JVM has ended."""
        if not self.alive:
            code = self._process.exit_code if self._process else None
            raise KpsplitError(f"broker {self.id} ended (exit code {code}); its log ends:\n{self.tail()}\n")

    def _send(self, number: signal.Signals, verb: str) -> None:
        if self._process is None or not self._process.send(number):
            raise KpsplitError(f"broker {self.id} does not run and cannot be {verb}")
