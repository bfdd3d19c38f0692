"""What the tests of the offset log share: members of groups, range commits, an initialised cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.offset_log import OffsetTail, offset_log_partitions
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import offsets_partition
from kpsplit.splitter.records.offsets import Position, RangeCommit

SECONDS = 120.0


@dataclass(slots=True)
class Member:
    """A member of a group that subscribes to a topic and fetches nothing."""

    bootstrap: str
    group: str
    topic: str
    protocol: str
    instance: str | None = None
    consumer: Consumer = field(init=False)

    def __post_init__(self) -> None:
        settings: dict[str, str | bool] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": self.protocol,
            "enable.auto.commit": False,
        }
        if self.protocol == "classic":
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        self.consumer = Consumer(settings)
        self.consumer.subscribe([self.topic])

    def owned(self) -> set[int]:
        """The partitions that the coordinator assigned."""
        return {p.partition for p in self.consumer.assignment()}

    def metadata(self) -> object:
        """Who the member is in the group now."""
        return self.consumer.consumer_group_metadata()

    def committed(self, place: PhysicalPartition) -> int:
        """The group's ordinary committed offset."""
        (found,) = self.consumer.committed([TopicPartition(place.topic, place.partition)], timeout=SECONDS)
        return found.offset


def await_owned(wanted: list[tuple[Member, int]]) -> None:
    """Poll members until each owns as many partitions as is said."""
    deadline = Deadline(SECONDS)
    while any(len(member.owned()) != count for member, count in wanted):
        deadline.check("the group to be balanced")
        for member, _ in wanted:
            member.consumer.poll(0.1)


@contextmanager
def member(
    bootstrap: str, group: str, topic: str, protocol: str, instance: str | None = None
) -> Iterator[Member]:
    """A member that leaves at the end."""
    joined = Member(bootstrap, group, topic, protocol, instance)
    try:
        yield joined
    finally:
        joined.consumer.close()


def commit_of(
    group: str, parent: PhysicalPartition, positions: dict[int, int], range_: KeyRange = WHOLE
) -> RangeCommit:
    """A range commit."""
    return RangeCommit(group, parent, range_, {s: Position(n) for s, n in positions.items()}, "a test", 1)


def writer(bootstrap: str) -> CommitWriter:
    """A member's commit writer with an id of its own."""
    connection = Connection({"bootstrap.servers": bootstrap})
    count = offset_log_partitions(ClusterAdmin(connection))
    return CommitWriter(connection, f"kpsplit.commit.tests.{uuid.uuid4()}", count)


@contextmanager
def tailing(bootstrap: str, parent: PhysicalPartition) -> Iterator[OffsetTail]:
    """A tail of everything about a logical partition."""
    connection = Connection({"bootstrap.servers": bootstrap})
    count = offset_log_partitions(ClusterAdmin(connection))
    tail = OffsetTail(connection, count, [offsets_partition(parent, count)])
    try:
        yield tail
    finally:
        tail.close()


def held(tail: OffsetTail, group: str, parent: PhysicalPartition) -> list[tuple[KeyRange, dict[int, int]]]:
    """What a group has committed, read to the log's end."""
    fold = tail.read_all(Deadline(SECONDS))
    return [(r, {s: p.next for s, p in c.positions.items()}) for r, c in fold.commits(group, parent)]
