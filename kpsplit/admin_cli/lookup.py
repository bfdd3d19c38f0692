"""Finds topics and partitions, and says clearly what is wrong with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

if TYPE_CHECKING:
    from kpsplit.admin import Admin
    from kpsplit.kafka.connection import Connection


def partition_count(connection: Connection, topic: str) -> int:
    """Return how many partitions a topic has.

    Raises:
        UsageError: there is no such topic.
    """
    from kpsplit.kafka.cluster_admin import ClusterAdmin

    return ClusterAdmin(connection).partition_count(topic)


def check_partition(connection: Connection, parent: PhysicalPartition) -> None:
    """Do nothing if the partition exists.

    Raises:
        UsageError: there is no such topic or partition.
    """
    from kpsplit.kafka.cluster_admin import no_partition

    count = partition_count(connection, parent.topic)
    if parent.partition >= count:
        raise no_partition(parent, count)


def find_state(operations: Admin, connection: Connection, parent: PhysicalPartition) -> PartitionState:
    """Return the present state of a logical partition.

    Raises:
        UsageError: unknown topic, partition out of range, or not enrolled.
    """
    view = operations.view()
    if parent not in view.states:
        check_partition(connection, parent)
    state = view.state(parent)
    if state is None:
        raise view.not_enrolled(parent.topic)
    return state
