"""The first owner of a slot begins only when nobody has the partition itself any more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.slots.assigned import Found, SlotStart, StartRequest, StillOwnedError
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka import groups
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.unit.engine_world import PARENT, World, slot

ME = "me"
OTHER = Owner("other", "", "")
SLOT = PhysicalPartition("__kpsplit.slots.orders", 0)
LINEAGE = PartitionState.unsplit(PARENT, "id").lineage

NOBODY = Members(True, True, {SLOT: OTHER}, frozenset({SLOT}))
KEPT = Members(True, True, {SLOT: OTHER}, frozenset({SLOT, PARENT}))
OWNED = Members(True, True, {SLOT: OTHER, PARENT: OTHER})
IN_REBALANCE = Members(True, False, {SLOT: OTHER})
EXPELLED = Members(False, True, {})


AS_KAFKA_GO = b"\0\1" + b"\0\0\0\1" + b"\0\6orders" + b"\0\0\0\2\xff\xfe"
"""Version 1 without the list of what is owned: topics and user data, as kafka-go joins.

kafka-python cannot decode it: it gives the bytes, or (3.0) a text made of them.
"""


class Asked(GroupOffsets):
    """A ledger whose log and group the test gives; ``asked``: what it asked, in order."""

    def __init__(self, members: Members, *committed: KeyRange) -> None:
        query_client: Any = SimpleNamespace(committed=self._ordinary)
        super().__init__(SimpleNamespace(), query_client, "g", "earliest")  # type: ignore[arg-type]
        self.asked: list[str] = []
        self._answer = members
        self._fold = CommitFold()
        tail = SimpleNamespace(fold=self._fold, poll=lambda _: None, follow=lambda _: None)
        self._tail = tail  # type: ignore[assignment]
        self._writer = SimpleNamespace(open=lambda _: None)  # type: ignore[assignment]
        for offset, range_ in enumerate(committed):
            record = RangeCommit("g", PARENT, range_, {0: Position(3, None)}, "m", 1)
            self._fold.fold(record.key, record.encode(), offset)

    def _read_log(self, parents: Collection[PhysicalPartition]) -> dict[PhysicalPartition, KpsplitError]:
        self.asked.append("log")
        return {}

    def _ordinary(self, *_: object) -> dict[PhysicalPartition, int]:
        self.asked.append("offsets")
        return {PARENT: 7}

    def _members(self, me: str | None) -> Members:
        assert me == ME
        self.asked.append("members")
        return self._answer


class Classic:
    """A stable classic group in which the slot's owner had more when it joined, as both libraries tell it."""

    def __init__(
        self, joined: object, error: str | None = None, assignor: str = "cooperative-sticky"
    ) -> None:
        answer: Future[Any] = Future()
        given = SimpleNamespace(topic_partitions=[TopicPartition(SLOT.topic, SLOT.partition)])
        member = SimpleNamespace(
            member_id="other", client_id="", host="/", assignment=given, group_instance_id=None
        )
        stable, classic = ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC
        answer.set_result(
            SimpleNamespace(state=stable, type=classic, members=[member], partition_assignor=assignor)
        )
        client = SimpleNamespace(describe_consumer_groups=lambda *_, **__: {"g": answer})
        self.admin: Any = SimpleNamespace(client=client, connection=SimpleNamespace(properties={}))
        told = {
            "member_id": "other",
            "client_id": "",
            "client_host": "/",
            "member_metadata": joined,
            "member_assignment": {"assigned_partitions": [{"topic": SLOT.topic, "partitions": [0]}]},
        }
        self.group = {
            "error": error,
            "group_state": "Stable",
            "protocol_data": assignor,
            "members": [told],
        }

    def ask(self, *_: object) -> Any:
        return {"g": self.group}


def joined_with(*places: PhysicalPartition) -> dict[str, object]:
    owned = [{"topic": p.topic, "partitions": [p.partition]} for p in places]
    return {"topics": ["orders"], "owned_partitions": owned}


@pytest.mark.parametrize(
    ("joined", "known"),
    [
        (joined_with(PARENT, SLOT), KEPT),
        (joined_with(SLOT), NOBODY),
        ({"topics": ["orders"]}, Members(True, True, {SLOT: OTHER})),
        ("", Members(True, True, {SLOT: OTHER})),
        (AS_KAFKA_GO, Members(True, True, {SLOT: OTHER})),
        (AS_KAFKA_GO.decode(errors="backslashreplace"), Members(True, True, {SLOT: OTHER})),
        (AS_KAFKA_GO + b"\0\0", IN_REBALANCE),
        (b"unreadable", IN_REBALANCE),
        (b"\0\1", IN_REBALANCE),
    ],
    ids=[
        "more",
        "the-same",
        "a-client-of-before",
        "nothing",
        "go",
        "go-as-text",
        "cut",
        "unreadable",
        "short",
    ],
)
def test_of_a_classic_group_it_is_known_what_its_members_had_when_they_joined(
    monkeypatch: pytest.MonkeyPatch, joined: object, known: Members
) -> None:
    classic = Classic(joined)
    monkeypatch.setattr(groups, "ask_kafka_python", classic.ask)
    assert groups.describe_members(classic.admin, "g", kept=True) == known
    assert groups.describe_members(classic.admin, "g") == Members(True, True, {SLOT: OTHER})


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
def test_members_that_release_everything_before_they_join_are_not_asked_what_they_had(
    monkeypatch: pytest.MonkeyPatch, assignor: str
) -> None:
    """It takes a client of its own for each group; a cluster may have hundreds of them."""
    monkeypatch.setattr(groups, "ask_kafka_python", None)
    classic = Classic("", assignor=assignor)
    assert groups.describe_members(classic.admin, "g", kept=True) == Members(True, True, {SLOT: OTHER})


def test_a_member_that_is_alone_in_its_group_is_not_asked_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes kafka-python: its import, its objects and one more client, at each start of a new group."""
    monkeypatch.setattr(groups, "ask_kafka_python", None)
    classic = Classic(joined_with(PARENT, SLOT))
    found = groups.describe_members(classic.admin, "g", kept=True, me=OTHER.member)
    assert found == Members(True, True, {SLOT: OTHER})


@pytest.mark.parametrize("me", ["expelled", None])
def test_another_member_that_is_alone_in_the_group_is_asked_what_it_had(
    monkeypatch: pytest.MonkeyPatch, me: str | None
) -> None:
    classic = Classic(joined_with(PARENT, SLOT))
    monkeypatch.setattr(groups, "ask_kafka_python", classic.ask)
    assert groups.describe_members(classic.admin, "g", kept=True, me=me) == KEPT


def test_a_coordinator_that_does_not_say_what_members_had_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classic = Classic("", "[Error 16] NotCoordinatorError")
    monkeypatch.setattr(groups, "ask_kafka_python", classic.ask)
    with pytest.raises(UnreachableError, match="NotCoordinatorError"):
        groups.describe_members(classic.admin, "g", 1.5, kept=True)


@pytest.mark.parametrize(
    ("changes", "by_itself"),
    [
        ({}, False),
        ({"error": "[Error 69] GroupIdNotFoundError"}, True),
        ({"group_state": "PreparingRebalance"}, True),
        ({"protocol_data": "range"}, False),
    ],
    ids=["stable", "of-the-other-protocol", "in-rebalance", "eager"],
)
def test_many_groups_are_asked_with_one_client_and_only_those_that_are_not_stable_by_themselves(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], by_itself: bool
) -> None:
    names, asked, alone = ["a", "b"], list[list[str]](), list[str]()
    listed = [SimpleNamespace(group_id=name, state=ConsumerGroupState.STABLE) for name in names]
    classic = Classic(joined_with(PARENT, SLOT))
    classic.group.update(changes)

    def ask(_: object, __: str, seconds: float, question: Callable[[Any], Any]) -> Any:
        describe = lambda groups: asked.append(list(groups)) or dict.fromkeys(groups, classic.group)  # noqa: E731
        return question(SimpleNamespace(describe_groups=describe))

    def described(_: object, group: str, *__: object, kept: bool) -> Members:
        alone.append(group)
        return KEPT

    monkeypatch.setattr(groups, "every_group", lambda *_: listed)
    monkeypatch.setattr(groups, "ask_kafka_python", ask)
    monkeypatch.setattr(groups, "describe_members", described)
    found = groups.readers_of_topics(classic.admin, {PARENT.topic}, Deadline(60))
    assert found == ([] if changes.get("protocol_data") else names)
    assert (asked, alone) == ([names], names if by_itself else [])


def start(group_offsets: GroupOffsets, *predecessors: PhysicalPartition) -> Found:
    wanted = StartRequest(LINEAGE, Mode.SLOTS, slot(0).range, predecessors=frozenset(predecessors))
    [found] = group_offsets.starts([wanted], ME)
    return found


@pytest.mark.parametrize(
    ("members", "early"),
    [(NOBODY, False), (OWNED, True), (KEPT, True), (IN_REBALANCE, True), (EXPELLED, True)],
)
def test_the_first_owner_of_a_slot_begins_when_nobody_has_the_partition_itself(
    members: Members, early: bool
) -> None:
    """In a rebalance somebody may still work on it whom the coordinator does not name any more.

    In a classic group also between the two rebalances that move a partition: it is stable then.
    """
    group_offsets = Asked(members)
    found = start(group_offsets, PARENT)
    if early:
        assert isinstance(found, StillOwnedError)
    else:
        assert found == SlotStart((Cursor(slot(0).range, {0: 7}),))
    assert group_offsets.asked == (["log", "members"] if early else ["log", "members", "log", "offsets"])


@pytest.mark.parametrize("range_", [slot(0).range, slot(1).range])
def test_once_a_range_of_the_partition_was_committed_nobody_is_asked(range_: KeyRange) -> None:
    """Whoever committed it has asked, and nobody begins to read the partition as a whole any more."""
    group_offsets = Asked(OWNED, range_)
    assert isinstance(start(group_offsets, PARENT), SlotStart)
    assert "members" not in group_offsets.asked


def test_a_commit_of_the_whole_partition_does_not_say_that_nobody_has_it() -> None:
    """It may be that of a member that reads on by a view from the topic's return to plain clients."""
    assert isinstance(start(Asked(OWNED, WHOLE), PARENT), StillOwnedError)
    assert isinstance(start(Asked(NOBODY, WHOLE), PARENT), SlotStart)
    assert isinstance(start(Asked(OWNED, WHOLE, slot(0).range), PARENT), SlotStart)


FORMER = tuple(PhysicalPartition("__kpsplit.slots.orders", number) for number in range(2))
PRESENT = PhysicalPartition("__kpsplit.slots-2.orders", 0)


@pytest.mark.parametrize(
    ("members", "early"),
    [
        (Members(True, True, {PRESENT: OTHER}), False),
        (Members(True, True, {PRESENT: OTHER, FORMER[1]: OTHER}), True),
        (Members(True, True, {PRESENT: OTHER}, frozenset({FORMER[0]})), True),
        (Members(True, False, {PRESENT: OTHER}), True),
        (EXPELLED, True),
    ],
    ids=["free", "owned", "kept", "in-rebalance", "expelled"],
)
def test_a_slot_by_another_number_begins_when_nobody_has_a_former_one_of_its_partition(
    members: Members, early: bool
) -> None:
    """Whatever was committed: that a former owner did so says nothing of where it is now."""
    group_offsets = Asked(members, slot(0).range, slot(1).range)
    found = start(group_offsets, PARENT, *FORMER)
    assert isinstance(found, StillOwnedError if early else SlotStart)


def test_what_a_former_owner_commits_before_it_lets_go_counts() -> None:
    """The log is read again when it is known that nobody has a former slot any more."""
    group_offsets = Asked(Members(True, True, {PRESENT: OTHER}), slot(0).range)
    assert isinstance(start(group_offsets, PARENT, *FORMER), SlotStart)
    assert group_offsets.asked == ["log", "members", "log"]


def test_the_partition_itself_holds_up_no_slot_by_another_number_once_a_range_was_committed() -> None:
    members = Members(True, True, {PRESENT: OTHER, PARENT: OTHER})
    assert isinstance(start(Asked(members, slot(1).range), PARENT, *FORMER), SlotStart)
    assert isinstance(start(Asked(members), PARENT, *FORMER), StillOwnedError)


def test_slots_that_are_assigned_by_hand_begin_whoever_has_the_partition() -> None:
    assert isinstance(start(Asked(OWNED)), SlotStart)


def test_a_slot_that_comes_too_early_is_asked_for_again_and_then_read() -> None:
    with World() as world:
        answers = [StillOwnedError(PARENT), StillOwnedError(PARENT)]
        real = world.group_offsets.starts

        def starts(wanted: list[Any], me: str | None) -> list[Any]:
            assert [w.predecessors for w in wanted] == [{PARENT}] * len(wanted)
            assert me == world.coordinator.member
            return [answers.pop()] * len(wanted) if answers else real(wanted, me)

        world.group_offsets.starts = starts  # type: ignore[method-assign]
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "the slot")
        assert world.count("starts_held_up") == 2
