"""An enrolment that is broken off: what its error says, and when it does not even begin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import enrolment as module
from kpsplit.control import session as session_module
from kpsplit.control import unenrolment as unenrolment_module
from kpsplit.control.enrolment import Enroller
from kpsplit.control.own_topics import changed
from kpsplit.control.plans import Check
from kpsplit.errors import (
    AuthorizationError,
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    KpsplitError,
    RecordError,
    UnreachableError,
    UsageError,
    after_a_change,
)
from kpsplit.kafka import groups as groups_module
from kpsplit.kafka import kafka_python
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    Settings,
    SlotDivision,
    decode_settings,
    encode_settings,
)
from kpsplit.splitter.records.keys import SETTINGS_KEY, offsets_partition
from kpsplit.splitter.records.offsets import Position, RangeCommit

TOPIC = TopicFacts("orders", "id", (PartitionFacts(0, (0,), (0,)),))
PARENT = PhysicalPartition("orders", 0)


@dataclass
class Tail:
    """The control topic as the enroller sees it. ``fails``: reading it does, once something is recorded."""

    lease_ms: int
    view: ControlView = field(default_factory=ControlView)
    fails: str = ""

    def __post_init__(self) -> None:
        self.view.settings = Settings(self.lease_ms)

    def poll(self, _seconds: float) -> None:
        """Nothing comes."""

    def read_all(self, _deadline: Any) -> ControlView:
        if self.fails == "read_all" and self.view.enrolments:
            raise UnreachableError("no brokers")
        return self.view

    def read_to(self, _ends: Any, _deadline: Any) -> None:
        if self.fails == "read_to":
            raise DeadlineExceededError("waited for the control topic")


@dataclass
class World:
    """What an enrolment writes."""

    tail: Tail
    written: list[Enrolment] = field(default_factory=list)
    slots_topics: int = 0
    makes_slots: bool = False
    ensured: list[SlotDivision] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    names: tuple[str, ...] = ()
    steps: Callable[[StepDone], None] = lambda _: None
    claims: int = 0
    meanwhile: Callable[[], object] = lambda: None
    fenced: list[Enrolment | None] = field(default_factory=list)
    """For each of our next records that is refused: what another operator has written by then."""
    offsets: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """The offset log."""

    def look(self, deadline: Any) -> Enrolment | None:
        return self.tail.read_all(deadline).enrolments.get("orders")

    def claim(self, _deadline: Any) -> Enrolment | None:
        self.claims += 1
        self.meanwhile()
        return self.tail.view.enrolments.get("orders")

    def record(self, enrolment: Enrolment, deadline: Any, hint: str) -> None:
        self._refuse_fenced()
        self.written.append(enrolment)
        self.tail.view.enrolments["orders"] = enrolment
        with after_a_change(hint):
            self.tail.read_to({}, deadline)

    def withdraw(self, commits: Sequence[tuple[int, bytes]], _deadline: Any) -> None:
        self._refuse_fenced()
        self.offsets += [(key, None) for _, key in commits]

    def _refuse_fenced(self) -> None:
        assert self.claims, "an operator that has not claimed the topic is refused by nobody"
        if self.fenced:
            if (other := self.fenced.pop(0)) is not None:
                recorded(self, other)
            raise FencedError("another operator took over")

    def range_commits(self, *_: Any) -> CommitFold:
        fold = CommitFold()
        for offset, (key, value) in enumerate(self.offsets):
            fold.fold(key, value, offset)
        return fold

    def decide(self, _topic: Any, known: Enrolment | None, *_: Any) -> int:
        return 4 if known is None or known.slots is None else known.slots

    def ensure(self, _topic: Any, division: SlotDivision, *_: Any) -> bool:
        self.slots_topics += 1
        self.ensured.append(division)
        return self.makes_slots

    def check_rights(self, *_: Any) -> None:
        """All are there."""

    def topics(self) -> dict[str, int]:
        return dict.fromkeys(self.names, 1)

    def delete(self, name: str, _seconds: float) -> bool:
        self.deleted.append(name)
        return True

    def enrol(
        self,
        seconds: float,
        known: Enrolment | None = None,
        slots: int | None = None,
        before: Enrolment | None = None,
    ) -> Enrolment:
        session = SimpleNamespace(tail=lambda _: self.tail, enrolments=lambda *_: self, admin=self)
        enroller = Enroller(cast(Any, session), cast(Any, self), self.steps)
        return enroller.enrol(TOPIC, Partitioner.EXPLICIT, known, slots, Deadline(seconds), before)


def test_an_enrolment_that_cannot_be_settled_in_time_does_not_begin() -> None:
    world = World(Tail(lease_ms=60_000))
    with pytest.raises(DeadlineExceededError, match="takes a lease") as caught:
        world.enrol(60.0)
    assert caught.value.changed is False
    assert "--timeout of more than 76" in (caught.value.hint or "")
    assert (world.written, world.slots_topics) == ([], 0)


@pytest.mark.parametrize("fails", ["read_all", "read_to"])
def test_an_enrolment_that_is_broken_off_says_how_it_is_settled(fails: str) -> None:
    world = World(Tail(lease_ms=1, fails=fails))
    with pytest.raises(KpsplitError) as caught:
        world.enrol(60.0)
    assert caught.value.changed is True
    assert "run: kpsplit enroll orders" in (caught.value.hint or "")
    assert [e.settled for e in world.written] == [False]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("slots", [None, 16], ids=["first", "change"])
def test_a_slots_topic_that_was_made_is_a_change_though_the_enrolment_is_refused(
    monkeypatch: pytest.MonkeyPatch, slots: int | None, made: bool
) -> None:
    """The right to claim the topic is missing, say."""
    world = World(Tail(lease_ms=1), makes_slots=made)
    Groups(monkeypatch)

    def refused() -> None:
        raise AuthorizationError("could not claim topic orders: missing Write")

    world.meanwhile = refused
    with pytest.raises(AuthorizationError) as caught:
        world.enrol(60.0, None if slots is None else recorded(world, FIRST), slots)
    assert (caught.value.changed, world.written) == (made, [])


def test_an_enrolment_is_settled_behind_a_lease() -> None:
    world = World(Tail(lease_ms=1))
    assert world.enrol(60.0).settled
    assert [(e.settled, e.slots) for e in world.written] == [(False, 4), (True, 4)]


class MadeAgain:
    """A topic that was deleted and made again, of whose old one groups have committed; ``done``: in order."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ids: dict[int, str] | KpsplitError,
        former: int | None = None,
    ) -> None:
        self.done: list[str] = []
        self.readers: list[str] = []
        self.asked: list[set[str]] = []
        facts = TopicFacts("orders", "new", (PartitionFacts(0, (0,), (0,)),))
        view = ControlView()
        view.initialised = True
        old = Enrolment("orders", "old", Partitioner.EXPLICIT, settled=True, slots=4)
        view.enrolments["orders"] = old if former is None else replace(old, generation=2, former_slots=former)
        self.session: Any = SimpleNamespace(
            begin=lambda: Deadline(10),
            read=lambda _: view,
            connection=None,
            admin=SimpleNamespace(describe=lambda _: facts, delete=self._delete),
        )
        monkeypatch.setattr(groups_module, "readers_of_topics", self._readers)

        def named(_connection: object, _topic: str) -> dict[int, str]:
            if isinstance(ids, KpsplitError):
                raise ids
            return ids

        monkeypatch.setattr(kafka_python, "topic_ids", named)
        monkeypatch.setattr(module, "check_records", lambda *_: Check("", True, ""))
        enroller = SimpleNamespace(enrol=lambda *_: self.done.append("enrol"))
        monkeypatch.setattr(module, "enroller", lambda *_: enroller)

    def _readers(self, _admin: object, topics: set[str], _deadline: Deadline) -> list[str]:
        self.asked.append(topics)
        return self.readers

    def _delete(self, name: str, _seconds: float) -> bool:
        self.done.append(f"delete {name}")
        return True

    def enrol(self) -> None:
        module.enrol(self.session, "orders", Partitioner.EXPLICIT, lambda _: None, None)


def test_a_topic_that_was_made_again_is_enrolled_where_every_broker_names_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = MadeAgain(monkeypatch, {1: "new", 2: "new", 3: "new"})
    world.enrol()
    assert world.done == ["enrol"]


@pytest.mark.parametrize(
    "ids",
    [{1: "new", 2: "old", 3: "new"}, {1: "new", 2: ""}, {}, UnreachableError("no answer in time")],
    ids=["a-stale-broker", "one-that-knows-none", "nobody", "no-answer"],
)
def test_nothing_is_withdrawn_because_one_broker_names_another_topic(
    monkeypatch: pytest.MonkeyPatch, ids: dict[int, str] | KpsplitError
) -> None:
    """It may be the stale one, and the topic the one that is enrolled."""
    world = MadeAgain(monkeypatch, ids)
    with pytest.raises(UnreachableError) as caught:
        world.enrol()
    assert (world.done, caught.value.changed) == ([], False)


def test_a_topic_that_is_made_again_in_a_change_loses_its_former_slots_when_nobody_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new enrolment does not name them: nobody would wait for who has one."""
    world = MadeAgain(monkeypatch, {1: "new"}, former=2)
    world.readers = ["billing"]
    with pytest.raises(ConflictError, match="billing") as caught:
        world.enrol()
    assert (world.done, caught.value.changed) == ([], False)
    assert caught.value.hint and "kpsplit enroll orders" in caught.value.hint
    world.readers = []
    world.enrol()
    assert world.asked == [{"orders", OLD, NEW}] * 2
    assert world.done == [f"delete {OLD}", "enrol"]


FIRST = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=True, slots=4)
OLD, NEW = "__kpsplit.slots.orders", "__kpsplit.slots-2.orders"


class Groups:
    """The groups of the cluster: who has something of the former slots, look by look; then nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: str) -> None:
        self.looks, self.asked, self.hidden = [*looks], list[set[str]](), False
        monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(module, "group_names", self._names)
        monkeypatch.setattr(module, "readers_of_topics", self._readers)

    def _names(self, *_: Any) -> list[str]:
        if self.hidden:
            raise UnreachableError("groups may be hidden")
        return []

    def _readers(self, _admin: Any, topics: set[str], _deadline: Any) -> list[str]:
        self.asked.append(topics)
        return [self.looks.pop(0)] if self.looks else []


def recorded(world: World, enrolment: Enrolment) -> Enrolment:
    world.tail.view.enrolments["orders"] = enrolment
    return enrolment


def test_another_number_of_slots_is_recorded_settled_and_the_former_ones_removed_when_nobody_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, groups, done = World(Tail(lease_ms=1)), Groups(monkeypatch, "g", "g"), list[str]()
    world.steps = lambda step: done.append(step.name)
    found = world.enrol(60.0, recorded(world, FIRST), 16)
    begun = replace(FIRST, settled=False, slots=16, generation=2, former_slots=4)
    settled = replace(begun, settled=True)
    assert world.written == [begun, settled, found] and found == replace(settled, former_slots=None)
    assert world.ensured == [SlotDivision(OLD, 4), SlotDivision(NEW, 16)] and world.deleted == [OLD]
    assert groups.asked == [{OLD}] * 3
    assert done == ["Change", "Settle", "Settled", "Release", "DeleteSlots", "Changed"]


@pytest.mark.parametrize("asked", [None, 4])
def test_the_same_number_of_slots_changes_nothing(monkeypatch: pytest.MonkeyPatch, asked: int | None) -> None:
    world, groups = World(Tail(lease_ms=1)), Groups(monkeypatch)
    assert world.enrol(60.0, recorded(world, FIRST), asked) == FIRST
    assert (world.written, world.deleted, groups.asked) == ([], [], [])


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("asked", [None, 16])
def test_a_change_that_was_broken_off_is_finished(
    monkeypatch: pytest.MonkeyPatch, settled: bool, asked: int | None
) -> None:
    world, groups = World(Tail(lease_ms=1)), Groups(monkeypatch)
    begun = replace(FIRST, settled=settled, slots=16, generation=2, former_slots=4)
    finished = replace(begun, settled=True, former_slots=None)
    assert world.enrol(60.0, recorded(world, begun), asked) == finished
    assert world.written == [replace(begun, settled=True), finished][settled:]
    assert (world.deleted, len(groups.asked)) == ([OLD], 1)


def test_a_change_is_refused_while_the_one_before_is_not_finished() -> None:
    begun = replace(FIRST, slots=16, generation=2, former_slots=4)
    with pytest.raises(ConflictError, match="being changed from 4 to 16") as caught:
        changed(begun, 8)
    assert "run: kpsplit enroll orders" in (caught.value.hint or "")
    assert changed(begun, 16) is None and changed(None, 8) is None and changed(FIRST, None) is None


@pytest.mark.parametrize("wrong", [0, 65])
def test_a_number_of_slots_out_of_bounds_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        changed(FIRST, wrong)


def test_a_change_that_cannot_be_finished_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that are hidden, groups that keep state by the slots, or no time for a lease."""
    world, groups = World(Tail(lease_ms=1)), Groups(monkeypatch)
    recorded(world, FIRST)
    world.names = ("__kpsplit.changelog.g.orders", "__kpsplit.changelog.g.payments", "orders")
    with pytest.raises(CheckFailedError, match="by its 4 slots: __kpsplit.changelog.g.orders;"):
        world.enrol(60.0, FIRST, 16)
    groups.hidden = True
    with pytest.raises(UnreachableError, match="hidden"):
        world.enrol(60.0, FIRST, 16)
    groups.hidden, world.names = False, ()
    world.tail.view.settings = Settings(60_000)
    with pytest.raises(DeadlineExceededError, match="takes a lease") as caught:
        world.enrol(60.0, FIRST, 16)
    assert (world.written, world.slots_topics, caught.value.changed) == ([], 0, False)


def test_former_slots_that_are_not_released_in_time_stay_and_the_error_says_who_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch, *["busy"] * 1_000_000)
    with pytest.raises(DeadlineExceededError, match=f"group busy to release the slots of {OLD}") as caught:
        world.enrol(0.5, recorded(world, FIRST), 16)
    assert caught.value.changed and "kpsplit enroll orders" in (caught.value.hint or "")
    assert world.deleted == [] and world.written[-1].former_slots == 4


def test_a_change_that_another_operator_has_made_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch)
    recorded(world, replace(FIRST, slots=8, generation=2))
    with pytest.raises(ConflictError, match="by another process"):
        world.enrol(60.0, FIRST, 16)
    assert (world.written, world.deleted, world.claims) == ([], [], 0), "who is at work was fenced"


@pytest.mark.parametrize("same", [False, True])
def test_what_another_operator_records_until_the_claim_decides_whether_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Its record may be decided, or heard of, only after the first look."""
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch)
    recorded(world, FIRST)
    begun = replace(FIRST, settled=False, slots=16 if same else 8, generation=2, former_slots=4)
    world.meanwhile = lambda: world.written or recorded(world, begun)
    if same:
        found = world.enrol(60.0, FIRST, 16)
        assert world.written == [replace(begun, settled=True), found] and found.slots == 16
    else:
        with pytest.raises(ConflictError, match="by another process"):
            world.enrol(60.0, FIRST, 16)
        assert world.written == []


ANOTHER = replace(FIRST, slots=32, generation=3, former_slots=16)


@pytest.mark.parametrize(
    ("step", "written"), [("Settle", [False]), ("Release", [False, True]), ("DeleteSlots", [False, True])]
)
def test_nothing_is_written_by_an_operator_that_others_have_overtaken_in_a_step(
    monkeypatch: pytest.MonkeyPatch, step: str, written: list[bool]
) -> None:
    """An old number of slots would be in force again, and two slots of one key range be read."""
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch)
    recorded(world, FIRST)
    world.steps = lambda done: recorded(world, ANOTHER) and None if done.name == step else None
    with pytest.raises(ConflictError, match="by another process"):
        world.enrol(60.0, FIRST, 16)
    assert [e.settled for e in world.written] == written
    assert world.tail.view.enrolments["orders"] == ANOTHER


@pytest.mark.parametrize("before", [None, replace(FIRST, topic_id="old")])
def test_a_first_enrolment_is_written_over_none_that_came_meanwhile(before: Enrolment | None) -> None:
    world = World(Tail(lease_ms=1))
    if before is not None:
        recorded(world, before)
    ensure = world.ensure
    world.ensure = lambda *given: recorded(world, ANOTHER) and ensure(*given)  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="by another process"):
        world.enrol(60.0, before=before)
    assert not world.written


def committed(position: int) -> tuple[bytes, bytes]:
    commit = RangeCommit("g", PARENT, WHOLE, {0: Position(position)}, "m", 1)
    return commit.key, commit.encode()


def cursor(world: World) -> Any:
    return world.range_commits().cursor("g", PARENT, WHOLE, PartitionState.unsplit(PARENT, "id").lineage)


def made_again(monkeypatch: pytest.MonkeyPatch, count: Callable[[object], int]) -> tuple[World, Enrolment]:
    """Return a world in which a group has committed of a topic that is gone, and the enrolment of that."""
    world = World(Tail(lease_ms=1), offsets=[committed(1000)])
    Groups(monkeypatch)
    monkeypatch.setattr(unenrolment_module, "range_commits", world.range_commits)
    monkeypatch.setattr(unenrolment_module, "offset_log_partitions", count)
    return world, recorded(world, replace(FIRST, topic_id="old", generation=3))


def test_an_enrolment_is_written_over_that_of_another_topic_of_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, old = made_again(monkeypatch, lambda _: 1)
    assert world.enrol(60.0, before=old) == replace(FIRST, generation=3)
    assert [e.settled for e in world.written] == [False, True]
    assert cursor(world) == [(WHOLE, None)], "what was committed of the topic before"


class OffsetLog:
    """The offset log with what a group has committed of a topic of eight partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
        self.records: dict[tuple[int, bytes], bytes] = {}
        """By partition and key; a record that is withdrawn is gone."""
        for number in range(8):
            parent = PhysicalPartition("orders", number)
            for range_ in WHOLE.split_evenly(4):
                commit = RangeCommit("g", parent, range_, {0: Position(1000)}, "m", 1)
                self.records[offsets_partition(parent, partitions), commit.key] = commit.encode()
        log = TopicFacts("__kpsplit.offsets", "id", (PartitionFacts(0, (0,), (0,)),) * partitions)
        self.admin: Any = SimpleNamespace(connection=None, certain=lambda *_: {log.name: log})
        monkeypatch.setattr(groups_module, "OffsetTail", self._tail)
        monkeypatch.setattr(unenrolment_module, "offset_log_partitions", lambda _: partitions)

    def _tail(self, _connection: object, count: int, places: Collection[int], _group: object) -> Any:
        fold = CommitFold(None, count)
        for offset, ((partition, key), value) in enumerate(self.records.items()):
            if partition in places:
                fold.fold(key, value, offset, partition)
        return SimpleNamespace(read_all=lambda _: fold, close=lambda: None)

    def withdraw(self, keys: Iterable[tuple[int, bytes]], _deadline: object) -> None:
        for key in keys:
            del self.records[key]


def test_what_was_committed_of_partitions_that_the_new_topic_lacks_is_withdrawn_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may get them later, and the group would pass over their first records."""
    log = OffsetLog(monkeypatch, partitions=16)
    assert unenrolment_module.withdraw_commits(log.admin, log.withdraw, "orders", Deadline(10)) == ("g",)
    assert not log.records


def test_what_a_group_commits_of_the_new_topic_is_not_withdrawn_by_an_operator_that_was_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was suspended between its look at the offset log and its write; another one enrolled meanwhile."""
    enrolled = replace(FIRST, generation=3)

    def suspended(_: object) -> int:
        world.fenced = [enrolled]
        world.offsets = [committed(77)]
        return 1

    world, old = made_again(monkeypatch, suspended)
    assert world.enrol(60.0, before=old) == enrolled
    assert (world.offsets, world.written, world.fenced) == ([committed(77)], [], [])


def test_an_operator_that_has_withdrawn_commits_and_is_fenced_says_that_something_was_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, old = made_again(monkeypatch, lambda _: 1)
    withdraw = world.withdraw

    def fenced_afterwards(*given: Any) -> None:
        withdraw(*given)
        world.fenced = [replace(FIRST, slots=8, generation=3)]

    world.withdraw = fenced_afterwards  # type: ignore[method-assign]
    with pytest.raises(FencedError) as caught:
        world.enrol(60.0, before=old)
    assert (world.written, caught.value.changed) == ([], True)


@pytest.mark.parametrize("settled", [False, True])
def test_two_that_enrol_in_the_same_way_agree(settled: bool) -> None:
    world = World(Tail(lease_ms=1))
    ensure, other = world.ensure, replace(FIRST, settled=settled)
    world.ensure = lambda *given: recorded(world, other) and ensure(*given)  # type: ignore[method-assign]
    assert world.enrol(60.0) == FIRST
    assert world.written == ([] if settled else [FIRST])


@pytest.mark.parametrize("by_other", [False, True])
def test_an_operator_that_is_fenced_by_one_that_does_the_same_goes_on(
    monkeypatch: pytest.MonkeyPatch, by_other: bool
) -> None:
    """Where nothing was written it claims anew."""
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch)
    begun = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=False, slots=4)
    world.fenced = [begun if by_other else None]
    assert world.enrol(60.0) == replace(begun, settled=True)
    assert world.written == [begun, replace(begun, settled=True)][by_other:]


def test_an_operator_that_is_fenced_by_one_that_does_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Tail(lease_ms=1))
    Groups(monkeypatch)
    world.fenced = [Enrolment("orders", "id", Partitioner.EXPLICIT, settled=False, slots=8)]
    with pytest.raises(FencedError) as caught:
        world.enrol(60.0)
    assert (world.written, caught.value.changed) == ([], False)


class SettingUp:
    """A cluster whose lease is changed; ``done``: what was waited for and written, in order.

    ``meanwhile``: what others record while a lease passes, lease by lease.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lease_ms: int | None) -> None:
        self.view, self.done = ControlView(), list[str]()
        if lease_ms is not None:
            self.others_set(lease_ms)
        self.meanwhile: list[Callable[[], None]] = []
        self.session: Any = SimpleNamespace(
            begin=lambda: Deadline(10),
            admin=None,
            read=lambda _: self.view,
            tail=lambda _: None,
            writer=lambda: SimpleNamespace(write=self._write),
        )
        monkeypatch.setattr(module, "create_own_topics", lambda *_: self.done.append("create") or [])
        monkeypatch.setattr(module, "wait_a_lease", lambda *_: self._lease())

    def others_set(self, lease_ms: int) -> None:
        self.view.fold(SETTINGS_KEY, encode_settings(Settings(lease_ms)))

    def others_enrol(self) -> None:
        self.view.enrolments["orders"] = FIRST

    def _lease(self) -> None:
        self.done.append(f"wait {self.view.settings.lease_ms}")
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def _write(self, _topic: str, _key: bytes, value: bytes, _deadline: object) -> None:
        self.done.append(f"write {decode_settings(value).lease_ms}")

    def initialise(self, lease_ms: int | None) -> list[str]:
        return module.initialise(self.session, lease_ms, None)


def test_a_lease_is_set_when_the_one_in_force_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SettingUp(monkeypatch, 60_000)
    world.initialise(1000)
    assert world.done == ["create", "wait 60000", "write 1000"]


@pytest.mark.parametrize("wrong", [0, 99, 600_001])
def test_a_lease_out_of_bounds_is_refused_before_anything_is_created(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    world = SettingUp(monkeypatch, None)
    with pytest.raises(RecordError) as caught:
        world.initialise(wrong)
    assert (world.done, caught.value.changed) == ([], False)


def test_a_topic_that_is_enrolled_while_the_lease_passes_keeps_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its producers report records by that; an operator that waits for less would cut before them."""
    world = SettingUp(monkeypatch, 60_000)
    world.meanwhile = [world.others_enrol]
    with pytest.raises(ConflictError, match="the lease is 60000 ms; producers of enrolled topics") as caught:
        world.initialise(1000)
    assert (world.done, caught.value.changed) == (["create", "wait 60000"], False)


@pytest.mark.parametrize("lease_ms", [None, 700, 900])
def test_a_lease_that_another_one_sets_meanwhile_is_kept_or_waited_for(
    monkeypatch: pytest.MonkeyPatch, lease_ms: int | None
) -> None:
    world = SettingUp(monkeypatch, None)
    world.meanwhile = [lambda: world.others_set(700)]
    world.initialise(lease_ms)
    assert world.done == ["create", "wait 3000", *(["wait 700", "write 900"] if lease_ms == 900 else [])]
