"""Slots that are held, and what is handed out of them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.consumer.batch import OwnedSlot
from kpsplit.consumer.holdings import Holding, Holdings, Stage
from kpsplit.consumer.starter import must_be_held
from kpsplit.consumer.subscriptions import Mode
from kpsplit.consumer.withholding import Withholding
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

PARENT = PhysicalPartition("plain", 0)
SLOT = OwnedSlot(PARENT, 0, 1)


class Scene:
    """One slot of a plain topic; ``working``: the application still has records of it."""

    def __init__(self) -> None:
        self.working, self.fresh, self.dropped = False, True, 0
        self.holding = Holding(SLOT, PARENT, Mode.PLAIN, Stage.HELD)
        holdings = Holdings()
        holdings.add([self.holding])
        state = PartitionState.unsplit(PARENT, "id")
        self.context: Any = SimpleNamespace(
            holdings=holdings,
            counts={"slots_withheld": 0},
            ahead={},
            settings=SimpleNamespace(auto_commit=False),
            lineage=lambda _: state.lineage,
            settled=lambda _slot, cursors, _lineage: tuple(cursors),
            views=SimpleNamespace(
                fresh=lambda: self.fresh,
                subscribed=lambda _: SimpleNamespace(mode=Mode.PLAIN),
                state=lambda _: state,
            ),
            reader=SimpleNamespace(update=lambda _: None, own=lambda *_: None, disown=lambda _: None),
            sink=SimpleNamespace(
                release=lambda _: not self.working,
                cursor=lambda _: [Cursor(WHOLE, {0: 7})],
                dropped=self._drop,
                taken=lambda *_: None,
            ),
        )
        self.withholding = Withholding(self.context, None)  # type: ignore[arg-type]

    def _drop(self, _: object) -> None:
        self.dropped += 1


def test_what_the_application_still_works_on_is_not_handed_out_again() -> None:
    scene = Scene()
    scene.working = True
    scene.withholding.turn()
    assert (scene.holding.stage, scene.dropped) == (Stage.HELD, 0)
    scene.working = False
    scene.withholding.turn()
    assert (scene.holding.stage, scene.dropped) == (Stage.READING, 1)


def test_a_view_that_is_old_again_holds_a_slot_again() -> None:
    scene = Scene()
    scene.withholding.turn()
    assert scene.holding.stage is Stage.READING
    scene.fresh = False
    scene.withholding.turn()
    assert scene.holding.stage is Stage.HELD
    assert scene.context.counts["slots_withheld"] == 1


@pytest.mark.parametrize(
    ("mode", "by_hand", "held"),
    [(Mode.PLAIN, False, True), (Mode.SLOTS, False, False), (Mode.PLAIN, True, False)],
)
def test_only_slots_that_another_member_may_have_are_held_by_an_old_view(
    mode: Mode, by_hand: bool, held: bool
) -> None:
    scene = Scene()
    scene.fresh = False
    scene.holding.mode, scene.holding.by_hand = mode, by_hand
    assert must_be_held(scene.context, scene.holding) is held
