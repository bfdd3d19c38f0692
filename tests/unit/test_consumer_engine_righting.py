"""When a member looks behind its commits, and what it commits again."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.consumer.commit import committer as lag_repair
from kpsplit.consumer.commit.committer import LagOffsetRepair
from kpsplit.consumer.commit.writes import CommitMember
from kpsplit.consumer.slots.assigned import AssignedSlot, SlotStage
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.errors import UnreachableError
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import KEY_SPACE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT

FIRST, SECOND = KeyRange(0, KEY_SPACE // 4), KeyRange(KEY_SPACE // 4, KEY_SPACE // 2)


class World:
    """A member with two of four slots, whose questions and commits the test answers."""

    def __init__(self) -> None:
        self.questions: list[Future[Any]] = []
        self.commits: list[dict[OwnedSlot, tuple[Cursor, ...]]] = []
        self.idle = True
        self.held = [
            AssignedSlot(
                OwnedSlot(PARENT, n, 4),
                PhysicalPartition("__kpsplit.slots.orders", n),
                Mode.SLOTS,
                SlotStage.READING,
                committed=(Cursor(range_, {0: 10}),),
            )
            for n, range_ in enumerate((FIRST, SECOND))
        ]
        metadata: Any = SimpleNamespace(state=lambda *_, **__: UNSPLIT)
        unused: Any = None
        self.slots = AssignedSlots(metadata, unused, unused, StateBinding())
        self.slots.add(self.held)
        self.committer: Any = SimpleNamespace(
            idle=lambda: self.idle,
            begun=0,
            commits=0,
            participant=None,
            member=lambda: CommitMember("g", "me", 1),
            ask=lambda c, _: self.commits.append(c),
        )
        executor: Any = SimpleNamespace(ask=self._ask)
        self.lag_repair = LagOffsetRepair(self.committer, self.slots, executor)

    def _ask(self, _: object) -> Future[Any]:
        self.questions.append(Future())
        return self.questions[-1]

    def commit(self, *, answered: bool = True) -> None:
        """The member commits; without an answer the outcome is not known."""
        self.committer.begun += 1
        self.committer.commits += answered

    def asked(self) -> Future[Any]:
        """A commit was answered, and the log is looked into behind it."""
        self.commit()
        self.lag_repair.turn()
        self.lag_repair.turn()
        return self.questions[-1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(lag_repair, "LOOK_SECONDS", 0.0)
    return World()


def test_only_a_slot_that_the_latest_commit_was_of_is_committed_again(world: World) -> None:
    world.asked().set_result({PARENT: frozenset({SECOND})})
    world.lag_repair.turn()
    assert world.commits == [{OwnedSlot(PARENT, 1, 4): (Cursor(SECOND, {0: 10}),)}]
    assert world.lag_repair.repaired == 1


def test_where_all_is_well_it_is_not_looked_again_before_the_next_commit(world: World) -> None:
    world.asked().set_result({PARENT: frozenset()})
    for _ in range(3):
        world.lag_repair.turn()
    assert (world.commits, len(world.questions)) == ([], 1)
    world.asked()
    assert len(world.questions) == 2


@pytest.mark.parametrize("answer", [{PARENT: None}, UnreachableError("no")])
def test_a_commit_that_was_not_read_yet_is_looked_for_a_few_times(world: World, answer: Any) -> None:
    world.asked()
    for _ in range(3 * lag_repair.LOOKS):
        question = world.questions[-1]
        if not question.done():
            question.set_exception(answer) if isinstance(answer, Exception) else question.set_result(answer)
        world.lag_repair.turn()
    assert (world.commits, len(world.questions)) == ([], lag_repair.LOOKS)


@pytest.mark.parametrize("answered", [True, False])
def test_what_was_found_behind_an_older_commit_counts_no_more(world: World, answered: bool) -> None:
    """The newer one may have gone further, or its outcome is not known."""
    question = world.asked()
    world.commit(answered=answered)
    question.set_result({PARENT: frozenset({FIRST})})
    world.lag_repair.turn()
    assert world.commits == []


def test_while_another_commit_is_under_way_nothing_is_committed_again(world: World) -> None:
    question = world.asked()
    world.idle = False
    question.set_result({PARENT: frozenset({FIRST})})
    world.lag_repair.turn()
    world.idle = True
    world.lag_repair.turn()
    assert world.commits == []


def test_slots_that_went_meanwhile_are_not_committed(world: World) -> None:
    question = world.asked()
    world.slots.remove(world.held)
    question.set_result({PARENT: frozenset({FIRST, SECOND})})
    world.lag_repair.turn()
    assert world.commits == []


def test_nothing_is_asked_where_slots_come_or_go_are_given_by_hand_were_moved_or_nobody_else_has_any(
    world: World,
) -> None:
    first = world.held[0]
    edges = (
        ("stage", SlotStage.LEAVING),
        ("final", True),
        ("by_hand", True),
        ("committed", ()),
        ("moves", 1),
        ("uncertain", {0: ()}),
    )
    for name, value in edges:
        before = getattr(first, name)
        setattr(first, name, value)
        world.committer.commits += 1
        world.lag_repair.turn()
        world.lag_repair.turn()
        assert world.questions == []
        setattr(first, name, before)
    first.committed = (Cursor(KeyRange(SECOND.hi, KEY_SPACE), {0: 10}), *first.committed)
    world.committer.commits += 1
    world.lag_repair.turn()
    world.lag_repair.turn()
    assert world.questions == []


def test_a_slot_that_the_application_moved_since_is_not_committed_where_it_was(world: World) -> None:
    """The success of such a commit would count as that of the one that tells of the move."""
    question = world.asked()
    world.held[0].moves += 1
    question.set_result({PARENT: frozenset({FIRST, SECOND})})
    world.lag_repair.turn()
    assert world.commits == [{OwnedSlot(PARENT, 1, 4): (Cursor(SECOND, {0: 10}),)}]
