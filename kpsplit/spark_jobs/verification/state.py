"""The verified state of a topic: all that a run needs to go on where the one before it ended. Plain values.

Per logical partition: up to where each log was read, how many records were found, what is known of every
producer's numbers (``ledger``), and the range commits that were in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kpsplit.errors import UsageError
from kpsplit.spark_jobs.snapshot import LoggedCommit, Lost, LostReason, Snapshot
from kpsplit.spark_jobs.verification.counted import Total
from kpsplit.spark_jobs.verification.ledger import Ledger
from kpsplit.splitter.lineage import PhysicalPartition

Stretches = dict[PhysicalPartition, tuple[int, int]]
"""The offsets [first, behind) of logs."""


@dataclass(frozen=True, slots=True)
class PartitionPast:
    """What earlier runs know of one logical partition.

    Attributes:
        topic_id: Kafka's id of the topic.
        read: the offset of each log behind the last one that was read.
        totals: what was found there.
        ledgers: the producers, by name.
        commits: the range commits in force, in the order of the offset log.
        commits_read: the offset of the offset log behind the last range commit that was seen.
        told: how many findings earlier runs told.
        unread: something went before any run had read it; what was in it is never known.
    """

    topic_id: str
    read: Mapping[PhysicalPartition, int] = field(default_factory=dict)
    totals: tuple[Total, ...] = ()
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    commits: tuple[LoggedCommit, ...] = ()
    commits_read: int = 0
    told: int = 0
    unread: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What a run leaves to the next one.

    Attributes:
        cluster: Kafka's id of the cluster.
        topic: the topic.
        groups: the groups whose range commits are checked, None for all.
        made_ms: when the run that left it began, ms since 1970; 0: there was none.
        partitions: by number; one that is missing was never verified.
    """

    cluster: str
    topic: str
    groups: tuple[str, ...] | None = None
    made_ms: int = 0
    partitions: Mapping[int, PartitionPast] = field(default_factory=dict)

    def check_belongs(self, cluster: str, snapshot: Snapshot, groups: tuple[str, ...] | None) -> None:
        """Do nothing if the state is one of this topic.

        Raises:
            UsageError: it is one of another cluster, topic, or choice of groups.
        """
        new = "give another file, or remove this one to begin anew"
        if self.topic != snapshot.topic:
            raise UsageError(f"the state is one of topic {self.topic}, not of {snapshot.topic}", hint=new)
        if self.cluster != cluster:
            raise UsageError(
                f"the state is one of cluster {self.cluster}, not of {cluster or 'this one'}", hint=new
            )
        for state in snapshot.states:
            known = self.partitions.get(state.parent.partition)
            if known is not None and known.topic_id != state.topic_id:
                raise UsageError(
                    f"the state is one of an older topic {self.topic}, which was deleted since", hint=new
                )
        if self.made_ms and self.groups != groups:
            named = "all groups" if self.groups is None else f"the groups {', '.join(self.groups)}"
            raise UsageError(f"the state was made with {named}", hint=f"name the same ones, or {new}")

    def past(self, partition: int) -> PartitionPast:
        """Return what is known of a partition; nothing if it was never verified."""
        return self.partitions.get(partition) or PartitionPast("")

    def read(self, partition: int, source: PhysicalPartition) -> int:
        """Return the offset behind the last one of a log that was read."""
        return self.past(partition).read.get(source, 0)

    def ledger(self, partition: int, producer: str) -> Ledger:
        """Return what is known of a producer."""
        return self.past(partition).ledgers.get(producer) or Ledger()


def to_read(snapshot: Snapshot, past: State) -> Stretches:
    """Return what the logs hold, is decided, and was not read before."""
    found = {}
    for place, partition in _owners(snapshot).items():
        bounds = snapshot.bounds.get(place)
        if bounds is not None and place not in snapshot.gone:
            first = max(bounds.low, past.read(partition, place))
            if first < bounds.stable:
                found[place] = first, bounds.stable
    return found


def read_before(snapshot: Snapshot, past: State, partitions: set[int]) -> Stretches:
    """Return what was read before and can still be read."""
    found = {}
    for place, partition in _owners(snapshot).items():
        bounds = snapshot.bounds.get(place)
        if partition in partitions and bounds is not None and place not in snapshot.gone:
            behind = min(past.read(partition, place), bounds.stable)
            if bounds.low < behind:
                found[place] = bounds.low, behind
    return found


def forgotten(snapshot: Snapshot, past: State) -> set[int]:
    """Return the partitions of which something that was read before cannot be read again."""
    found = set()
    for place, partition in _owners(snapshot).items():
        bounds = snapshot.bounds.get(place)
        if past.read(partition, place) and (bounds is None or place in snapshot.gone or bounds.low):
            found.add(partition)
    return found


def lost_unseen(snapshot: Snapshot, past: State) -> list[Lost]:
    """Return what segments had, cannot be read, and was not verified by an earlier run."""
    found = []
    for lost in snapshot.lost():
        read = past.read(lost.state.parent.partition, lost.segment.source)
        first = max(lost.first, read)
        told_anyway = lost.reason in (LostReason.CUT_OFF, LostReason.MISSING, LostReason.MADE_ANEW)
        if told_anyway:
            found.append(lost)
        elif lost.behind is None or first < lost.behind:
            found.append(Lost(lost.state, lost.segment, first, lost.behind, lost.reason))
    return found


def held_back(snapshot: Snapshot) -> set[int]:
    """Return the partitions of which an open transaction hides records that are in the logs."""
    owners = _owners(snapshot)
    return {owners[place] for place, b in snapshot.bounds.items() if place in owners and b.stable < b.high}


def _owners(snapshot: Snapshot) -> dict[PhysicalPartition, int]:
    return {s.source: state.parent.partition for state in snapshot.states for s in state.lineage}
