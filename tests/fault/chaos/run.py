"""A run: a cluster of its own, a network before it, an enrolled topic, and the processes of a scenario."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kpsplit.admin import Admin
from kpsplit.clock import Deadline, monotonic
from kpsplit.demo.endpoints import keep_folder
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.storage import PortReservation
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.records.control import Partitioner
from tests.fault.chaos.brokers import Brokers
from tests.fault.chaos.inflict import REPLICAS, Inflictor
from tests.fault.chaos.processes import Job, Processes
from tests.fault.chaos.proxy import Network, add_listener
from tests.fault.chaos.retention import Retention
from tests.fault.chaos.scenario import Options, Scenario, say
from tests.fault.chaos.strangers import Strangers
from tests.fault.chaos.verdict import Operation, Strike, Verdict, rendered

TOPIC = "chaos"
PARTITIONS = 3
SLOTS = 4
LEASE_MS = 2000
GROUP = "chaos-workers"
SERVED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run amounts to."""

    verdict: Verdict
    strikes: list[Strike]
    operations: list[Operation]
    seconds: float
    aims: str | None = None
    """What a long run had to come to, and what it came to."""

    def report(self) -> str:
        """Return the table of what was done, in Markdown, and what operations and the group came to."""
        endings = Counter(f"{o.verb} {o.ending}" for o in self.operations)
        ends = ", ".join(f"{number} {what}" for what, number in sorted(endings.items()))
        aims = "" if self.aims is None else f"{self.aims}\n"
        return (
            f"{rendered(self.strikes)}\noperations: {ends}\ngroup: {self.verdict.group}\n{aims}{self.verdict}"
        )


def run(options: Options) -> Outcome:
    """Run.

    Raises:
        KpsplitError: the cluster did not recover, or could not be read back.
    """
    began = monotonic()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="kpsplit-chaos-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        network = stack.enter_context(Network())
        ports = stack.enter_context(PortReservation())
        cluster = stack.enter_context(DevCluster(brokers=REPLICAS, data_dir=folder / "cluster"))
        proxied = add_listener(cluster, folder / "cluster", ports, network)
        connection = Connection({"bootstrap.servers": cluster.bootstrap})
        _prepare(connection)
        job = Job(
            direct=cluster.bootstrap,
            proxied=proxied,
            topic=TOPIC,
            partitions=PARTITIONS,
            group=GROUP,
            folder=folder,
            seed=options.seed,
            rate=options.rate,
        )
        processes = stack.enter_context(Processes(job))
        retention = Retention(connection, GROUP, TOPIC)
        brokers = Brokers(cluster.bootstrap)
        strangers = Strangers(connection, TOPIC)
        inflictor = Inflictor(cluster, brokers, network, processes, retention, strangers, options.seed)
        scenario = Scenario(options, connection, processes, inflictor, retention.archive)
        verdict = scenario.run()
        if verdict.harmed:
            say(f"journals and logs are kept in {keep_folder(folder, 'kpsplit-chaos-failed-')}")
        return Outcome(verdict, inflictor.strikes, processes.operations, monotonic() - began, scenario.aims())


def _prepare(connection: Connection) -> None:
    admin = ClusterAdmin(connection)
    admin.create(TOPIC, {}, partitions=PARTITIONS, replication=REPLICAS)
    await_served(admin, {TOPIC: PARTITIONS}, Deadline(SERVED_SECONDS))
    with Admin(connection, SERVED_SECONDS) as operations:
        operations.initialise(lease_ms=LEASE_MS)
        operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
