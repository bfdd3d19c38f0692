"""Preconditions of the parent topic itself: its settings, replicas and retention. Pure."""

from __future__ import annotations

from kpsplit.control.plans import Check
from kpsplit.control.precondition_facts import Facts
from kpsplit.kafka.error_map import RIGHTS_HINT
from kpsplit.kafka.topic_facts import TopicFacts
from kpsplit.splitter.partition_state import PartitionState

SHORT_RETENTION_MS = 3_600_000


def not_compacted(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """Compaction would remove markers and break the order of keys."""
    return Check(
        "not compacted",
        not topic.compacted,
        f"cleanup.policy is {topic.config.get('cleanup.policy', 'delete')}",
        "set cleanup.policy=delete; compacted topics cannot be split" if topic.compacted else "",
    )


def replication(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """One lost broker must not lose records."""
    factor = len(topic.partitions[facts.parent.partition].replicas)
    return Check(
        "replication",
        factor >= 3,
        f"replication factor {factor}",
        "" if factor >= 3 else "one lost broker loses records: raise it to 3, or go on with --force",
        forceable=True,
    )


def min_insync(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    """An acknowledged record must be on two brokers."""
    if len(topic.partitions[facts.parent.partition].replicas) < 3:
        return None
    ok = topic.min_insync >= 2
    return Check(
        "min.insync.replicas",
        ok,
        f"min.insync.replicas is {topic.min_insync}",
        "" if ok else f"set min.insync.replicas=2 on topic {topic.name}",
    )


def clean_election(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """A leader that is behind would cut off acknowledged records."""
    value = topic.config.get("unclean.leader.election.enable", "false")
    return Check(
        "unclean election off",
        value != "true",
        f"unclean.leader.election.enable is {value}",
        "" if value != "true" else f"set unclean.leader.election.enable=false on topic {topic.name}",
    )


def rights(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """A right that is missing is told before anything changes, not in the middle."""
    missing = ", ".join(map(str, facts.lacking))
    return Check(
        "rights",
        not missing,
        f"missing {missing}" if missing else "all rights on the topics that exist",
        RIGHTS_HINT if missing else "",
    )


def in_sync(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """Every log that the operation touches has its leader and all its replicas."""
    closing = {s.source for s in facts.closing} | {facts.parent}
    topics = {t.name: t for t in (*facts.sources, topic)}
    behind = []
    for place in sorted(closing):
        found = topics.get(place.topic)
        if found is None or place.partition >= len(found.partitions):
            behind.append(f"{place} does not exist")
        elif not found.partitions[place.partition].in_sync:
            p = found.partitions[place.partition]
            behind.append(f"{place} has leader {p.leader}, in sync {list(p.isr)} of {list(p.replicas)}")
    return Check(
        "in sync",
        not behind,
        behind[0] if behind else "every replica is in sync",
        "wait until its brokers are back and have caught up" if behind else "",
    )


def retention(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """Groups must have the time to pass the cut."""
    kept = int(topic.config.get("retention.ms", "-1"))
    short = 0 <= kept < SHORT_RETENTION_MS
    return Check(
        "retention",
        not short,
        f"records are kept {kept / 1000:.0f} s" if kept >= 0 else "records are kept without limit of time",
        "groups may lose what they have not read before they pass the cut: raise retention.ms to at least "
        f"{SHORT_RETENTION_MS}, or go on with --force"
        if short
        else "",
        forceable=True,
    )
