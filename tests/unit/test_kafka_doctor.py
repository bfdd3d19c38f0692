"""The doctor: a sound cluster passes, and each trouble is found, by name and with a remedy."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import examination
from kpsplit.control.doctor import OVERWRITTEN, Findings, SetAside, diagnose, producers_set_aside
from kpsplit.control.facts import OpenTransaction
from kpsplit.control.own_topics import own_topics, topic_config
from kpsplit.control.plans import Sample
from kpsplit.control.preconditions import LogFacts
from kpsplit.errors import CheckFailedError, FutureVersionError, UnreachableError
from kpsplit.kafka.cluster_admin import ClusterAdmin, PartitionFacts, TopicFacts
from kpsplit.splitter.control_plane import ACKNOWLEDGEMENT, ControlView, Registrations
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    EndedBy,
    Finish,
    Freeze,
    PartitionState,
    Prepare,
    SubTopicState,
)
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, slots_topic
from kpsplit.splitter.records.producers import Entry, Newer, ProducerRegistration
from tests.unit.samples import PARENT, UNSPLIT, committed, fenced, merge_attempt, phantom, split_attempt

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
    topics = {
        o.name: TopicFacts(o.name, "own", (THREE,) * (o.partitions or 1), topic_config(3))
        for o in own_topics(1)
    }
    topics["orders"] = topic("orders", "id-of-orders", 6)
    for t in state.subtopics:
        if t.state in (SubTopicState.ACTIVE, SubTopicState.SEALED):
            sealed = {"max_message_bytes": "0"} if t.state is SubTopicState.SEALED else {}
            topics[t.name] = topic(t.name, t.topic_id or "", 2, **sealed)
    logs = {PARENT: {PARENT: LogFacts(0, 200), phantom(0): LogFacts(0, 5), phantom(1): LogFacts(0, 5)}}
    counts = {name: len(facts.partitions) for name, facts in topics.items()}
    return Findings(view, 3, counts, topics, logs, NOW)


class PartlyListed:
    """A cluster of which a broker lists not all topics; ``gone``: those that are certainly missing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listed: set[str], gone: set[str]) -> None:
        self.connection, self._listed, self._gone = None, listed, gone
        with_two = with_slots(found(), slots=2, partitions=None)
        slots, view = slots_topic("orders"), with_two.view
        self._there = with_two.topics | {slots: topic(slots, "id-of-slots", 12)}
        monkeypatch.setattr(examination, "_view", lambda *_: (view, None))
        monkeypatch.setattr(examination.OffsetExamination, "read", lambda *_: None)
        monkeypatch.setattr(examination, "_of_producers", lambda *_: ())
        monkeypatch.setattr(examination, "_plain", lambda *_: {})
        monkeypatch.setattr(examination.FactsGatherer, "logs", lambda *_: {})
        monkeypatch.setattr(examination.FactsGatherer, "hung", lambda *_: None)

    def topics(self) -> dict[str, int]:
        return {name: len(self._there[name].partitions) for name in self._listed}

    def brokers(self) -> dict[int, str]:
        return dict.fromkeys(range(3), "")

    def describe(self, name: str) -> TopicFacts:
        return self._there[name]

    find = describe

    def certain(self, names: list[str], _deadline: object) -> dict[str, TopicFacts | None]:
        return {name: None if name in self._gone else self._there[name] for name in names}


def test_a_topic_that_is_not_listed_is_reported_only_when_it_is_certainly_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reported(listed: set[str], gone: set[str]) -> set[str]:
        admin = PartlyListed(monkeypatch, listed, gone)
        checks = troubles(examination.examine(cast(ClusterAdmin, admin), Deadline(5)))
        return {message for _, message in checks}

    missing = {
        "no group reads partitions 0 to 5 of topic orders: they have no slots",
        f"there is no topic {OFFSETS_TOPIC}",
        f"{SUBTOPIC}, active sub-topic of {PARENT}, does not exist",
    }
    assert not missing & reported({"orders"}, set())
    assert missing <= reported({"orders"}, {OFFSETS_TOPIC, SUBTOPIC, slots_topic("orders")})


def test_a_control_topic_of_another_size_is_found() -> None:
    findings = found()
    name = "__kpsplit.control"
    findings.topics[name] = replace(findings.topics[name], partitions=(THREE,))
    assert ("own topics", f"{name}: it has 1 partitions, not 17") in troubles(findings)


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


def with_slots(findings: Findings, slots: int, partitions: int | None) -> Findings:
    """The same with slots; ``partitions``: of the slots topic, None if it is not there."""
    known = findings.view.enrolments["orders"]
    findings.view.enrolments["orders"] = replace(known, slots=slots)
    counts = dict(findings.counts)
    if partitions is not None:
        counts[slots_topic("orders")] = partitions
    return replace(findings, counts=counts)


def with_topic(findings: Findings, name: str, partitions: int) -> Findings:
    return replace(findings, counts={**findings.counts, name: partitions})


def in_change(findings: Findings) -> Findings:
    """The same while its four slots become two."""
    known = findings.view.enrolments["orders"]
    change = replace(known, slots=2, generation=2, former_slots=4)
    findings.view.enrolments["orders"] = change
    counts = {"__kpsplit.slots.orders": 24, "__kpsplit.slots-2.orders": 12}
    return replace(findings, counts={**findings.counts, **counts})


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


def with_registrations(*entries: Entry, state: PartitionState = SPLIT, **garbage: str) -> Findings:
    """The same with what the producers topic holds."""
    findings, registrations = found(state), Registrations()
    for entry in entries:
        registrations.fold(entry)
    keys = {key.encode(): why for key, why in garbage.items()}
    return replace(findings, set_aside=tuple(producers_set_aside(findings.view, registrations, keys)))


READY = ProducerRegistration(1, 1, "ready", topics=("orders",), ready={"orders/3": ATTEMPT.id})
UNACKNOWLEDGED = apply(
    fenced(UNSPLIT, ATTEMPT),
    Abort(ATTEMPT.id, EndedBy.OPERATOR, f"waited for the producers' {ACKNOWLEDGEMENT}"),
)
CASES = {
    "no control topic": (
        without(found(), "__kpsplit.control"),
        "own topics",
        "there is no topic __kpsplit.control",
    ),
    "long segments of an own topic": (
        having(found(), TopicFacts("__kpsplit.offsets", "own", (THREE,), topic_config(3, 1 << 30))),
        "segments",
        "__kpsplit.offsets has segment.bytes=1073741824",
    ),
    "long segments of a changelog": (
        having(found(), TopicFacts("__kpsplit.changelog.g.orders", "c", (THREE,), topic_config(3, 1 << 30))),
        "segments",
        "__kpsplit.changelog.g.orders has segment.bytes=1073741824",
    ),
    "newer": (replace(found(), newer=("control topic: version 2",)), "versions", "version 2"),
    "lease": (with_lease(500), "settings", "the lease of 500 ms"),
    "no settings": (not_initialised(), "settings", "no settings"),
    "garbage": (with_garbage(), "garbage", "holds 1 records"),
    "garbage of producers": (
        with_registrations(bad="no JSON"),
        "garbage",
        "__kpsplit.producers: not written by kpsplit (no JSON): producers/0:bad",
    ),
    "much garbage": (
        with_registrations(**{f"bad-{n}": "no JSON" for n in range(5)}),
        "garbage",
        "producers/0:bad-0, producers/0:bad-1, producers/0:bad-2 and 2 more",
    ),
    "garbage over a registration": (
        with_registrations(READY, **{READY.key.decode(): "no JSON"}),
        "garbage",
        "not written by kpsplit (no JSON), over the registration of ready: producers/0:0000000000000001",
    ),
    "newer producer": (
        with_registrations(Newer(b"00000000000000ff", ("orders", "none"))),
        "versions",
        "no split or merge of orders: producers/0:00000000000000ff",
    ),
    "newer producer of nothing": (
        with_registrations(Newer(b"00000000000000ff", ("none",))),
        "versions",
        "of no enrolled topic: producers/0:00000000000000ff",
    ),
    "registration of nothing": (
        with_registrations(ProducerRegistration(1, 1, "a", topics=("none",))),
        "registrations",
        "no operation asks its producer: producers/0:0000000000000001",
    ),
    "never acknowledged": (
        with_registrations(READY, state=UNACKNOWLEDGED),
        "registrations",
        "orders/3 was rolled back because it did not acknowledge the fence: producers/0:0000000000000001",
    ),
    "open transaction": (
        replace(
            found(), open_transaction=OpenTransaction(PhysicalPartition("__kpsplit.producers", 0), 7, "it")
        ),
        "transactions",
        "it",
    ),
    "topic gone": (without(found(UNSPLIT), "orders"), "enrolments", "does not exist"),
    "topic anew": (having(found(UNSPLIT), topic("orders", "new")), "enrolments", "deleted and made again"),
    "left behind": (
        replace(found(COMMITTED), now_ms=NOW + 60_000),
        "attempts",
        "has been committed for 1 min 10 s",
    ),
    "clock": (replace(found(), now_ms=NOW - 100_000), "clocks", "by 1 min 30 s"),
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
    "grown": (
        with_slots(found(), slots=2, partitions=8),
        "partitions",
        "no group reads partitions 4 to 5 of topic orders: they have no slots",
    ),
    "slots topic lost": (
        with_slots(found(), slots=2, partitions=None),
        "partitions",
        "no group reads partitions 0 to 5 of topic orders: they have no slots",
    ),
    "slots that are being changed": (
        in_change(found()),
        "enrolments",
        "the slots of orders are being changed from 4 to 2; __kpsplit.slots.orders is not removed",
    ),
    "slots of a change that never began": (
        with_topic(with_slots(found(), slots=2, partitions=12), "__kpsplit.slots-2.orders", 6),
        "enrolments",
        "__kpsplit.slots-2.orders is left over from a change of the slots of orders",
    ),
    "stranger": (
        replace(found(), counts={"orders": 6, "orders.split-brain": 2, "other.split-1-1": 2}),
        "strangers",
        "orders.split-brain begins like a sub-topic of orders",
    ),
}


def test_a_registration_that_operations_can_ask_is_in_order() -> None:
    sound = (READY, ProducerRegistration(2, 1, "closed", topics=("none",), closed=True))
    assert troubles(with_registrations(*sound)) == []


def test_a_record_is_named_so_that_any_shell_takes_it() -> None:
    def name(key: bytes) -> str:
        return SetAside("garbage", "__kpsplit.offsets", "", 3, key).name

    assert name(b"0123abcd") == "offsets/3:0123abcd"
    odd = (b"", b"$(reboot)", b"two words", b"\xff", b"a" * 65, b"x\n", b"!make", b"x!!")
    named = [name(key) for key in odd]  # in a shell's prompt ! is replaced by an earlier command
    assert len(set(named)) == len(named)
    assert all(re.fullmatch(r"offsets/3:sha256-[0-9a-f]{16}", text) for text in named)


def test_the_remedy_is_ready_to_be_pasted() -> None:
    (wrong,) = [c for c in diagnose(with_registrations(bad="no JSON")) if not c.ok]
    assert (wrong.remedy or "").endswith("kpsplit doctor --forget producers/0:bad")


def test_nobody_is_asked_to_remove_the_registration_of_a_producer_that_may_run() -> None:
    """Garbage stands over it: a tombstone for its key would remove the registration."""
    findings = with_registrations(READY, **{READY.key.decode(): "no JSON"})
    (wrong,) = [c for c in diagnose(findings) if not c.ok]
    assert wrong.remedy is not None and "--forget" not in wrong.remedy
    assert wrong.remedy.startswith("close that producer")
    session: Any = SimpleNamespace()
    with pytest.raises(CheckFailedError, match="over the registration of ready"):
        examination.forget(session, findings.set_aside)
    closed = with_registrations(replace(READY, closed=True), **{READY.key.decode(): "no JSON"})
    assert [r.check for r in closed.set_aside] == ["garbage"]


def test_what_was_removed_in_one_partition_is_a_change_when_the_next_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [SetAside("garbage", "__kpsplit.offsets", "", partition, b"bad") for partition in (1, 2)]
    monkeypatch.setattr(examination, "examine", lambda *_: SimpleNamespace(set_aside=records))

    def write_all(_topic: str, _records: Any, _deadline: Any, *, partition: int) -> None:
        if partition == 2:
            raise UnreachableError("no leader")

    session: Any = SimpleNamespace(
        begin=lambda: Deadline(10), admin=None, writer=lambda: SimpleNamespace(write_all=write_all)
    )
    with pytest.raises(UnreachableError) as caught:
        examination.forget(session, records)
    assert caught.value.changed is True
    with pytest.raises(UnreachableError) as caught:
        examination.forget(session, records[1:])
    assert caught.value.changed is False


def test_a_record_of_a_newer_format_over_a_registration_is_forged_and_is_not_removed() -> None:
    """Nobody writes under another's key; to remove it would remove the registration of a live producer."""
    findings = with_registrations(READY, Newer(READY.key, ("orders",)))
    (wrong,) = [c for c in diagnose(findings) if not c.ok]
    assert wrong.name == "garbage" and "--forget" not in (wrong.remedy or "")
    registrations = Registrations()
    for entry in (READY, Newer(READY.key, ("orders",))):
        registrations.fold(entry)
    assert registrations.to_ask("orders") == (READY,), "it refuses no operation"
    registrations.fold(replace(READY, closed=True))
    registrations.fold(Newer(READY.key, ("orders",)))
    with pytest.raises(FutureVersionError):
        registrations.to_ask("orders")


@pytest.mark.parametrize("over", ["garbage", "newer"])
def test_what_stands_over_a_registration_of_no_enrolled_topic_is_one_finding_that_can_be_removed(
    over: str,
) -> None:
    dead = ProducerRegistration(7, 1, "dead", topics=("none",))
    newer = [Newer(dead.key, ("none",))] if over == "newer" else []
    garbage = {dead.key.decode(): "no JSON"} if over == "garbage" else {}
    findings = with_registrations(dead, *newer, **garbage)
    (wrong,) = [c for c in diagnose(findings) if not c.ok]
    (record,) = findings.set_aside
    assert wrong.name == "registrations" and record.check != OVERWRITTEN
    assert (wrong.remedy or "").endswith(f"kpsplit doctor --forget {record.name}")


@pytest.mark.parametrize("case", CASES)
def test_each_trouble_is_found(case: str) -> None:
    findings, name, message = CASES[case]
    assert [(n, message in m) for n, m in troubles(findings)] == [(name, True)]


def test_a_plain_producer_on_a_split_partition_is_told_and_is_no_trouble() -> None:
    findings = replace(found(), plain={PARENT: Sample(records=100, stamped=60)})
    assert troubles(findings) == []
    (told,) = [c.message for c in diagnose(findings) if c.name == "writers"]
    assert told.startswith("orders/3: 40 of the newest 100 records in its overflow") and "AIOProducer" in told
    strays_only = replace(found(), plain={PARENT: Sample(records=60, stamped=60)})
    assert "writers" not in [c.name for c in diagnose(strays_only)]
