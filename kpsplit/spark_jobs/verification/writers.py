"""What is known of a producer from the producers topic, per logical partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.producers import Certificate
from kpsplit.splitter.records.stamp import instance_name


@dataclass(frozen=True, slots=True)
class Writer:
    """One producer in one logical partition; ``certificate`` None: it has not closed, or died."""

    parent: PhysicalPartition
    producer: str
    certificate: Certificate | None = None
    failed: frozenset[int] = field(default_factory=frozenset)


class Writers:
    """All producers of a snapshot, also such as the producers topic does not know."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._parents = {state.parent.partition: state.parent for state in snapshot.states}
        self._known: dict[tuple[int, str], Writer] = {}
        for record in snapshot.producers:
            name = instance_name(record.instance)
            for number, parent in self._parents.items():
                certificate = record.certificates.get(str(parent)) if record.closed else None
                if certificate is not None:
                    failed = frozenset(certificate.failed)
                    self._known[number, name] = Writer(parent, name, certificate, failed)

    def get(self, partition: int, producer: str) -> Writer:
        """Return a producer, without a certificate if none is known."""
        return self._known.get((partition, producer)) or Writer(self._parents[partition], producer)

    def certified(self) -> dict[tuple[int, str], Writer]:
        """Return those that left a certificate, by partition and producer."""
        return dict(self._known)
