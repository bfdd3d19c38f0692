"""Every check: it holds for a sound partition, and each kind of trouble fails one, with a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control.facts import FactsGatherer
from kpsplit.control.plans import Check
from kpsplit.control.preconditions import LOG_WHOLE, Facts, LogFacts, checks, refusal
from kpsplit.errors import CheckFailedError, ConflictError, UnreachableError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, LogEnd, PartitionFacts, TopicFacts
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Finish, Freeze, OperationKind, PartitionState, Prepare
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.rights import Role, rights_for
from tests.unit.samples import PARENT, UNSPLIT, committed, phantom, split_attempt

HEALTHY = PartitionFacts(0, (0, 1, 2), (0, 1, 2))
CONFIG = {"cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": "604800000"}
TOPIC = TopicFacts("orders", "id-of-orders", (HEALTHY,) * 6, CONFIG)
ENROLMENT = Enrolment("orders", "id-of-orders", Partitioner.CONSISTENT_RANDOM, settled=True)
SOUND = Facts(
    parent=PARENT,
    kind=OperationKind.SPLIT,
    topic=TOPIC,
    enrolment=ENROLMENT,
    state=UNSPLIT,
    closing=UNSPLIT.lineage.segments,
    subtopic="orders.split-3-1",
    names=frozenset({"orders", "payments"}),
    logs={PARENT: LogFacts(0, 100)},
)
SPLITTING = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
SPLIT = apply(committed(UNSPLIT, SPLITTING, {0: 100}), Finish(SPLITTING.id))
SPLIT_LOGS = {PARENT: LogFacts(0, 101), phantom(0): LogFacts(0, 0), phantom(1): LogFacts(0, 0)}


def config(**changed: str) -> TopicFacts:
    return replace(TOPIC, config={**CONFIG, **{k.replace("_", "."): v for k, v in changed.items()}})


def with_partition(facts: PartitionFacts) -> TopicFacts:
    return replace(TOPIC, partitions=(*TOPIC.partitions[:3], facts, *TOPIC.partitions[4:]))


def test_everything_holds_for_a_sound_partition() -> None:
    assert [c.name for c in checks(SOUND) if not c.ok] == []
    assert {c.name for c in checks(SOUND)} >= {"in sync", "log whole", "sub-topic name", "retention"}


BAD = {
    "topic": replace(SOUND, topic=None),
    "partition": replace(SOUND, topic=replace(TOPIC, partitions=(HEALTHY,) * 3)),
    "enrolled": replace(SOUND, enrolment=None),
    "stays enrolled": replace(
        SOUND, enrolment=Enrolment("orders", "id-of-orders", Partitioner.EXPLICIT, False, None, 2, 8, True)
    ),
    "same topic": replace(SOUND, topic=replace(TOPIC, topic_id="another")),
    "no operation": replace(SOUND, state=apply(UNSPLIT, Prepare(SPLITTING))),
    "rights": replace(SOUND, lacking=rights_for(Role.OPERATOR, "orders")[:1]),
    "not compacted": replace(SOUND, topic=config(cleanup_policy="compact,delete")),
    "replication": replace(SOUND, topic=with_partition(PartitionFacts(0, (0, 1), (0, 1)))),
    "min.insync.replicas": replace(SOUND, topic=config(min_insync_replicas="1")),
    "unclean election off": replace(SOUND, topic=config(unclean_leader_election_enable="true")),
    "in sync": replace(SOUND, topic=with_partition(PartitionFacts(0, (0, 1, 2), (0, 2)))),
    "segments exist": replace(SOUND, logs={}),
    "same sub-topics": replace(
        SOUND,
        state=replace(SPLIT, topic_id="id-of-orders"),
        sources=(TopicFacts("orders.split-3-1", "other", (HEALTHY,) * 2),),
        logs=SPLIT_LOGS,
    ),
    "sub-topic name": replace(SOUND, names=frozenset({"orders.split-3-1"})),
    "log whole": replace(SOUND, state=SPLIT, logs={**SPLIT_LOGS, PARENT: LogFacts(0, 100)}),
    "no open transaction": replace(SOUND, hung_transaction="a transaction has been open for 4 s (app)"),
    "retention": replace(SOUND, topic=config(retention_ms="60000")),
}


@pytest.mark.parametrize("name", BAD)
def test_each_trouble_fails_its_own_check_and_says_what_to_do(name: str) -> None:
    failed = [c for c in checks(BAD[name]) if not c.ok]
    assert [c.name for c in failed] == [name]
    assert failed[0].message and failed[0].remedy
    assert failed[0].forceable == (name in ("replication", "retention"))


@pytest.mark.parametrize(
    ("names", "subtopic"),
    [
        ({"orders_split-3-1"}, "orders.split-3-1"),
        ({"orders"}, "x" * 250),
    ],
)
def test_a_subtopic_name_that_collides_or_is_too_long_fails(names: set[str], subtopic: str) -> None:
    facts = replace(SOUND, names=frozenset(names), subtopic=subtopic)
    assert [c.name for c in checks(facts) if not c.ok] == ["sub-topic name"]


def test_a_record_where_a_marker_should_be_shows_a_truncated_log() -> None:
    facts = replace(SOUND, state=SPLIT, logs={**SPLIT_LOGS, PARENT: LogFacts(0, 300, 100)})
    assert ["has no marker at 100" in c.message for c in checks(facts) if not c.ok] == [True]


CUT_IN_3 = replace(
    SPLIT,
    lineage=Lineage(PARENT, tuple(s if s.is_open else replace(s, end_leader_epoch=3) for s in SPLIT.lineage)),
)


@pytest.mark.parametrize(
    ("epoch", "failed"),
    [(2, "leaders"), (3, "log whole"), (4, "log whole"), (None, "log whole")],
    ids=["deposed", "the-same", "newer", "not-known"],
)
def test_a_leader_of_before_the_marker_does_not_say_that_the_log_was_truncated(
    epoch: int | None, failed: str
) -> None:
    """It stood still, was deposed, and names the end that it remembers; a freeze would need a human."""
    logs = {**SPLIT_LOGS, PARENT: LogFacts(0, 60, leader_epoch=epoch)}
    (check,) = [c for c in checks(replace(SOUND, state=CUT_IN_3, logs=logs)) if not c.ok]
    assert (check.name, check.name == LOG_WHOLE) == (failed, epoch != 2)
    error = refusal(check)
    assert isinstance(error, UnreachableError) is (epoch == 2)
    assert error.hint


def test_a_frozen_partition_is_refused() -> None:
    facts = replace(SOUND, state=apply(UNSPLIT, Freeze("truncated")))
    assert ["frozen: truncated" in c.message for c in checks(facts) if not c.ok] == [True]


def test_an_enrolment_that_is_not_settled_is_waited_for_not_refused() -> None:
    facts = replace(SOUND, enrolment=replace(ENROLMENT, settled=False))
    assert not [c for c in checks(facts) if not c.ok]


@pytest.mark.parametrize(
    ("name", "kind"), [("topic", UsageError), ("no operation", ConflictError), ("in sync", CheckFailedError)]
)
def test_a_failed_check_becomes_an_error_with_the_remedy_as_hint(name: str, kind: type[Exception]) -> None:
    error = refusal(Check(name, False, "what", "do this"))
    assert type(error) is kind and str(error) == "what; do this"


class Ends:
    """Logs of 101 records, wherever it is asked."""

    connection = None

    def end_offsets(self, places: list[PhysicalPartition]) -> dict[PhysicalPartition, LogEnd]:
        return {place: LogEnd(101, 0) for place in places}

    def start_offsets(self, places: list[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        return dict.fromkeys(places, 0)


def test_markers_that_nobody_answers_for_leave_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(
        "kpsplit.control.facts.read_at", lambda _, __, limit: given.append(limit.left()) or {}
    )
    gatherer = FactsGatherer(cast(ClusterAdmin, Ends()))
    gatherer.logs([(SPLIT, set(SPLIT.lineage.sources()))], Deadline(2))
    assert 0 < given[0] <= 1


def test_one_client_reads_the_markers_of_all_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    other = PhysicalPartition("orders", 4)
    unsplit = PartitionState.unsplit(other, "id-of-orders")
    states = [SPLIT, committed(unsplit, split_attempt(unsplit, 0, WHOLE.split_evenly(2)), {0: 50})]
    read: list[dict[PhysicalPartition, int]] = []
    monkeypatch.setattr("kpsplit.control.facts.read_at", lambda _, marks, limit: read.append(marks) or {})
    gatherer = FactsGatherer(cast(ClusterAdmin, Ends()))
    logs = gatherer.logs([(state, set(state.lineage.sources())) for state in states], Deadline(1))
    assert read == [{PARENT: 100, other: 50}]
    assert logs.keys() == {PARENT, other} and logs[PARENT].keys() == set(SPLIT.lineage.sources())
    assert logs[other][other] == LogFacts(0, 101, leader_epoch=0)
