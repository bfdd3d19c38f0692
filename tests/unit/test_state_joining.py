"""A member that is to have warm copies before it joins its group: when it joins, what it does until then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.consumer.group.membership import State
from kpsplit.consumer.state import follower as module
from kpsplit.consumer.state.follower import Copy, Follower
from kpsplit.consumer.state.slots import JoinPolicy, SlotId
from kpsplit.consumer.state.storage import RestoreMarker
from kpsplit.consumer.state.store import StateStore
from kpsplit.errors import AuthorizationError, ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import TOPIC, World
from tests.unit.lane_samples import eventually
from tests.unit.state_fakes import Store
from tests.unit.test_state_follower import LOG, LocalStore, Logs

ONE, TWO, THREE = (SlotId(TOPIC, 0, index, 4) for index in range(3))
POLICY = JoinPolicy(seconds=60, max_lag=10)


@pytest.mark.parametrize(
    ("others", "lags", "waited", "joins"),
    [
        ({ONE, TWO}, {ONE: 10, TWO: 0}, 0, True),
        ({ONE, TWO}, {ONE: 11, TWO: 0}, 0, False),
        ({ONE, TWO}, {ONE: 0, TWO: None}, 0, False),
        ({ONE, TWO}, {ONE: 0}, 0, True),
        ({ONE}, {ONE: 0, TWO: 99}, 0, True),
        ({ONE}, {ONE: 11}, 60, True),
        (None, {}, 59, False),
        (None, {}, 60, True),
        (set(), {}, 0, True),
        (set(), {ONE: None}, 0, True),
    ],
    ids=[
        "all-lack-little",
        "one-lacks-much",
        "one-is-not-known-yet",
        "one-cannot-be-read",
        "a-standby-of-no-slot-of-others",
        "time-out",
        "others-are-not-known",
        "others-are-not-known-in-time",
        "nobody-goes-on",
        "nobody-goes-on-with-what-is-followed",
    ],
)
def test_a_member_joins_when_its_copies_lack_little_or_waiting_would_serve_nobody(
    others: set[SlotId] | None, lags: dict[SlotId, int | None], waited: float, joins: bool
) -> None:
    assert bool(POLICY.reason(others, lags, waited)) is joins


def test_without_the_setting_nothing_is_waited_for() -> None:
    assert JoinPolicy(0, 10).reason({ONE}, {ONE: None}, 0)


@pytest.mark.parametrize(
    ("position", "target", "end", "lag"),
    [(0, 5, None, None), (2, 5, 0, 3), (5, 5, 9, 4), (9, 5, 9, 0), (10, 5, 9, 0)],
)
def test_a_copy_lacks_what_comes_before_the_end_that_was_heard_of_last(
    position: int, target: int, end: int | None, lag: int | None
) -> None:
    copy = Copy(ONE, None, (LOG, 0), RestoreMarker("id", position, 0), target, 0)
    copy.end = end
    assert copy.lag == lag


@pytest.mark.parametrize("setting", [{"warm_seconds": -1}, {"warm_lag": -1}])
def test_settings_below_zero_are_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        StateStore(tmp_path / "state", **setting)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs()
    monkeypatch.setattr(module, "Changelogs", lambda *_: found)
    monkeypatch.setattr(module, "HEAR_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    return found


@pytest.fixture
def store(logs: Logs, tmp_path: Path) -> Iterator[StateStore]:
    """A store that follows changelogs of nobody's brokers."""
    made = StateStore(tmp_path / "state", group="g", warm_seconds=60, warm_lag=0)
    made._follower = Follower(LocalStore(), logs, "g")  # type: ignore[arg-type]
    made._storage, made._opened = SimpleNamespace(close=lambda: None), True  # type: ignore[assignment]
    yield made
    made.close()


def test_a_store_follows_the_slots_of_others_until_they_are_warm_then_only_what_it_keeps(
    store: StateStore, logs: Logs
) -> None:
    logs.length = 3
    assert not store.joins(None, 0)
    assert not store._follower.following()
    logs.heard = False  # the client has not fetched anything yet
    assert not store.joins([ONE, TWO], 0)
    eventually(lambda: set(store._follower.warm()) == {ONE, TWO}, "the copies")
    assert store.stats()["lags"] == {str(ONE): None, str(TWO): None}
    assert not store.joins([ONE, TWO], 0)
    logs.heard = True
    logs.length = 4  # written since the copies began
    eventually(lambda: store.stats()["lags"] == {str(ONE): 1, str(TWO): 1}, "what they lack")
    assert not store.joins([ONE, TWO], 0)
    logs.length = 3
    eventually(lambda: store.joins([ONE, TWO], 0), "warm copies")
    store.assigned({"me": [ONE], "other": [TWO, THREE]}, "me")
    assert not store._follower.following()


def test_a_copy_that_cannot_be_read_is_not_waited_for_and_one_that_is_not_open_yet_is(
    store: StateStore, logs: Logs
) -> None:
    assert not store.joins([ONE], 0), "ordered a moment ago, and nobody knows how it goes"
    eventually(lambda: store.joins([ONE], 0), "the copy")
    logs.unreadable = KpsplitError("not as it has to be")
    assert not store.joins([ONE, TWO], 0)
    eventually(lambda: store.joins([ONE, TWO], 0), "the error")
    assert store.stats()["last_error"] is not None


def test_a_slot_that_was_assigned_by_hand_is_not_taken_from_its_owner(store: StateStore, logs: Logs) -> None:
    logs.length = 3
    store.taken([ONE])
    eventually(lambda: store.ready(ONE), "the slot")
    assert store.joins([ONE], 0)
    assert not store._follower.following()


def test_a_store_that_was_closed_says_so_to_a_member_that_waits(store: StateStore) -> None:
    follower = store._follower
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.joins([ONE], 0)
    assert not follower.following()


class Waiting:
    """A member that waits for warm copies in a group where another owns two slots."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, Store()
        self.store.warm_seconds = 3600.0
        world.slots.state_binding.store = self.store
        self.answer: Members | KpsplitError = owned(other=[0, 1])
        world.group_offsets.members = self.members

    def members(self) -> Members:
        if isinstance(self.answer, KpsplitError):
            raise self.answer
        return self.answer

    def subscribe(self) -> None:
        self.world.engine.ask(lambda: self.world.engine.subscribing.subscribe([TOPIC])).result(10)

    def asked_for(self, others: set[int] | None) -> None:
        """Wait until the store is asked about these slots."""
        known = len(self.store.waits_for)
        self.world.until(lambda: others in self.store.waits_for[known:], f"{others}")


def owned(settled: bool = True, instance: str = "", **slots: list[int]) -> Members:
    place = slots_topic(TOPIC)
    assigned = {
        PhysicalPartition(place, index): Owner(name, "", "", instance)
        for name, indexes in slots.items()
        for index in indexes
    }
    assigned[PhysicalPartition("not ours", 0)] = Owner("other", "", "")
    return Members(True, settled, assigned)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setattr("kpsplit.consumer.group.ownership.PEERS_AGAIN_SECONDS", 0.0)
    with World(group_instance_id="mine") as world:
        yield Waiting(world)


def test_a_member_is_not_in_its_group_before_its_copies_are_warm_and_polls_nothing(waiting: Waiting) -> None:
    world, store = waiting.world, waiting.store
    waiting.subscribe()
    waiting.asked_for({0, 1})
    assert not world.coordinator.topics
    assert world.state is State.PREPARING_REBALANCE
    assert world.poll() is None
    waiting.answer = owned(other=[0, 1, 2])
    waiting.asked_for({0, 1, 2})
    assert not world.coordinator.topics
    store.may_join = True
    world.until(lambda: world.coordinator.topics == [slots_topic(TOPIC)], "the subscription")


def test_a_member_asks_again_while_it_is_being_decided_who_owns_what(waiting: Waiting) -> None:
    waiting.answer = owned(settled=False, other=[0])
    waiting.subscribe()
    waiting.asked_for(None)
    waiting.answer = UNREACHABLE
    waiting.asked_for(None)
    assert not waiting.world.coordinator.topics
    waiting.answer = owned(other=[0])
    waiting.asked_for({0})


UNREACHABLE = KpsplitError("no answer")


@pytest.mark.parametrize(
    "answer",
    [
        Members(False, True, {}),
        owned(),
        owned(instance="mine", before=[0, 1]),
        AuthorizationError("missing the right Describe"),
    ],
    ids=["nobody-is-in-the-group", "nobody-has-slots", "its-own-slots-wait-for-it", "it-may-not-ask"],
)
def test_a_member_joins_at_once_where_nobody_would_go_on_meanwhile_or_it_cannot_know(
    waiting: Waiting, answer: Members | KpsplitError
) -> None:
    waiting.answer = answer
    waiting.subscribe()
    waiting.world.until(lambda: waiting.world.coordinator.topics, "the subscription")
    assert set() in waiting.store.waits_for


def test_a_member_joins_when_the_last_owner_dies_meanwhile(waiting: Waiting) -> None:
    waiting.subscribe()
    waiting.asked_for({0, 1})
    waiting.answer = Members(False, True, {})
    waiting.world.until(lambda: waiting.world.coordinator.topics, "the subscription")


def test_a_member_joins_when_its_time_is_over(waiting: Waiting) -> None:
    waiting.subscribe()
    waiting.asked_for({0, 1})
    waiting.store.warm_seconds = 0.01
    waiting.world.until(lambda: waiting.world.coordinator.topics, "the subscription")


def test_another_subscription_waits_for_its_own_time(waiting: Waiting) -> None:
    world, peers = waiting.world, waiting.world.engine.peers
    waiting.subscribe()
    waiting.asked_for({0, 1})
    world.engine.ask(world.engine.subscribing.leave).result(10)
    world.until(lambda: world.state is State.UNSUBSCRIBED, "the end of the subscription")
    assert not world.coordinator.topics
    ended = time.monotonic()
    waiting.subscribe()
    waiting.asked_for({0, 1})
    assert peers._waiting_since is not None and peers._waiting_since >= ended
    assert not world.coordinator.topics


def test_a_member_can_be_closed_while_it_waits(waiting: Waiting) -> None:
    waiting.subscribe()
    waiting.asked_for({0, 1})
    waiting.world.close()
    assert waiting.world.state is State.CLOSED
    assert not waiting.world.coordinator.topics


def test_copies_are_kept_until_the_member_has_been_given_slots(waiting: Waiting) -> None:
    """Between the two rebalances that move a slot nobody has it, and the group is settled."""
    world, store = waiting.world, waiting.store
    waiting.subscribe()
    waiting.asked_for({0, 1})
    asked: list[int] = []
    waiting.world.group_offsets.members = lambda: asked.append(0) or owned(other=[0])  # type: ignore[func-returns-value]
    store.may_join = True
    world.until(lambda: len(asked) > 5, "questions")
    assert not store.members
    world.coordinator.give(1)
    waiting.world.group_offsets.members = lambda: owned(instance="mine", me=[1])
    world.until(lambda: store.members, "the members")
    assert list(store.members) == ["mine"], "a static member has its name for good"


def test_a_member_that_is_given_no_slots_leaves_the_copies_after_a_while(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kpsplit.consumer.group.ownership.PEERS_EVERY_SECONDS", 0.0)
    waiting.store.may_join = True
    waiting.subscribe()
    waiting.world.until(lambda: waiting.store.members, "the members")
    assert waiting.store.members == {"mine": [], "other": [ONE, TWO]}
