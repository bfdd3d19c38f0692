"""What is looked at before an operation, for the checks to decide over. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpsplit.control.plans import Check
from kpsplit.kafka.topic_facts import TopicFacts
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import OperationKind, PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.rights import Right


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log of one physical partition of the lineage. None: the partition does not exist."""

    start: int | None
    end: int | None
    marker_missing_at: int | None = None
    """Where a record stands that should be a marker of the lineage."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is looked at before an operation on one logical partition.

    ``closing`` are the segments that it would close, ``opening`` the number of ranges that it would open;
    ``subtopic`` its sub-topic's name, ``names`` the topics of the cluster. ``hung_transaction`` describes an
    open transaction that stayed while we watched, None if there is none. ``lacking``: rights on topics that
    exist which the brokers say we do not have. ``partitioner`` and ``useful`` come from the sample, None
    where none was taken.
    """

    parent: PhysicalPartition
    kind: OperationKind
    topic: TopicFacts | None
    enrolment: Enrolment | None
    state: PartitionState | None
    closing: tuple[Segment, ...] = ()
    opening: int = 1
    subtopic: str | None = None
    names: frozenset[str] = frozenset()
    under_way: str | None = None
    sources: tuple[TopicFacts, ...] = ()
    logs: dict[PhysicalPartition, LogFacts] = field(default_factory=dict)
    hung_transaction: str | None = None
    lacking: tuple[Right, ...] = ()
    partitioner: Check | None = None
    strange_writers: Check | None = None
    useful: Check | None = None
