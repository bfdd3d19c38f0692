"""What must hold before an operation: named checks over facts that were gathered before (design, section 7).

``checks`` is pure: every failing check is a test without brokers. Each message says what is wrong, each
remedy what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable

from kpsplit.control import log_checks, topic_checks
from kpsplit.control.log_checks import LOG_WHOLE, truncation
from kpsplit.control.plans import Check
from kpsplit.control.precondition_facts import Facts, LogFacts
from kpsplit.errors import AuthorizationError, CheckFailedError, ConflictError, KpsplitError, UsageError
from kpsplit.kafka.topic_facts import TopicFacts
from kpsplit.splitter.partition_state import MAX_RANGES, OperationKind, PartitionState
from kpsplit.splitter.states import Phase
from kpsplit.splitter.words import many

__all__ = ["LOG_WHOLE", "Facts", "LogFacts", "checks", "refusal", "truncation"]

MIN_RANGES = 2


def checks(facts: Facts) -> tuple[Check, ...]:
    """Return all checks that apply; those that depend on one that failed are left out."""
    first = _existence(facts)
    if not all(c.ok for c in first) or facts.topic is None or facts.state is None:
        return first
    topic, state = facts.topic, facts.state
    rest = [make(facts, topic, state) for make in _MAKERS]
    return (*first, *(c for c in rest if c is not None))


def _existence(facts: Facts) -> tuple[Check, ...]:
    topic, number = facts.parent.topic, facts.parent.partition
    if facts.topic is None:
        return (
            Check("topic", False, f"there is no topic {topic}", "check the name and the right to describe"),
        )
    found = [Check("topic", True, f"topic {topic} exists")]
    count = len(facts.topic.partitions)
    found.append(
        Check(
            "partition",
            number < count,
            f"topic {topic} has {many(count, 'partition')}, 0 to {count - 1}",
            "" if number < count else f"choose one of them, not {number}",
        )
    )
    if number < count:
        found.append(_enrolled(facts, topic))
    return tuple(found)


def _enrolled(facts: Facts, topic: str) -> Check:
    if facts.enrolment is None:
        return Check("enrolled", False, f"topic {topic} is not enrolled", f"run: kpsplit enroll {topic}")
    if facts.enrolment.settled:
        return Check("enrolled", True, f"enrolled with partitioner {facts.enrolment.partitioner}")
    return Check("enrolled", True, "enrolled, not settled yet: the operation waits one lease first")


def _same_topic(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    ok = state.topic_id == topic.topic_id
    if ok and facts.enrolment is not None:
        ok = facts.enrolment.topic_id == topic.topic_id
    return Check(
        "same topic",
        ok,
        f"topic {topic.name} is the one that was enrolled"
        if ok
        else f"topic {topic.name} was deleted and made again since it was enrolled",
        ""
        if ok
        else f"run: kpsplit enroll {topic.name}; if it has a lineage, use another name for the new one",
    )


def _no_operation(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    if facts.under_way is not None:
        parent = facts.parent
        return Check(
            "no operation", False, facts.under_way, f"run: kpsplit resume {parent}, or kpsplit abort {parent}"
        )
    if state.phase is Phase.FROZEN:
        return Check(
            "no operation",
            False,
            f"{facts.parent} is frozen: {state.frozen_reason}",
            f"look at kpsplit doctor, then run: kpsplit resume {facts.parent} --thaw",
        )
    return Check("no operation", True, "no other operation is in progress")


def _ranges(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    if facts.kind is not OperationKind.SPLIT:
        return None
    ok = MIN_RANGES <= facts.opening <= MAX_RANGES
    return Check(
        "ranges", ok, f"{facts.opening} ranges", "" if ok else f"choose {MIN_RANGES} to {MAX_RANGES} ranges"
    )


def _partitioner(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    return facts.partitioner


def _writers(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    return facts.strange_writers


def _useful(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check | None:
    return facts.useful


def refusal(check: Check) -> KpsplitError:
    """Return the error that a failed check is."""
    kind = _REFUSALS.get(check.name, CheckFailedError)
    return kind(check.message, hint=check.remedy or None)


_REFUSALS: dict[str, type[KpsplitError]] = {
    "topic": UsageError,
    "partition": UsageError,
    "enrolled": UsageError,
    "ranges": UsageError,
    "same topic": ConflictError,
    "no operation": ConflictError,
    "rights": AuthorizationError,
    "sub-topic name": ConflictError,
}
_MAKERS: tuple[Callable[[Facts, TopicFacts, PartitionState], Check | None], ...] = (
    _same_topic,
    _no_operation,
    _ranges,
    topic_checks.rights,
    topic_checks.not_compacted,
    topic_checks.replication,
    topic_checks.min_insync,
    topic_checks.clean_election,
    topic_checks.in_sync,
    log_checks.sources_exist,
    log_checks.same_subtopics,
    log_checks.subtopic_name,
    log_checks.log_whole,
    log_checks.no_transaction,
    topic_checks.retention,
    _partitioner,
    _writers,
    _useful,
)
