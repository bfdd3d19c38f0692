"""Range commits of a topic that was deleted and made again: they speak of records that are gone."""

from __future__ import annotations

from collections.abc import Callable

from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.groups import range_commits
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import OFFSETS_TOPIC


def withdraw_commits(
    connection: Connection,
    admin: ClusterAdmin,
    writer: Callable[[], AcknowledgedWriter],
    topic: TopicFacts,
    deadline: Deadline,
) -> tuple[str, ...]:
    """Withdraw what all groups have committed for a topic; return these groups.

    Brokers forget ordinary offsets with the topic; nobody forgets these, and a group that stood at 1000 would
    pass over the first 1000 records of the new topic without a word.
    """
    parents = [PhysicalPartition(topic.name, number) for number in range(len(topic.partitions))]
    fold = range_commits(connection, admin, parents, deadline)
    stale = [(p, key) for p in parents for group in fold.groups(p) for key in fold.keys(group, p)]
    if stale:
        count = offset_log_partitions(admin)
        for parent, key in stale:
            partition = offsets_partition(parent, count)
            writer().write(OFFSETS_TOPIC, key.encode(), None, deadline, partition=partition)
    return tuple(sorted({key.group for _, key in stale}))
