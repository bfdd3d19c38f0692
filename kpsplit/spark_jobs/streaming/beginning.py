"""Where a new query begins."""

from __future__ import annotations

from collections.abc import Mapping

from kpsplit.control.seeking import Target, Whence, cursor_at
from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.spark_jobs.offsets import Bound, timestamp_ms
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.streaming.offset import Standing, Standings
from kpsplit.spark_jobs.streaming.query import Settings
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState


def beginning(connection: Connection, settings: Settings, start: Bound) -> Standings:
    """Return where each logical partition begins: on every key's path at or behind ``start``.

    Records that are gone already count as read for ``earliest``; with a logical offset they are still to be
    read, so that their loss is noticed.

    Raises:
        UsageError: the topic, a partition or the start is wrong.
        DeadlineExceededError: an operation under way did not come to its end in time.
        KpsplitError: the cluster cannot be read.
    """
    at = timestamp_ms(start)
    snapshot = Gatherer(connection, settings.topic, settings.partitions, settings.patience).snapshot()
    logical = start if isinstance(start, Mapping) else {}
    if unknown := sorted(set(logical) - {s.parent.partition for s in snapshot.states}):
        raise UsageError(f"an offset is given for partition {unknown[0]}, which is not read")
    young = {} if at is None else ClusterAdmin(connection).offsets_at(snapshot.bounds, at)
    return {
        s.parent.partition: _standing(snapshot, s, _target(start, at, s.parent.partition), young)
        for s in snapshot.states
    }


def _target(start: Bound, at: int | None, partition: int) -> Target:
    if at is not None:
        return Target(Whence.TIMESTAMP, at)
    if isinstance(start, Mapping):
        named = partition in start
        return Target(Whence.OFFSET, start[partition]) if named else Target(Whence.EARLIEST)
    return Target(Whence.LATEST if start == "latest" else Whence.EARLIEST)


def _standing(
    snapshot: Snapshot, state: PartitionState, target: Target, young: Mapping[PhysicalPartition, int]
) -> Standing:
    starts = {source: bounds.low for source, bounds in snapshot.bounds.items()}
    if target.whence is Whence.OFFSET:
        starts = dict.fromkeys(state.lineage.sources(), 0)
    ends = {source: bounds.stable for source, bounds in snapshot.bounds.items()}
    return Standing(state.epoch, cursor_at(state, WHOLE, target, starts, ends, young))
