"""The doctor: a sound cluster passes, and each trouble is found, by name and with a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.kafka.doctor import Findings, diagnose
from kpsplit.kafka.initialise import own_topics, topic_config
from kpsplit.kafka.preconditions import LogFacts
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.events import Abort, Finish, Freeze, Prepare
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import EndedBy, PartitionState, SubTopicState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.producers import Expiry, ProducerRecord
from kpsplit.splitter.writers import Registrations
from tests.unit.samples import PARENT, UNSPLIT, committed, merge_attempt, phantom, split_attempt

THREE = PartitionFacts(0, (0, 1, 2), (0, 1, 2))
NOW = 1_700_000_010_000
ATTEMPT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
COMMITTED = committed(UNSPLIT, ATTEMPT, {0: 100})
SPLIT = apply(COMMITTED, Finish(ATTEMPT.id))
MERGE = merge_attempt(SPLIT, (2, 3), WHOLE)
MERGED = apply(committed(SPLIT, MERGE, {1: 101, 2: 0, 3: 0}), Finish(MERGE.id))
ABORTED = apply(apply(UNSPLIT, Prepare(ATTEMPT)), Abort(ATTEMPT.id, EndedBy.OPERATOR, ""))
SUBTOPIC = "orders.split-3-1"


def topic(name: str, topic_id: str, partitions: int = 1, **config: str) -> TopicFacts:
    settings = {"min.insync.replicas": "2", **{k.replace("_", "."): v for k, v in config.items()}}
    return TopicFacts(name, topic_id, (THREE,) * partitions, settings, settings)


def found(state: PartitionState = SPLIT) -> Findings:
    view = ControlView()
    view.initialised = True
    view.enrolments["orders"] = Enrolment("orders", "id-of-orders", Partitioner.EXPLICIT, settled=True)
    view.states[PARENT] = state
    topics = {o.name: TopicFacts(o.name, "own", (THREE,), topic_config(3)) for o in own_topics(1)}
    topics["orders"] = topic("orders", "id-of-orders", 6)
    for t in state.subtopics:
        if t.state in (SubTopicState.ACTIVE, SubTopicState.SEALED):
            sealed = {"max_message_bytes": "0"} if t.state is SubTopicState.SEALED else {}
            topics[t.name] = topic(t.name, t.topic_id or "", 2, **sealed)
    logs = {PARENT: {PARENT: LogFacts(0, 200), phantom(0): LogFacts(0, 5), phantom(1): LogFacts(0, 5)}}
    return Findings(view, Registrations(), 0, 3, frozenset(topics), topics, logs, NOW)


def troubles(findings: Findings) -> list[tuple[str, str]]:
    bad = [c for c in diagnose(findings) if not c.ok]
    assert all(c.remedy for c in bad)
    return [(c.name, c.message) for c in bad]


@pytest.mark.parametrize(
    "state", [UNSPLIT, SPLIT, MERGED, ABORTED], ids=["unsplit", "split", "merged", "aborted"]
)
def test_a_sound_cluster_passes_every_check(state: PartitionState) -> None:
    assert troubles(found(state)) == []


def without(findings: Findings, name: str) -> Findings:
    return replace(findings, topics={n: t for n, t in findings.topics.items() if n != name})


def having(findings: Findings, changed: TopicFacts) -> Findings:
    return replace(findings, topics={**findings.topics, changed.name: changed})


def with_garbage() -> Findings:
    findings = found()
    findings.view.fold(b"garbage", b"x")
    return findings


def with_lease(milliseconds: int) -> Findings:
    findings = found()
    findings.view.settings = replace(findings.view.settings, lease_ms=milliseconds)
    return findings


def not_initialised() -> Findings:
    findings = found()
    findings.view.initialised = False
    return findings


CASES = {
    "no control topic": (
        without(found(), "__kpsplit.control"),
        "own topics",
        "there is no topic __kpsplit.control",
    ),
    "newer": (replace(found(), newer=("control topic: version 2",)), "versions", "version 2"),
    "lease": (with_lease(500), "settings", "the lease of 500 ms"),
    "no settings": (not_initialised(), "settings", "no settings"),
    "garbage": (with_garbage(), "garbage", "holds 1 records"),
    "garbage of producers": (replace(found(), producers_garbage=2), "garbage", "holds 2 records"),
    "topic gone": (without(found(UNSPLIT), "orders"), "enrolments", "does not exist"),
    "topic anew": (having(found(UNSPLIT), topic("orders", "new")), "enrolments", "deleted and made again"),
    "left behind": (replace(found(COMMITTED), now_ms=NOW + 60_000), "attempts", "is committed since 70 s"),
    "clock": (replace(found(), now_ms=NOW - 100_000), "clocks", "90 s ahead"),
    "frozen": (found(apply(SPLIT, Freeze("why"))), "frozen", "orders/3 is frozen: why"),
    "truncated": (
        replace(found(), logs={PARENT: {PARENT: LogFacts(0, 100)}}),
        "logs",
        "ends at 100, before 101",
    ),
    "sub-topic gone": (
        without(found(), SUBTOPIC),
        "sub-topics",
        "active sub-topic of orders/3, does not exist",
    ),
    "sub-topic anew": (having(found(), topic(SUBTOPIC, "x", 2)), "sub-topics", "deleted and made again"),
    "left over": (having(found(ABORTED), topic(SUBTOPIC, "x", 2)), "sub-topics", "left over"),
    "not sealed": (
        having(found(MERGED), topic(SUBTOPIC, MERGED.subtopics[0].topic_id or "", 2)),
        "sub-topics",
        "accepts writes",
    ),
    "other settings": (
        having(found(), topic("orders", "id-of-orders", 6, retention_ms="5")),
        "sub-topics",
        "has another retention.ms than orders",
    ),
    "stranger": (
        replace(found(), names=frozenset({"orders", "orders.split-5-1", "other.split-1-1"})),
        "strangers",
        "orders.split-5-1 looks like a sub-topic of orders",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_trouble_is_found(case: str) -> None:
    findings, name, message = CASES[case]
    assert [(n, message in m) for n, m in troubles(findings)] == [(name, True)]


def test_expired_producers_are_told_but_need_nothing() -> None:
    findings = found()
    findings.registrations.fold(ProducerRecord(1, 1, "late", topics=("orders",)), 0)
    findings.registrations.fold(Expiry(1, 1), 0)
    (told,) = [c for c in diagnose(findings) if c.name == "expired producers"]
    assert told.ok and "1 registrations have expired, of late" in told.message
