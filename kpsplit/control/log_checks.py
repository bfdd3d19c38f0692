"""Preconditions of the logs and sub-topics that an operation closes or opens. Pure."""

from __future__ import annotations

from kpsplit.control.plans import Check
from kpsplit.control.precondition_facts import Facts, LogFacts
from kpsplit.kafka.topic_facts import TopicFacts
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import MAX_TOPIC_NAME, collides, is_topic_name

LOG_WHOLE = "log whole"
"""The check after whose failure a partition is frozen: only a human can decide what is lost."""

_GONE = LogFacts(None, None)


def log_whole(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """No log is shorter than the lineage says."""
    problem = truncation(state, facts.logs)
    return Check(
        LOG_WHOLE,
        problem is None,
        problem or "the logs reach as far as the lineage says",
        "" if problem is None else "do not go on before a human has decided what is lost",
    )


def truncation(state: PartitionState, logs: dict[PhysicalPartition, LogFacts]) -> str | None:
    """Return what shows that a log was truncated, None if nothing does.

    A closed segment ends with a marker, so the log behind it holds at least that one more; an open segment
    begins where its log has been before.
    """
    for segment in state.lineage:
        log = logs.get(segment.source)
        if log is None or log.end is None:
            continue
        needed = segment.start if segment.end is None else segment.end + 1
        if log.end < needed:
            return (
                f"the log of {segment.source} ends at {log.end}, before {needed}, "
                f"which segment {segment.id} has reached: it was truncated"
            )
        if log.marker_missing_at is not None:
            at = log.marker_missing_at
            return f"{segment.source} has no marker at {at}: it was truncated and written anew"
    return None


def same_subtopics(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """Sub-topics are those that the lineage knows, not others of the same name."""
    known = {t.name: t.topic_id for t in state.subtopics}
    other = [t.name for t in facts.sources if known.get(t.name) not in (None, t.topic_id)]
    return Check(
        "same sub-topics",
        not other,
        f"sub-topic {other[0]} was deleted and made again" if other else "the sub-topics are kpsplit's own",
        "its records are lost: restore the topic from a copy" if other else "",
    )


def sources_exist(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """The segments that would close have their partitions."""
    missing = [str(s.source) for s in facts.closing if facts.logs.get(s.source, _GONE).end is None]
    return Check(
        "segments exist",
        not missing,
        f"{missing[0]} does not exist, but holds an open segment" if missing else "all open segments exist",
        "its records are lost: restore the topic from a copy" if missing else "",
    )


def no_transaction(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    """Readers must be able to pass the cut."""
    return Check(
        "no open transaction",
        facts.hung_transaction is None,
        facts.hung_transaction or "no open transaction holds up readers",
        ""
        if facts.hung_transaction is None
        else "let it end, or abort it with kafka-transactions; readers could not pass the cut",
    )


def subtopic_name(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    """The new sub-topic's name is legal and free."""
    name = facts.subtopic
    if name is None:
        return None
    if not is_topic_name(name):
        return Check(
            "sub-topic name",
            False,
            f"{name} is no legal topic name ({len(name)} of {MAX_TOPIC_NAME} characters)",
            "use a topic with a shorter name",
        )
    if name in facts.names:
        return Check(
            "sub-topic name",
            False,
            f"a topic named {name} exists already and is not kpsplit's",
            f"delete or rename {name} if nobody needs it",
        )
    other = next((other for other in sorted(facts.names) if collides(name, other)), None)
    if other is not None:
        return Check(
            "sub-topic name",
            False,
            f"{name} collides with topic {other} in Kafka's metrics ('.' and '_' are one there)",
            f"delete or rename {other} if nobody needs it",
        )
    return Check("sub-topic name", True, f"{name} is free")
