"""What must hold before an operation: named checks over facts gathered before (protocol, section 7).

``checks`` is pure: every failing check is a test without brokers. Each message says what is wrong, each
remedy what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kpsplit.control.plans import Check, under_way
from kpsplit.errors import (
    AuthorizationError,
    CheckFailedError,
    ConflictError,
    KpsplitError,
    UnreachableError,
    UsageError,
    duration,
    many,
)
from kpsplit.kafka.cluster_admin import TopicFacts
from kpsplit.kafka.error_map import RIGHTS_HINT
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import OperationKind, PartitionState, Phase
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import MAX_TOPIC_NAME, collides, is_topic_name
from kpsplit.splitter.rights import Right


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log of one physical partition of the lineage. None: the partition does not exist."""

    start: int | None
    end: int | None
    marker_missing_at: int | None = None
    """Where a record stands that should be a marker of the lineage."""
    leader_epoch: int | None = None
    """In which ``end`` was said; None: not known."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is looked at before an operation on one logical partition.

    ``closing`` are the segments that it would close, ``subtopic`` is its sub-topic's name, ``names`` are the
    topics of the cluster. ``hung_transaction`` describes an open transaction that stayed while we watched,
    None if there is none. ``lacking``: rights on topics that exist which the brokers say we do not have.
    """

    parent: PhysicalPartition
    kind: OperationKind
    topic: TopicFacts | None
    enrolment: Enrolment | None
    state: PartitionState | None
    closing: tuple[Segment, ...] = ()
    subtopic: str | None = None
    names: frozenset[str] = frozenset()
    sources: tuple[TopicFacts, ...] = ()
    logs: dict[PhysicalPartition, LogFacts] = field(default_factory=dict)
    hung_transaction: str | None = None
    lacking: tuple[Right, ...] = ()


SHORT_RETENTION_MS = 3_600_000


def _check(name: str, ok: bool, message: str, remedy: str, *, forceable: bool = False) -> Check:
    return Check(name, ok, message, "" if ok else remedy, forceable)


def not_compacted(_facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check:
    """Compaction would remove markers and break the order of keys."""
    found = f"cleanup.policy is {topic.config.get('cleanup.policy', 'delete')}"
    remedy = "set cleanup.policy=delete; compacted topics cannot be split"
    return _check("not compacted", not topic.compacted, found, remedy)


def replication(facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check:
    factor = len(topic.partitions[facts.parent.partition].replicas)
    remedy = "one lost broker loses records: raise it to 3, or go on with --force"
    return _check("replication", factor >= 3, f"replication factor {factor}", remedy, forceable=True)


def min_insync(facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check | None:
    """An acknowledged record must be on two brokers."""
    if len(topic.partitions[facts.parent.partition].replicas) < 3:
        return None
    name, least = "min.insync.replicas", topic.min_insync
    return _check(name, least >= 2, f"{name} is {least}", f"set {name}=2 on topic {topic.name}")


def clean_election(_facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check:
    """A leader that lags would cut off acknowledged records."""
    name = "unclean.leader.election.enable"
    value = topic.config.get(name, "false")
    remedy = f"set {name}=false on topic {topic.name}"
    return _check("unclean election off", value != "true", f"{name} is {value}", remedy)


def rights(facts: Facts, _topic: TopicFacts, _state: PartitionState) -> Check:
    """A missing right is reported before anything changes, not in the middle."""
    missing = ", ".join(map(str, facts.lacking))
    found = f"missing {missing}" if missing else "all rights on the topics that exist"
    return _check("rights", not missing, found, RIGHTS_HINT)


def in_sync(facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check:
    topics = {t.name: t for t in (*facts.sources, topic)}
    lagging = []
    for place in sorted({s.source for s in facts.closing} | {facts.parent}):
        found = topics.get(place.topic)
        if found is None or place.partition >= len(found.partitions):
            lagging.append(f"{place} does not exist")
        elif not (p := found.partitions[place.partition]).in_sync:
            lagging.append(f"{place} has leader {p.leader}, in sync {list(p.isr)} of {list(p.replicas)}")
    text = lagging[0] if lagging else "every replica is in sync"
    return _check("in sync", not lagging, text, "wait until its brokers are back and have caught up")


def retention(_facts: Facts, topic: TopicFacts, _state: PartitionState) -> Check:
    """Groups must have the time to pass the cut."""
    kept = int(topic.config.get("retention.ms", "-1"))
    found = f"kept for {duration(kept / 1000)}" if kept >= 0 else "kept without limit of time"
    remedy = (
        "groups may lose what they have not read before they pass the cut: raise retention.ms to at least "
        f"{SHORT_RETENTION_MS}, or go on with --force"
    )
    short = 0 <= kept < SHORT_RETENTION_MS
    return _check("retention", not short, f"records are {found}", remedy, forceable=True)


LOG_WHOLE = "log whole"
"""The check after whose failure a partition is frozen: only a human can decide what is lost."""

_GONE = LogFacts(None, None)


def log_whole(facts: Facts, _topic: TopicFacts, state: PartitionState) -> Check:
    problem = truncation(state, facts.logs)
    found = problem or "the logs reach as far as the lineage says"
    return _check(LOG_WHOLE, problem is None, found, "do not go on before a human has decided what is lost")


def current_leaders(facts: Facts, _topic: TopicFacts, state: PartitionState) -> Check | None:
    """What a deposed leader says is no reason to freeze a partition: the next answer may be right."""
    found = deposed(state, facts.logs)
    remedy = "retry; if it stays, look at kpsplit doctor"
    return Check("leaders", False, next(iter(found.values())), remedy) if found else None


def deposed(
    state: PartitionState, logs: Mapping[PhysicalPartition, LogFacts]
) -> dict[PhysicalPartition, str]:
    """Return the logs whose end was said by a leader that was deposed before a marker was written, and why.

    It stood still, and names the end that it remembers until it hears of its successor.
    """
    found = {}
    for segment in state.lineage:
        place, written = segment.source, segment.end_leader_epoch
        said = logs[place].leader_epoch if place in logs else None
        if written is not None and said is not None and said < written:
            found[place] = (
                f"the end of {place} was said in leader epoch {said}, and a marker there was written in "
                f"{written}: the broker does not know yet that it is not the leader"
            )
    return found


def truncation(state: PartitionState, logs: Mapping[PhysicalPartition, LogFacts]) -> str | None:
    """Return what shows that a log was truncated, None if nothing does.

    A closed segment ends with a marker, so the log after it holds at least that one more; an open segment
    begins where its log has been before. A leader that was deposed shows nothing.
    """
    stale = deposed(state, logs)
    for segment in state.lineage:
        log = logs.get(segment.source)
        if log is None or log.end is None or segment.source in stale:
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


def same_subtopics(facts: Facts, _topic: TopicFacts, state: PartitionState) -> Check:
    """Sub-topics are those that the lineage knows, not others of the same name."""
    known = {t.name: t.topic_id for t in state.subtopics}
    other = [t.name for t in facts.sources if known.get(t.name) not in (None, t.topic_id)]
    found = (
        f"sub-topic {other[0]} was deleted and made again" if other else "the sub-topics are kpsplit's own"
    )
    return _check("same sub-topics", not other, found, _RECORDS_LOST)


def sources_exist(facts: Facts, _topic: TopicFacts, _state: PartitionState) -> Check:
    missing = [str(s.source) for s in facts.closing if facts.logs.get(s.source, _GONE).end is None]
    found = (
        f"{missing[0]} does not exist, but holds an open segment" if missing else "all open segments exist"
    )
    return _check("segments exist", not missing, found, _RECORDS_LOST)


_RECORDS_LOST = "its records are lost: restore the topic from a copy"


def no_transaction(facts: Facts, _topic: TopicFacts, _state: PartitionState) -> Check:
    hung = facts.hung_transaction
    remedy = "let it end, or abort it with kafka-transactions; readers could not pass the cut"
    found = hung or "no open transaction holds up readers"
    return _check("no open transaction", hung is None, found, remedy)


def subtopic_name(facts: Facts, _topic: TopicFacts, _state: PartitionState) -> Check | None:
    name, title = facts.subtopic, "sub-topic name"
    if name is None:
        return None
    if not is_topic_name(name):
        wrong = f"{name} is not a legal topic name ({len(name)} of {MAX_TOPIC_NAME} characters)"
        return Check(title, False, wrong, "use a topic with a shorter name")
    if name in facts.names:
        wrong = f"a topic named {name} exists already and is not kpsplit's"
        return Check(title, False, wrong, f"delete or rename {name} if nobody needs it")
    other = next((other for other in sorted(facts.names) if collides(name, other)), None)
    if other is not None:
        wrong = f"{name} collides with topic {other} in Kafka's metrics ('.' and '_' are one there)"
        return Check(title, False, wrong, f"delete or rename {other} if nobody needs it")
    return Check(title, True, f"{name} is free")


def checks(facts: Facts) -> tuple[Check, ...]:
    """Return all checks that apply; those that depend on one that failed are left out."""
    first = _existence(facts)
    if not all(c.ok for c in first) or facts.topic is None or facts.state is None:
        return first
    topic, state = facts.topic, facts.state
    rest = (make(facts, topic, state) for make in _MAKERS)
    return (*first, *(c for c in rest if c is not None))


def _existence(facts: Facts) -> tuple[Check, ...]:
    topic, number = facts.parent.topic, facts.parent.partition
    if facts.topic is None:
        return (
            Check("topic", False, f"there is no topic {topic}", "check the name and the right to describe"),
        )
    count = len(facts.topic.partitions)
    found = f"topic {topic} has {many(count, 'partition')}, 0 to {count - 1}"
    first = (
        Check("topic", True, f"topic {topic} exists"),
        _check("partition", number < count, found, f"choose one of them, not {number}"),
    )
    return (*first, _enrolled(facts, topic)) if number < count else first


def _enrolled(facts: Facts, topic: str) -> Check:
    if facts.enrolment is None:
        return Check("enrolled", False, f"topic {topic} is not enrolled", f"run: kpsplit enroll {topic}")
    if facts.enrolment.returning and facts.kind is OperationKind.SPLIT:
        return Check("stays enrolled", False, facts.enrolment.change_text, f"run: kpsplit unenroll {topic}")
    if facts.enrolment.settled:
        return Check("enrolled", True, f"enrolled with partitioner {facts.enrolment.partitioner}")
    return Check("enrolled", True, "enrolled, not settled yet: the operation waits one lease first")


def _same_topic(facts: Facts, topic: TopicFacts, state: PartitionState) -> Check:
    enrolled = state.topic_id if facts.enrolment is None else facts.enrolment.topic_id
    ok = state.topic_id == topic.topic_id == enrolled
    found = "is the one that was enrolled" if ok else "was deleted and made again since it was enrolled"
    remedy = f"run: kpsplit enroll {topic.name}; if it has a lineage, use another name for the new one"
    return _check("same topic", ok, f"topic {topic.name} {found}", remedy)


def _no_operation(facts: Facts, _topic: TopicFacts, state: PartitionState) -> Check:
    name, parent = "no operation", facts.parent
    if (busy := under_way(state)) is not None:
        return Check(name, False, busy, f"run: kpsplit resume {parent}, or kpsplit abort {parent}")
    if state.phase is Phase.FROZEN:
        remedy = f"look at kpsplit doctor, then run: kpsplit resume {parent} --thaw"
        return Check(name, False, f"{parent} is frozen: {state.frozen_reason}", remedy)
    return Check(name, True, "no other operation is in progress")


def refusal(check: Check) -> KpsplitError:
    kind = _REFUSALS.get(check.name, CheckFailedError)
    return kind(check.message, hint=check.remedy or None)


_REFUSALS: dict[str, type[KpsplitError]] = {
    "topic": UsageError,
    "partition": UsageError,
    "enrolled": UsageError,
    "same topic": ConflictError,
    "no operation": ConflictError,
    "leaders": UnreachableError,
    "rights": AuthorizationError,
    "sub-topic name": ConflictError,
}
_MAKERS: tuple[Callable[[Facts, TopicFacts, PartitionState], Check | None], ...] = (
    _same_topic,
    _no_operation,
    rights,
    not_compacted,
    replication,
    min_insync,
    clean_election,
    in_sync,
    sources_exist,
    same_subtopics,
    subtopic_name,
    current_leaders,
    log_whole,
    no_transaction,
    retention,
)
