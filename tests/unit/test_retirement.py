"""A retirement that is broken off: what its error says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupState

from kpsplit.clock import Deadline
from kpsplit.control import retirement as retirement_module
from kpsplit.control.retirement import Retirement, Undrained
from kpsplit.control.returning import partition_obstacle
from kpsplit.errors import (
    AuthorizationError,
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.kafka import coordinators, groups
from kpsplit.kafka.cluster_admin import ClusterAdmin, PartitionFacts, TopicFacts
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    EndedBy,
    Event,
    Finish,
    PartitionState,
    Prepare,
    SubTopic,
    SubTopicState,
)
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC, slots_topic
from tests.unit.samples import UNSPLIT, committed, life, merge_attempt, split_attempt

NAMES = ("orders.split-3-1", "orders.split-3-2")
LEFT = replace(
    UNSPLIT, subtopics=tuple(SubTopic(name, i, 2, SubTopicState.ABANDONED) for i, name in enumerate(NAMES, 1))
)


@dataclass
class Runner:
    """Records what is retired, so many times; then the time is over."""

    times: int
    retired: list[Event] = field(default_factory=list)

    def peek(self, _deadline: Any) -> PartitionState:
        return LEFT

    def claim(self, _deadline: Any, _fit: Any) -> PartitionState:
        return LEFT

    def record(self, state: PartitionState, event: Event, _deadline: Any) -> PartitionState:
        if len(self.retired) == self.times:
            raise DeadlineExceededError("no time left")
        self.retired.append(event)
        return state


class Admin:
    """Knows no sub-topic any more; ``asked``: about which it was asked at once."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def certain(self, names: Iterable[str], _deadline: Any) -> dict[str, None]:
        self.asked.append([*names])
        return dict.fromkeys(names)


def test_retired_subtopics_stay_retired_when_the_next_one_fails() -> None:
    runner = Runner(times=1)
    retirement = Retirement(cast(Any, Admin()), cast(Any, runner), lambda _: None, lambda _: None)
    with pytest.raises(DeadlineExceededError) as caught:
        retirement.run(force=False, deadline=Deadline(10))
    assert len(runner.retired) == 1
    assert caught.value.changed is True


def test_a_retirement_that_is_recorded_is_a_change_though_nothing_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = Runner(times=1)
    facts = TopicFacts("", "id", (PartitionFacts(0, (0,), (0,)),) * 2)
    admin = SimpleNamespace(certain=lambda names, _: dict.fromkeys(names, facts))
    retirement = Retirement(cast(Any, admin), cast(Any, runner), lambda _: None, lambda _: None)
    subtopics = SimpleNamespace(
        check_rights=lambda *_: None, is_empty=lambda _: True, delete_abandoned=kept_back
    )
    monkeypatch.setattr(retirement, "_subtopics", subtopics)
    with pytest.raises(DeadlineExceededError) as caught:
        retirement.run(force=False, deadline=Deadline(10))
    assert len(runner.retired) == 1
    assert caught.value.changed is True


def kept_back(name: str, _deadline: Any) -> bool:
    raise CheckFailedError(f"topic {name} is not deleted: it holds records")


def test_all_that_is_left_over_is_retired() -> None:
    runner, admin = Runner(times=2), Admin()
    retirement = Retirement(cast(Any, admin), cast(Any, runner), lambda _: None, lambda _: None)
    assert retirement.run(force=False, deadline=Deadline(10)) == list(NAMES)
    assert admin.asked == [list(NAMES)]  # certainty takes 10 s: for each one by itself no operation had time


SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
IN_TWO = apply(committed(UNSPLIT, SPLIT, {0: 100}), Finish(SPLIT.id))
MERGE = merge_attempt(IN_TWO, (2, 3), WHOLE)
MERGED = apply(committed(IN_TWO, MERGE, {1: 101, 2: 5, 3: 5}), Finish(MERGE.id))
(NAME,) = (t.name for t in MERGED.subtopics)


class Scene:
    """A merged partition whose sub-topic everybody has drained; ``done`` is what happens to it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state, self.done = MERGED, list[str]()
        self.at_the_claim: PartitionState | None = None
        self.claims = 0
        self.there, self.refusal = True, cast(KpsplitError | None, None)
        self.deleted, self.stale = False, False
        self.behind = 0  # so many looks after the deletion one broker lists it still
        self.seen: list[list[Undrained]] = []  # at each look; after them nobody has anything to read
        monkeypatch.setattr(Retirement, "_undrained", lambda *_: self.seen.pop(0) if self.seen else [])
        self.retirement = Retirement(
            cast(Any, self), cast(Any, self), lambda _: None, lambda step: self.done.append(step.name)
        )
        monkeypatch.setattr(self.retirement._subtopics, "check_rights", self._check_rights)

    def _check_rights(self, *_: Any) -> None:
        if isinstance(self.refusal, AuthorizationError):
            raise self.refusal

    def peek(self, _deadline: Any) -> PartitionState:
        return self.state

    def claim(self, _deadline: Any, fit: Any) -> PartitionState:
        if fit(self.at_the_claim or self.state):
            self.claims += 1
        return self.at_the_claim or self.state

    def record(self, state: PartitionState, event: Event, _deadline: Any) -> PartitionState:
        self.state = apply(state, event)
        return self.state

    def topics(self) -> dict[str, int]:
        return {NAME: 2} if self.there else {}

    def known(self, name: str) -> TopicFacts | None:
        facts = (PartitionFacts(0, (0,), (0,)),) * 2
        return TopicFacts(name, MERGED.subtopics[0].topic_id or "", facts) if self.there else None

    def certain(self, names: Iterable[str], deadline: Any) -> dict[str, TopicFacts | None]:
        if self.stale:  # one broker does not know it, and the others do not answer
            deadline.check("most brokers to agree")
            raise DeadlineExceededError("waited for most brokers to agree")
        return {name: self.known(name) for name in names}

    def delete(self, name: str, _seconds: float) -> bool:
        if self.deleted:
            return False
        assert self.state.subtopic(name).state is SubTopicState.RETIRED  # type: ignore[union-attr]
        if self.refusal is not None:
            raise self.refusal
        self.there, self.deleted = self.behind > 0, True
        return True

    def await_gone(self, name: str, deadline: Deadline) -> None:
        assert (name, self.deleted) == (NAME, True)
        while self.there:
            self.behind -= 1
            self.there = self.behind > 0
            deadline.check(f"every broker to forget {name}")

    def run(self, *, force: bool = False, seconds: float = 10) -> list[str]:
        return self.retirement.run(force, Deadline(seconds))


def test_a_retirement_is_recorded_before_the_sub_topic_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert scene.run() == [NAME]
    assert (scene.done, scene.there) == (["Retire", "Delete"], False)
    assert scene.run() == []


MOVED_BACK = Undrained("billing", PhysicalPartition(NAME, 0), 0, 5)


@pytest.mark.parametrize("force", [False, True])
def test_no_group_is_blamed_where_a_topic_of_somebody_else_is_kept(
    monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """Neither a group that reads on nor --force would change that."""
    scene = Scene(monkeypatch)
    theirs = TopicFacts(NAME, "made again", (PartitionFacts(0, (0,), (0,)),) * 2)
    monkeypatch.setattr(scene, "known", lambda _: theirs)
    with pytest.raises(CheckFailedError, match="this is another topic of the same name") as caught:
        scene.run(force=force)
    assert caught.value.hint == f"look at {NAME}, delete it yourself if nobody needs it, then retry"


def test_a_group_that_moved_back_since_the_look_keeps_the_sub_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim lies in between, and it may wait for its turn."""
    scene = Scene(monkeypatch)
    scene.seen = [[], [MOVED_BACK]]
    with pytest.raises(
        CheckFailedError, match=f"nothing was retired: {NAME}: group billing stands at 0"
    ) as caught:
        scene.run()
    assert caught.value.changed is False
    assert (scene.done, scene.there, scene.state, scene.claims) == (["Keep"], True, MERGED, 1)


def test_a_sub_topic_that_is_gone_is_retired_as_planned_whatever_groups_have_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers forget a group's offsets with the topic: nobody seems to have drained it, ever."""
    scene = Scene(monkeypatch)
    scene.there, scene.seen = False, [[MOVED_BACK]]
    assert scene.retirement.plan(force=False, deadline=Deadline(10)).going == (NAME,)
    assert scene.run() == [NAME]
    assert scene.done == ["Retire", "Delete"]


def test_each_look_is_at_the_slots_that_the_topic_has_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be changed while a claim waits for its turn."""
    asked: list[set[str]] = []
    monkeypatch.setattr(retirement_module, "known_groups", lambda *given: asked.append(given[1]) or {})
    monkeypatch.setattr(retirement_module, "range_commits", lambda *_: CommitFold())
    first = Enrolment(MERGED.parent.topic, "id", Partitioner.EXPLICIT, settled=True, slots=4)
    enrolments = iter([first, replace(first, slots=8, generation=2)])
    retirement = Retirement(
        cast(Any, SimpleNamespace(start_offsets=lambda _: {})),
        cast(Any, None),
        lambda _: next(enrolments),
        lambda _: None,
    )
    for generation in (1, 2):
        retirement._groups(MERGED, Deadline(10))
        assert slots_topic(MERGED.parent.topic, generation) in asked[-1]
    assert len(asked) == 2


def test_groups_are_looked_at_once_before_the_claim_and_after_it_for_each_sub_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a group does while one is deleted is seen before the next is recorded as retired."""
    merged, done = life().merged, list[str]()
    there = {t.name: TopicFacts(t.name, t.topic_id or "", ()) for t in merged.subtopics}
    monkeypatch.setattr(retirement_module, "known_groups", lambda *_: done.append("look") or {})
    monkeypatch.setattr(retirement_module, "range_commits", lambda *_: CommitFold())
    admin = SimpleNamespace(
        certain=lambda *_: there,
        start_offsets=lambda _: {},
        delete=lambda *_: True,
        await_gone=lambda *_: None,
    )
    log = SimpleNamespace(
        peek=lambda _: merged,
        claim=lambda *_: done.append("claim") or merged,
        record=lambda state, event, _: done.append("retire") or apply(state, event),
    )
    retirement = Retirement(cast(Any, admin), cast(Any, log), lambda _: None, lambda _: None)
    monkeypatch.setattr(retirement, "_subtopics", SimpleNamespace(check_rights=lambda *_: None))
    assert retirement.run(force=False, deadline=Deadline(10)) == list(there)
    assert done == ["look", "claim", "look", "retire", "look", "retire"]


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_retirement_of_unknown_outcome_is_decided_by_another_claim(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    scene, events = Scene(monkeypatch), list[Event]()

    def record(state: PartitionState, event: Event, _deadline: Any) -> PartitionState:
        events.append(event)
        if written or len(events) > 1:
            scene.state = apply(state, event)
        if len(events) == 1:
            raise UnknownOutcomeError("Unknown broker error")
        return scene.state

    monkeypatch.setattr(scene, "record", record)
    assert scene.retirement.run(force=False, deadline=Deadline(10)) == [NAME]
    assert scene.done[-2:] == ["Retire", "Delete"]
    assert (scene.claims, len(events)) == (2, 2 - written)


def test_a_retirement_that_is_forced_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.seen = [[MOVED_BACK], [MOVED_BACK]]
    assert scene.run(force=True) == [NAME]
    assert (scene.done, scene.seen) == (["Forced", "Retire", "Delete"], [[MOVED_BACK]])


def test_a_sub_topic_that_only_a_stale_broker_does_not_know_is_not_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.stale = True
    with pytest.raises(DeadlineExceededError):
        scene.run()
    assert not scene.done and scene.state == MERGED


def test_what_is_deleted_already_and_a_broker_lists_still_is_not_deleted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.behind = 2
    with pytest.raises(DeadlineExceededError) as caught:
        scene.run(seconds=0)
    assert caught.value.changed is True
    assert caught.value.hint == f"run again: kpsplit retire {UNSPLIT.parent}"
    assert scene.there and scene.run() == [], "it is waited for, and not reported as deleted by this run"
    assert (scene.done, scene.there) == (["Retire"], False)


def test_a_retirement_is_not_over_while_one_broker_lists_the_sub_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``kpsplit unenroll --merge`` looks at the topics next, and may ask that broker."""
    scene = Scene(monkeypatch)
    scene.behind = 3
    assert scene.run() == [NAME]
    obstacle = partition_obstacle(scene.state, scene.topics())
    assert (scene.done, scene.there, obstacle) == (["Retire", "Delete"], False, None)


def test_what_was_recorded_and_not_deleted_is_deleted_by_the_next_retirement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.refusal = DeadlineExceededError("no answer")
    with pytest.raises(DeadlineExceededError) as caught:
        scene.run()
    assert caught.value.changed is True
    assert caught.value.hint == f"run again: kpsplit retire {UNSPLIT.parent}"
    scene.refusal = None
    revision = scene.state.revision
    assert scene.run() == [NAME]
    assert (scene.state.revision, scene.done) == (revision, ["Retire", "Delete"])


@pytest.mark.parametrize("under_way", [False, True], ids=["over again", "under way"])
def test_a_retirement_fences_nobody_who_has_begun_something_since_it_looked(
    monkeypatch: pytest.MonkeyPatch, under_way: bool
) -> None:
    scene = Scene(monkeypatch)
    split = split_attempt(MERGED, MERGED.lineage.open_segments()[0].id, WHOLE.split_evenly(2), "newer")
    begun = apply(MERGED, Prepare(split))
    over = apply(begun, Abort(split.id, EndedBy.OPERATOR, "done"))
    scene.at_the_claim = begun if under_way else over
    with pytest.raises(ConflictError) as caught:
        scene.run()
    assert caught.value.changed is False and scene.claims == 0


def test_a_retirement_without_the_right_to_delete_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.refusal = AuthorizationError("missing Delete")
    with pytest.raises(AuthorizationError) as caught:
        scene.run()
    assert caught.value.changed is False
    assert scene.state is MERGED


class Rebalancing:
    """A group without commits whose members own nothing while it rebalances, for so many looks."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        looks: int,
        owned: PhysicalPartition,
        *,
        to_release: bool = False,
    ) -> None:
        self._left, self._owned, self._to_release = looks, owned, to_release
        group = SimpleNamespace(group_id="new", state=ConsumerGroupState.PREPARING_REBALANCING)
        monkeypatch.setattr(groups, "every_group", lambda *_: [group])
        monkeypatch.setattr(groups, "describe_members", self._described)
        monkeypatch.setattr(groups, "_stable_classic", lambda *_: {})
        monkeypatch.setattr(groups.time, "sleep", lambda _: None)

    def _described(self, *_: object, kept: bool = False) -> Members:
        self._left -= 1
        owned = {} if self._left >= 0 else {self._owned: Owner("m", "client", "host")}
        if self._to_release and kept:
            return Members(True, True, {}, frozenset(owned))
        return Members(True, self._left < 0, {} if self._to_release else owned)

    def readers(self, seconds: float = 60) -> list[str]:
        return groups.readers_of_topics(cast(Any, None), {UNSPLIT.parent.topic}, Deadline(seconds))


def test_a_group_that_rebalances_is_asked_until_it_is_known_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Rebalancing(monkeypatch, 3, UNSPLIT.parent).readers() == ["new"]
    assert Rebalancing(monkeypatch, 3, PhysicalPartition("elsewhere", 0)).readers() == []


def test_a_group_whose_member_has_a_slot_to_release_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classic group is stable then, and nobody is assigned the slot."""
    assert Rebalancing(monkeypatch, 0, UNSPLIT.parent, to_release=True).readers() == ["new"]


def test_a_group_that_does_not_come_to_rest_counts_as_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_REBALANCE_SECONDS", 0.0)
    assert Rebalancing(monkeypatch, 10**9, PhysicalPartition("elsewhere", 0)).readers() == ["new"]


def test_a_group_that_does_not_come_to_rest_takes_no_time_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is asked in turn, and a later one does not count by a single look."""
    monkeypatch.setattr(groups, "_REBALANCE_SECONDS", 0.05)
    rebalancing = Rebalancing(monkeypatch, 0, UNSPLIT.parent)
    looks = {"restless": 10**9, "short": 3, "stable": 0}
    listed = [SimpleNamespace(group_id=name, state=ConsumerGroupState.STABLE) for name in looks]

    def described(_: object, group: str, *__: object, kept: bool) -> Members:
        looks[group] -= 1
        return Members(True, looks[group] < 0, {})

    monkeypatch.setattr(groups, "every_group", lambda *_: listed)
    monkeypatch.setattr(groups, "describe_members", described)
    assert rebalancing.readers() == ["restless"]
    assert looks["stable"] == looks["short"] == -1, "it was asked again though it was settled"


@pytest.mark.parametrize(
    ("leaders", "lists"),
    [([[0, 1], [0, 1]], 1), ([[0, None], [0, 1], [0, 1]], 1), ([[0, 1], [1, 1], [1, 1], [1, 1]], 2), ([], 1)],
)
def test_a_list_of_groups_counts_where_the_same_coordinators_are_there_before_and_after_it(
    monkeypatch: pytest.MonkeyPatch, leaders: list[list[int | None]], lists: int
) -> None:
    told, listed = iter(leaders), []
    monkeypatch.setattr(coordinators, "_check_none_is_denied", lambda _: None)
    monkeypatch.setattr(coordinators, "_leaders", lambda *_: next(told, []))
    monkeypatch.setattr(coordinators, "_ask_each", lambda *_: None)
    monkeypatch.setattr(coordinators, "_listed", lambda _: listed.append(1) or [f"list {len(listed)}"])
    assert coordinators.every_group(cast(Any, None), Deadline(60)) == [f"list {lists}"]
    assert next(told, None) is None


def test_groups_whose_coordinators_do_not_come_to_rest_may_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = itertools.count()
    monkeypatch.setattr(coordinators, "_check_none_is_denied", lambda _: None)
    monkeypatch.setattr(coordinators, "_leaders", lambda *_: [next(leaders)])
    monkeypatch.setattr(coordinators, "_ask_each", lambda *_: None)
    monkeypatch.setattr(coordinators, "_listed", lambda _: [])
    with pytest.raises(UnreachableError, match="its leaders move"):
        coordinators.every_group(cast(Any, None), Deadline(0.2))


class WithoutOffsetLog(ClusterAdmin):
    """Lists no offset log: it may not be described, or else the broker that is asked is stale."""

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed
        self.connection = cast(Any, None)

    def topics(self) -> dict[str, int]:
        return {UNSPLIT.parent.topic: 4, CONTROL_TOPIC: 16}

    def layout(self, topic: str) -> None:
        if not self._allowed:
            raise AuthorizationError(f"missing Describe on {topic}")


@pytest.mark.parametrize(("allowed", "error"), [(False, AuthorizationError), (True, DeadlineExceededError)])
def test_no_range_commit_is_taken_for_missing_where_the_offset_log_is_not_listed(
    allowed: bool, error: type[KpsplitError]
) -> None:
    with pytest.raises(error):
        groups.range_commits(WithoutOffsetLog(allowed), [UNSPLIT.parent], Deadline(0.3))
