"""What is known of a producer from the producers topic, per logical partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.counted import Who
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.producers import Certificate
from kpsplit.splitter.records.stamp import instance_name


@dataclass(frozen=True, slots=True)
class Writer:
    """One producer in one logical partition; ``certificate`` None: it has not closed, or died.

    ``transactional``: numbers of its may belong to aborted transactions; also where nothing is known of it.
    """

    parent: PhysicalPartition
    producer: str
    certificate: Certificate | None = None
    failed: frozenset[int] = field(default_factory=frozenset)
    transactional: bool = True


class Writers:
    """All producers of a snapshot, also such as the producers topic does not know.

    Attributes:
        open: the names of those that registered for the topic and have not closed, with a partition to tell
            it of.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._parents = {state.parent.partition: state.parent for state in snapshot.states}
        ids = {state.parent.partition: state.topic_id for state in snapshot.states}
        self._known: dict[Who, Writer] = {}
        self.open: dict[str, PhysicalPartition] = {}
        for record in snapshot.producers:
            name = instance_name(record.instance)
            if not record.closed and snapshot.topic in record.topics:
                self.open[name] = next(iter(self._parents.values()))
            for number, parent in self._parents.items():
                certificate = record.certificates.get(str(parent)) if record.closed else None
                if certificate and certificate.topic_id not in (None, ids[number]):
                    certificate = None  # it speaks of a topic of this name that was deleted
                failed = frozenset(certificate.failed if certificate else ())
                transactional = record.transactional_id is not None
                self._known[number, name] = Writer(parent, name, certificate, failed, transactional)

    @property
    def partitions(self) -> frozenset[int]:
        """The logical partitions that are looked at."""
        return frozenset(self._parents)

    def get(self, partition: int, producer: str) -> Writer:
        """Return a producer, without a certificate if none is known."""
        return self._known.get((partition, producer)) or Writer(self._parents[partition], producer)

    def certified(self) -> dict[Who, Writer]:
        """Return those that left a certificate, by partition and producer."""
        return {who: writer for who, writer in self._known.items() if writer.certificate is not None}
