"""Who needs a newer view of the control topic gets one, and its end is asked for no more often than that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.consumer import metadata as module
from kpsplit.consumer.metadata import AGAIN_SECONDS, Metadata
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.records.control import Settings

LONG_LEASE_MS = 60_000
"""So that nothing is asked to renew it."""
TURN = 0.01
ANSWER = 0.005
"""How long brokers take to say where the topic ends: less than a turn."""


class Scene:
    """A member that knows the control topic; ``asked``: when it asked where that ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.answer_seconds = 100.0, ANSWER
        self.asked: list[float] = []
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.metadata = Metadata(SimpleNamespace(shared_admin=lambda: None))  # type: ignore[arg-type]
        view = ControlView()
        view.settings = Settings(LONG_LEASE_MS)
        tail: Any = SimpleNamespace(
            view=view,
            poll=lambda _: None,
            ask_end=self._ask,
            progress=lambda: 0,
            reached=lambda _: True,
        )
        self.metadata._tail = tail
        self.turn(4)
        assert self.metadata.fresh()
        self.asked.clear()

    def _ask(self) -> Any:
        asked = self.now
        self.asked.append(asked)
        return SimpleNamespace(asked=asked, done=lambda: self.now >= asked + self.answer_seconds, result=dict)

    def turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.now += TURN
            self.metadata.turn()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


AGAIN_TURNS = round(AGAIN_SECONDS / TURN) + 2


def test_a_wish_that_nobody_asks_after_is_fulfilled_once(scene: Scene) -> None:
    """A start that waits for a newer lineage made one; then the end was asked for twenty times a second."""
    scene.metadata.want_refresh()
    scene.turn(AGAIN_TURNS)
    assert len(scene.asked) == 1
    scene.turn(10 * AGAIN_TURNS)
    assert len(scene.asked) == 1


def test_a_wish_that_is_made_anew_after_it_was_fulfilled_has_the_end_asked_for_again(scene: Scene) -> None:
    for wish in range(1, 4):
        scene.metadata.want_refresh()
        wished = scene.now
        scene.turn(AGAIN_TURNS)
        assert len(scene.asked) == wish and scene.asked[-1] >= wished


def test_a_readers_wish_is_fulfilled_by_an_end_that_is_asked_for_after_it_once(scene: Scene) -> None:
    scene.metadata.want_refresh(7)
    wished = scene.now
    assert not scene.metadata.refreshed(7)
    scene.turn(AGAIN_TURNS)
    assert scene.asked[0] >= wished
    assert not scene.metadata.refreshed(8)
    assert scene.metadata.refreshed(7)
    assert not scene.metadata.refreshed(7)
    scene.turn(10 * AGAIN_TURNS)
    assert len(scene.asked) == 1


def test_wishes_of_others_do_not_keep_a_reader_from_its_view(scene: Scene) -> None:
    """Brokers take longer to answer than a start waits before it makes its wish again."""
    scene.answer_seconds = 3 * AGAIN_SECONDS
    scene.metadata.want_refresh(7)
    for _ in range(6):
        scene.turn(round(AGAIN_SECONDS / TURN))
        if scene.metadata.refreshed(7):
            return
        scene.metadata.want_refresh(7)
        scene.metadata.want_refresh()
    pytest.fail("the reader still waits")
