"""Gathers what ``group_progress`` needs: who owns what, what is committed, where the logs end."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import IsolationLevel

from kpsplit.control.group_progress import Basis, PartitionProgress, progress_of
from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.groups import describe_members, owners, positions_of, range_commits
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.ports import Deadline


def group_progress(
    connection: Connection,
    admin: ClusterAdmin,
    read_view: Callable[[], ControlView],
    group: str,
    topic: str,
    partition: int | None,
    deadline: Deadline,
) -> list[PartitionProgress]:
    """Return how far a group has come in a topic's partitions, or in one of them.

    Raises:
        UsageError: there is no such topic or partition, or the group has neither commits nor members there.
        KpsplitError: the cluster could not be asked.
    """
    parents = _partitions(admin, topic, partition)
    fold = range_commits(connection, admin, parents, deadline, group)
    ordinary = positions_of(admin, group)
    members = describe_members(admin, group)
    view = read_view()  # after the commits, so that it knows every segment that they list
    states = [view.state(p) or PartitionState.unsplit(p, "") for p in parents]
    sources = {source for state in states for source in state.lineage.sources()}
    ends = admin.end_offsets(sources, IsolationLevel.READ_COMMITTED)
    stable = {place: end.offset for place, end in ends.items()}
    enrolment = view.enrolments.get(topic)
    found = [
        progress_of(s, group, fold, ordinary, owners(members, s.parent, enrolment), stable) for s in states
    ]
    if not any(r.owner or r.basis is not Basis.NOTHING for p in found for r in p.ranges):
        raise UsageError(
            f"group {group} has committed nothing in {topic}, and has no members there",
            hint="check the name of the group",
        )
    return found


def _partitions(admin: ClusterAdmin, topic: str, partition: int | None) -> list[PhysicalPartition]:
    count = admin.topics().get(topic)
    if count is None:
        raise UsageError(f"there is no topic {topic}", hint="check the name and the right to describe it")
    if partition is not None and partition >= count:
        raise no_partition(PhysicalPartition(topic, partition), count)
    return [PhysicalPartition(topic, p) for p in (range(count) if partition is None else (partition,))]
