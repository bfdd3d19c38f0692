"""The small tables as rows: lineage, range commits, certificates. Pure; see ``data_source``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql.types import StructType

from kpsplit.spark_jobs.schemas import CERTIFICATES, COMMITS, LINEAGE
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.records.keys import parse_partition
from kpsplit.splitter.records.offsets import RangeCommit
from kpsplit.splitter.records.stamp import instance_name

Rows = Iterator[tuple[object, ...]]


def lineage_rows(snapshot: Snapshot) -> Rows:
    """Return one row per segment (``schemas.LINEAGE``)."""
    for state in snapshot.states:
        for s in state.lineage:
            yield (
                *(state.parent.topic, state.parent.partition, s.id, str(s.kind), s.range.lo, s.range.hi),
                *(s.source.topic, s.source.partition, s.start, s.end),
                *(s.progression.base, s.progression.stride, list(s.predecessors)),
                *(s.opened_epoch, s.closed_epoch),
            )


def commit_rows(snapshot: Snapshot) -> Rows:
    """Return one row per range commit and segment that it lists (``schemas.COMMITS``)."""
    for logged in snapshot.commits:
        commit = logged.commit
        if not isinstance(commit, RangeCommit):  # withdrawn, or of a newer version
            continue
        for segment, position in sorted(commit.positions.items()):
            yield (
                *(
                    commit.group,
                    commit.parent.topic,
                    commit.parent.partition,
                    commit.range.lo,
                    commit.range.hi,
                ),
                *(segment, position.next, position.leader_epoch, commit.member, commit.generation),
                *(str(commit.cause), logged.log_partition, logged.log_offset),
            )


def certificate_rows(snapshot: Snapshot) -> Rows:
    """Return one row per certificate and segment that it counts (``schemas.CERTIFICATES``)."""
    wanted = {str(state.parent) for state in snapshot.states}
    for record in snapshot.producers:
        for name, certificate in sorted(record.certificates.items()):
            if name not in wanted:
                continue
            place = parse_partition(name)
            head = (
                instance_name(record.instance),
                record.client_id,
                record.closed,
                place.topic,
                place.partition,
            )
            counted: list[tuple[int | None, int]] = [(int(s), n) for s, n in certificate.delivered.items()]
            for segment, delivered in counted or [(None, 0)]:
                yield (*head, certificate.next_sequence, segment, delivered, list(certificate.failed))


TABLES: dict[str, tuple[StructType, Callable[[Snapshot], Rows]]] = {
    "lineage": (LINEAGE, lineage_rows),
    "commits": (COMMITS, commit_rows),
    "certificates": (CERTIFICATES, certificate_rows),
}
"""The tables of the data source by name: schema and rows."""
