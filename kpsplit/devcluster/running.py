"""The file that says which cluster runs in the background, for `kpsplit cluster status` and `down`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kpsplit.devcluster.cache import cache_folder
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.identity import ProcessIdentity
from kpsplit.errors import KpsplitError


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker as it was started.

    Attributes:
        id: Kafka's `node.id`.
        port: for clients, on loopback.
        process: its JVM.
        log: the file with its log.
    """

    id: int
    port: int
    process: ProcessIdentity
    log: str


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster in the background.

    Attributes:
        bootstrap: `bootstrap.servers`.
        owner: the process that ends the cluster when it ends.
        brokers: in the order of their ids.
        data: the data folder; None if it is a temporary one.
    """

    bootstrap: str
    owner: ProcessIdentity
    brokers: tuple[RunningBroker, ...]
    data: str | None

    @classmethod
    def of(cls, cluster: DevCluster, owner: ProcessIdentity, data: Path | None) -> RunningCluster:
        """Describe a cluster that was just started.

        Raises:
            KpsplitError: a broker has ended already.
        """
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
        new = state_file(folder).with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=2) + "\n")
        new.replace(state_file(folder))

    @property
    def ended(self) -> bool:
        """Whether nothing of the cluster runs any more."""
        return not self.owner.alive and not any(broker.process.alive for broker in self.brokers)


def state_file(folder: Path) -> Path:
    """The file in `folder`."""
    return folder / "running.json"


def run_folder(data: Path | None) -> Path:
    """Where a cluster's file is: in its data folder, or in the cache folder if it has none; created."""
    folder = data if data is not None else cache_folder() / "cluster"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()
