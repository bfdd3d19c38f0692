"""The embedded cluster as a library.

with DevCluster(brokers=3) as cluster:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.kill(0)
    cluster.restart(0)
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.clock import Deadline
from kpsplit.devcluster import storage
from kpsplit.devcluster.process import START_SECONDS, KafkaRuntime, ManagedProcess, SupervisorClient
from kpsplit.devcluster.storage import HOST, ClusterIdentity, NodeAddress, PortReservation
from kpsplit.errors import ConflictError, DeadlineExceededError, KpsplitError, UsageError

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
        supervisor: SupervisorClient,
        before_start: Callable[[NodeAddress], None],
        when_started: Callable[[Broker, Deadline], None],
    ) -> None:
        self.address = address
        self.id = address.id
        self.port = address.port
        self.log = log
        self._command = command
        self._supervisor = supervisor
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
            self._process = ManagedProcess(self._supervisor, str(self.id), self._command, self.log)

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


_POLL = 0.05  # seconds between attempts to connect
_ASK = 2.0  # seconds for one answer

ConfigValue = str | int | float | bool

_QUIET: Mapping[str, ConfigValue] = {
    "log_level": 0,  # refused connections are what is expected here
    "log.connection.close": False,
    "socket.connection.setup.timeout.ms": 2000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
}


def _listens(node: NodeAddress) -> bool:
    try:
        socket.create_connection((HOST, node.port), timeout=1.0).close()
    except OSError:
        return False
    return True


_BY_ADDRESS = -1
"""The broker that a client was told of, as it is called until it has said who it is."""


def _lists(
    node: NodeAddress, expected: Collection[int], client_config: Mapping[str, ConfigValue], deadline: Deadline
) -> bool:
    # A new client each time: one that has learnt of other brokers may ask those, even at once.
    admin = AdminClient({**_QUIET, **client_config, "bootstrap.servers": node.client_address})
    try:
        metadata = admin.list_topics(timeout=max(0.1, min(_ASK, deadline.left())))
    except KafkaException:
        return False
    return metadata.orig_broker_id in (node.id, _BY_ADDRESS) and set(expected) <= set(metadata.brokers)


_ATTEMPTS = 3  # sets of ports that are tried where ports cannot be kept reserved
_PORT_TAKEN = "Address already in use"
_STOP_GRACE = 10.0  # seconds for brokers with data to keep to stop by themselves


class DevCluster:
    """Real Kafka on loopback, KRaft, each node broker and controller at once.

    Not for concurrent `start` and `stop`; everything else may be called from any thread of this process.

    Args:
        brokers: how many; node ids are 0, 1, …
        data_dir: a folder that is kept, and found again with the same cluster id, ports and data by a later
            start; a temporary one that is removed at the end when not given.
        extra_properties: `server.properties` of every node, over those of `storage.node_properties`.
        client_config: how the readiness check connects, when `extra_properties` ask for TLS or SASL.
        log_level: of the brokers' logs: ERROR, WARN, INFO, DEBUG.
        heap_mb: greatest heap of each node, in MiB.
        plugins: jars, or folders of classes, with assignors, authorizers and the like of one's own.
    """

    def __init__(
        self,
        brokers: int = 3,
        data_dir: str | os.PathLike[str] | None = None,
        extra_properties: Mapping[str, str] | None = None,
        *,
        client_config: Mapping[str, ConfigValue] | None = None,
        log_level: str = "INFO",
        heap_mb: int = 384,
        plugins: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        if brokers < 1:
            raise UsageError(f"an embedded cluster has at least 1 broker, not {brokers}")
        self.brokers: list[Broker] = []
        self._count = brokers
        self._data_dir = Path(data_dir).resolve() if data_dir is not None else None
        self._extra = dict(extra_properties or {})
        self._client_config = dict(client_config or {})
        self._log_level = log_level
        self._heap_mb = heap_mb
        self._plugins = tuple(Path(plugin).resolve() for plugin in plugins)
        self._resources = ExitStack()
        self._supervisor: SupervisorClient | None = None

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` with all brokers, running or not."""
        return storage.bootstrap([broker.address for broker in self.brokers])

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor; None if the cluster is not started."""
        return self._supervisor.pid if self._supervisor else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start all brokers and return when each serves metadata that lists all.

        Args:
            timeout: seconds, not counting a first download of Kafka's jars.

        Raises:
            ConflictError: the data folder is in use, or a port that it remembers.
            DeadlineExceededError: not ready in time.
            KpsplitError: no Java or no jars, or a broker ended; the message has the end of its log.
        """
        if self._supervisor is not None:
            raise KpsplitError("this embedded cluster is started already")
        try:
            self._start(timeout)
        except BaseException:
            self._release()
            raise

    def stop(self) -> None:
        """End everything. A kept data folder is left in order, a temporary one is removed."""
        if self._supervisor is not None and self._data_dir is not None:
            self._stop_in_order()
        self._release()

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Return when each running, unpaused broker lists all of these."""
        self._wait_ready([b for b in self.brokers if b.alive and not b.paused], Deadline(timeout))

    def kill(self, broker: int) -> None:
        """SIGKILL for a broker; returns when it is gone."""
        self.brokers[broker].kill()

    def pause(self, broker: int) -> None:
        """SIGSTOP for a broker."""
        self.brokers[broker].pause()

    def resume(self, broker: int) -> None:
        """SIGCONT for a broker."""
        self.brokers[broker].resume()

    def restart(self, broker: int, timeout: float = 60.0) -> None:
        """Kill a broker if it runs, start it again, and wait until it is ready."""
        self.brokers[broker].restart(timeout)

    def _start(self, timeout: float) -> None:
        kafka = KafkaRuntime.find(heap_mb=self._heap_mb, log_level=self._log_level, plugins=self._plugins)
        deadline = Deadline(timeout)
        folder = self._data_dir or self._temporary_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = ConflictError(
            f"an embedded cluster is running on {folder}",
            hint="stop it (`kpsplit cluster down`) or choose another folder",
        )
        lock = self._resources.enter_context(storage.locked(folder / "cluster.lock", taken))
        supervisor = SupervisorClient(temporary=None if self._data_dir else folder, inherited=[lock])
        self._resources.callback(supervisor.close)
        self._supervisor = supervisor
        for attempt in range(1, _ATTEMPTS + 1):
            ports = self._resources.enter_context(PortReservation())
            identity = self._identity(folder, ports)
            storage.write_configuration(folder, identity, self._extra)
            storage.format_storage(folder, identity, kafka, supervisor, deadline)
            self.brokers = [
                Broker(
                    address,
                    kafka.command("kafka.Kafka", str(storage.configuration(folder, address.id))),
                    storage.node_folder(folder, address.id) / "broker.log",
                    supervisor,
                    before_start=ports.before_start,
                    when_started=lambda broker, deadline: self._wait_ready([broker], deadline),
                )
                for address in identity.nodes
            ]
            if self._came_up(deadline, last=attempt == _ATTEMPTS):
                identity.save(folder)
                return

    def _temporary_folder(self) -> Path:
        """A folder that is removed at the end: by the supervisor, and here in case somebody killed it."""
        folder = Path(tempfile.mkdtemp(prefix="kpsplit-"))
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _identity(self, folder: Path, ports: PortReservation) -> ClusterIdentity:
        """What `folder` remembers, or a new cluster on ports that are free; the ports are reserved."""
        saved = ClusterIdentity.load(folder)
        if saved is None:
            addresses = (NodeAddress(i, ports.any_free(), ports.any_free()) for i in range(self._count))
            return ClusterIdentity(storage.formatted_as(folder) or storage.new_id(), tuple(addresses))
        if len(saved.nodes) != self._count:
            raise UsageError(
                f"{folder} holds a cluster of {len(saved.nodes)} brokers, not {self._count}",
                hint=f"ask for {len(saved.nodes)} brokers, or choose another folder",
            )
        for node in saved.nodes:
            ports.exactly(node.port)
            ports.exactly(node.controller_port)
        return saved

    def _came_up(self, deadline: Deadline, *, last: bool) -> bool:
        """Launch all brokers and wait; False if a port was taken and it is worth trying others."""
        for broker in self.brokers:
            broker.launch()
        try:
            self._wait_ready(self.brokers, deadline)
        except KpsplitError:
            if last or not any(_PORT_TAKEN in broker.tail(200) for broker in self.brokers):
                raise
            for broker in self.brokers:
                broker.kill()
            return False
        return True

    def _wait_ready(self, asked: Sequence[Broker], deadline: Deadline) -> None:
        """Return when each broker of `asked` serves metadata that lists all that run."""
        running = [broker.id for broker in self.brokers if broker.alive and not broker.paused]
        expected = {*running, *(broker.id for broker in asked)}
        try:
            for broker in asked:
                node = broker.address
                while not (_listens(node) and _lists(node, expected, self._client_config, deadline)):
                    for each in asked:
                        each.check_alive()
                    deadline.check(
                        f"broker {node.id} of the embedded cluster to list brokers {sorted(expected)}"
                    )
                    deadline.pause(_POLL)
        except DeadlineExceededError as error:
            logs = "\n".join(f"broker {broker.id}:\n{broker.tail(8)}" for broker in asked)
            raise DeadlineExceededError(f"{error.message}; the logs end:\n{logs}") from error

    def _stop_in_order(self) -> None:
        """SIGTERM for all at once: one after the other, the last would wait for a quorum in vain."""
        for broker in self.brokers:
            if not broker.paused:
                broker.ask_to_stop()
        deadline = Deadline(_STOP_GRACE)
        for broker in self.brokers:
            broker.stop(deadline.left())

    def _release(self) -> None:
        """End the supervisor, and with it the brokers; give up ports and the lock."""
        self._supervisor = None
        self._resources.close()
