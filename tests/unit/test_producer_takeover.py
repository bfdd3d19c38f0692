"""When a producer takes over, and when it leaves that to others, by what its view says anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kpsplit.errors import ConflictError
from kpsplit.producer import takeover
from kpsplit.producer.takeover import GRACE_SECONDS, SPREAD_SECONDS, UNSEEN_SECONDS, Takeover
from kpsplit.splitter.claimed_log import TURN_SECONDS, ClaimQueue
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, PartitionState
from kpsplit.splitter.records.control import Claim, claim_key, encode_claim, encode_state
from kpsplit.splitter.records.keys import control_partition, partition_key
from tests.unit.samples import PARENT, UNSPLIT, fenced, split_attempt

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
FENCED = fenced(UNSPLIT, SPLIT)
DUE = 30.0 + GRACE_SECONDS + SPREAD_SECONDS


class Scene:
    """A producer's view of a fence.

    ``begun``: so often a claim was begun, and what it asks meanwhile; ``announced``: what was sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.begun, self.view = 0.0, list[Callable[[], bool]](), ControlView()
        self.announced, self.over = list[Claim](), threading.Event()
        self.show(FENCED)
        monkeypatch.setattr(takeover, "monotonic", lambda: self.now)
        monkeypatch.setattr(takeover, "roll_back", self._roll_back)
        self.takeover = Takeover(None, PARENT, SPLIT.id, 30.0, self.announced.append)  # type: ignore[arg-type]

    def _roll_back(self, _c: Any, _p: Any, _a: str, _q: ClaimQueue, waits: Callable[[], bool]) -> bool:
        self.begun.append(waits)
        assert self.over.wait(10)
        if waits():
            raise ConflictError("the turn is somebody else's")
        return True

    def show(self, record: PartitionState | Claim | None) -> None:
        key, value = partition_key(PARENT), None
        if isinstance(record, PartitionState):
            value = encode_state(record)
        else:
            key, value = claim_key(PARENT), None if record is None else encode_claim(record)
        self.view.fold(key, value, control_partition(PARENT))

    def at(self, seconds: float) -> int:
        """Return how many claims were begun by that time."""
        self.now = seconds
        self.takeover.check(self.view)
        return len(self.begun)


def test_it_is_begun_when_the_operator_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert scene.at(30.0 + GRACE_SECONDS - 0.1) == 0 and not scene.announced
    assert scene.at(DUE) == 0
    (claim,) = scene.announced
    scene.show(claim)
    assert scene.at(DUE + 0.5) == 1
    assert scene.at(DUE + 10.0) == 1, "one at a time"
    scene.over.set()


def test_it_is_begun_although_its_announcement_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert scene.at(DUE) == scene.at(DUE + UNSEEN_SECONDS - 0.1) == 0
    assert scene.at(DUE + UNSEEN_SECONDS) == 1
    assert len(scene.announced) == 1
    scene.over.set()


def test_it_is_left_to_who_has_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.show(Claim("another", FENCED.revision, 1))
    assert scene.at(DUE) == 0
    assert scene.at(DUE + TURN_SECONDS - 0.1) == 0
    assert not scene.announced
    assert scene.at(DUE + TURN_SECONDS + SPREAD_SECONDS) == 0
    assert [claim.round for claim in scene.announced] == [2]


def test_it_is_given_up_when_the_turn_is_seen_to_be_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert scene.at(DUE) == 0
    assert scene.at(DUE + UNSEEN_SECONDS) == 1
    (waits,) = scene.begun
    assert not waits()
    scene.show(Claim("another", FENCED.revision, 1))
    assert scene.at(DUE + UNSEEN_SECONDS + 1.0) == 1
    assert waits()
    scene.over.set()


def test_who_gives_up_leaves_the_turn_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.show(Claim("another", FENCED.revision, 1))
    assert scene.at(DUE) == 0
    scene.show(None)
    assert scene.at(DUE + SPREAD_SECONDS) == 0
    assert [claim.round for claim in scene.announced] == [1]


def test_announcements_of_an_older_state_say_nothing() -> None:
    view = ControlView()
    for key, value in [
        (partition_key(PARENT), encode_state(FENCED)),
        (claim_key(PARENT), encode_claim(Claim("another", FENCED.revision, 1))),
        (claim_key(PARENT), b"garbage"),
        (b"orders/x/claim", b"garbage"),
    ]:
        assert view.fold(key, value) in (PARENT, None)
    assert [claim.claimer for claim in view.claims[PARENT]] == ["another"] and view.garbage == 0
    view.fold(partition_key(PARENT), encode_state(apply(FENCED, Abort(SPLIT.id, EndedBy.TAKEOVER, "gone"))))
    assert not view.claims
