"""Replica lists, own topics, sealing, markers' producers, retirement: the pure parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.control.enrolment import settings_to_write
from kpsplit.control.own_topics import misfits, own_topics, topic_config
from kpsplit.control.retirement import ends_to_reach, undrained
from kpsplit.control.subtopics import copied_config, is_sealed, phantom_assignment, reordered
from kpsplit.errors import ConflictError, FutureVersionError, RecordError
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.kafka.groups import groups_of, positions_by_range_commits, proven_positions, topics_of
from kpsplit.kafka.log_tail import LogTail
from kpsplit.kafka.markers import is_connected, producers_for
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    Settings,
    encode_enrolment,
    encode_settings,
)
from kpsplit.splitter.records.keys import SETTINGS_KEY, enrolment_key, slots_topic
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.unit.samples import PARENT, UNSPLIT, committed, life, phantom, split_attempt


def test_leaders_of_phantoms_are_spread_over_the_parents_replicas() -> None:
    assert phantom_assignment((2, 0, 1), 5) == [[2, 0, 1], [0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert phantom_assignment((7,), 2) == [[7], [7]]


def test_a_leader_is_put_first_and_the_set_stays() -> None:
    assert reordered((2, 0, 1), 1) == [1, 2, 0]
    assert reordered((2, 0, 1), 2) == [2, 0, 1]


def test_settings_that_name_replicas_are_not_copied() -> None:
    explicit = {
        "retention.ms": "5",
        "leader.replication.throttled.replicas": "0:1",
        "min.insync.replicas": "2",
    }
    assert copied_config(explicit) == {"retention.ms": "5", "min.insync.replicas": "2"}


def test_a_sealed_topic_takes_no_record() -> None:
    assert is_sealed({"max.message.bytes": "80"}) and not is_sealed({"max.message.bytes": "1048588"})
    assert is_sealed({"max.message.bytes": "0"})  # by an older version


@pytest.mark.parametrize(("places", "producers"), [(0, 1), (1, 1), (5, 3), (64, 8)])
def test_markers_of_many_partitions_go_over_several_connections(places: int, producers: int) -> None:
    assert producers_for(places) == producers


def test_a_producer_is_warm_with_an_id_and_every_broker_up() -> None:
    up, down = {"nodeid": 0, "state": "UP"}, {"nodeid": 1, "state": "CONNECT"}
    assigned = {"idemp_state": "Assigned"}
    assert is_connected({"eos": assigned, "brokers": {"a": up, "boot": {"nodeid": -1, "state": "INIT"}}})
    assert not is_connected({"eos": assigned, "brokers": {"a": up, "b": down}})
    assert not is_connected({"eos": {"idemp_state": "WaitPID"}, "brokers": {"a": up}})
    assert not is_connected({})


OWN = own_topics(16)[0]
RIGHT = TopicFacts(OWN.name, "id", (PartitionFacts(0, (0, 1, 2), (0, 1, 2)),), topic_config(3))


def test_an_own_topic_as_it_is_created_fits() -> None:
    assert misfits(OWN, RIGHT, brokers=3) == []
    single = replace(RIGHT, partitions=(PartitionFacts(0, (0,), (0,)),), config=topic_config(1))
    assert misfits(OWN, single, brokers=1) == []


@pytest.mark.parametrize(
    ("topic", "wrong"),
    [
        (replace(RIGHT, config={**RIGHT.config, "cleanup.policy": "compact,delete"}), "cleanup.policy"),
        (replace(RIGHT, config={**RIGHT.config, "min.insync.replicas": "1"}), "min.insync.replicas"),
        (replace(RIGHT, config={**RIGHT.config, "unclean.leader.election.enable": "true"}), "unclean"),
        (replace(RIGHT, config={**RIGHT.config, "max.message.bytes": "1000"}), "max.message.bytes"),
        (replace(RIGHT, partitions=RIGHT.partitions * 2), "2 partitions, not 1"),
        (replace(RIGHT, partitions=(PartitionFacts(0, (0, 1), (0, 1)),)), "replication factor is 2, not 3"),
    ],
)
def test_what_is_wrong_with_an_own_topic_is_said_with_the_remedy(topic: TopicFacts, wrong: str) -> None:
    found = misfits(OWN, topic, brokers=3)
    assert len(found) == 1 and wrong in found[0] and ": " in found[0]


def test_the_lease_is_kept_once_producers_count_on_it() -> None:
    view = ControlView()
    assert settings_to_write(view, None) == Settings(5000)
    view.fold(SETTINGS_KEY, encode_settings(Settings(700)))
    assert settings_to_write(view, None) is None
    assert settings_to_write(view, 700) is None
    assert settings_to_write(view, 900) == Settings(900)
    enrolment = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=True)
    view.fold(enrolment_key("orders"), encode_enrolment(enrolment))
    with pytest.raises(ConflictError, match="the lease is 700 ms"):
        settings_to_write(view, 900)
    with pytest.raises(RecordError):
        settings_to_write(view, 5)


def test_a_group_without_a_commit_is_not_drained() -> None:
    state = committed(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 100})
    nested = split_attempt(state, 2, state.lineage.get(2).range.split_evenly(2), "t")
    state = committed(replace(state, attempt=None, phase=UNSPLIT.phase), nested, {2: 9})
    ends = ends_to_reach(state, "orders.split-3-1")
    assert ends == {phantom(0): 9}  # the other phantom is open, the overflow behind the first one as well
    groups = {"none": {}, "behind": {phantom(0): 8}, "done": {phantom(0): 9}, "beyond": {phantom(0): 10}}
    assert [str(u) for u in undrained(ends, {}, groups)] == [
        "group behind stands at 8 in orders.split-3-1/0, which ends at 9",
        "group none has no commit in orders.split-3-1/0, which ends at 9",
    ]
    assert undrained(ends, {phantom(0): 9}, groups) == []  # expired: nobody can read it any more


class FakeMessage:
    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_a_group_with_range_commits_stands_where_its_last_range_stands() -> None:
    """Keys without a commit are not drained, whatever its other ranges say."""
    left, right = WHOLE.split_evenly(2)
    state = life().merged
    fold = CommitFold()
    commits = [
        ("half", left, {9: 1004}),
        ("all", left, {9: 1004}),
        ("all", right, {1: 1003, 5: 2, 6: 12, 7: 3, 8: 2}),
    ]
    for offset, (group, range_, positions) in enumerate(commits):
        commit = RangeCommit(group, PARENT, range_, {s: Position(n) for s, n in positions.items()}, "m", 1)
        fold.fold(commit.key, commit.encode(), offset)
    found = positions_by_range_commits(fold, state)
    assert found["half"] == {phantom(0): 8, phantom(1): 5}
    assert found["all"][phantom(2)] == 12
    assert found["all"][phantom(3)] == 2
    ends = ends_to_reach(state, "orders.split-3-1")
    assert [str(u) for u in undrained(ends, {}, found)] == [
        "group all stands at 2 in orders.split-3-1/3, which ends at 6",
        "group half has no commit in orders.split-3-1/2, which ends at 12",
        "group half has no commit in orders.split-3-1/3, which ends at 6",
    ]


def test_a_group_has_read_what_its_ordinary_offsets_and_its_range_commits_both_say() -> None:
    """Whoever may commit at all can forge range commits of a group, but not its ordinary offsets."""
    state, fold = life().merged, CommitFold()
    for offset, group in enumerate(
        ("lagging", "plain", "honest", "forgotten", "elsewhere", "without a commit")
    ):
        commit = RangeCommit(group, PARENT, WHOLE, {9: Position(1004)}, "m", 1)
        fold.fold(commit.key, commit.encode(), offset)
    drained = positions_by_range_commits(fold, state)["honest"]
    ordinary = {
        "lagging": drained | {phantom(2): 3},
        "plain": {PARENT: 700},
        "honest": drained,
        "elsewhere": {PhysicalPartition("other", 0): 1},
        "ordinary only": {phantom(2): 5},
        "began": {PhysicalPartition(slots_topic(PARENT.topic), 0): 0},
    }
    enrolment = Enrolment(PARENT.topic, "id", Partitioner.EXPLICIT, settled=True, slots=2)
    known = {group: ordinary[group] for group in groups_of(ordinary, topics_of(state, enrolment))}
    found = proven_positions({**known, "without a commit": {}}, fold, state)
    assert found["lagging"][phantom(2)] == 3 and found["plain"] == {PARENT: 700}
    assert found["honest"] == found["forgotten"] == found["elsewhere"] == drained
    assert found["ordinary only"] == {phantom(2): 5}
    assert not found["began"].keys() & drained.keys()
    ends = ends_to_reach(state, "orders.split-3-1")
    assert {u.group for u in undrained(ends, {}, found)} == {
        "lagging",
        "plain",
        "ordinary only",
        "began",
        "without a commit",
    }


def test_a_tail_never_reads_on_behind_a_record_of_a_newer_version() -> None:
    tail = LogTail.__new__(LogTail)
    tail._stopped = None

    def newer(_message: object) -> None:
        raise FutureVersionError("newer")

    tail._fold = newer
    with pytest.raises(FutureVersionError):
        tail._hand_over(FakeMessage(None, None))  # type: ignore[arg-type]
    with pytest.raises(FutureVersionError):
        tail.poll(0)
