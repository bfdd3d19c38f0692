"""When a producer takes over, and when it leaves that to others, by what its view says anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kpsplit.clock import Deadline
from kpsplit.errors import ConflictError
from kpsplit.producer import fence_task
from kpsplit.producer.fence_task import (
    AHEAD_SECONDS,
    GRACE_SECONDS,
    SPREAD_SECONDS,
    UNSEEN_SECONDS,
    Takeover,
)
from kpsplit.splitter.claimed_log import RESERVED_SECONDS, TURN_SECONDS, ClaimQueue
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, Event, PartitionState
from kpsplit.splitter.records.control import RESERVED, Claim, claim_key, encode_claim, encode_state
from kpsplit.splitter.records.keys import control_partition, partition_key
from tests.unit.samples import PARENT, UNSPLIT, fenced, split_attempt

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
FENCED = fenced(UNSPLIT, SPLIT)
DUE = 30.0 + GRACE_SECONDS
RESERVES = 30.0 - AHEAD_SECONDS / 2
"""By then every producer has reserved the turn, or seen that another one has."""


class Scene:
    """A producer's view of a fence.

    ``begun``: so often a claim was begun, and what it asks meanwhile; ``announced``: what was sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_pause: float = 30.0) -> None:
        self.now, self.begun, self.view = 0.0, list[Callable[[], bool]](), ControlView()
        self.announced, self.over = list[Claim](), threading.Event()
        self.show(FENCED)
        monkeypatch.setattr(fence_task, "monotonic", lambda: self.now)
        monkeypatch.setattr(fence_task, "roll_back", self._roll_back)
        announce = self.announced.append
        self.takeover = Takeover(None, PARENT, SPLIT.id, max_pause, announce)  # type: ignore[arg-type]

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
    assert scene.at(DUE) == 0
    (claim,) = scene.announced
    assert claim.round == 1
    scene.show(claim)
    assert scene.at(DUE + 0.5) == 1
    assert scene.at(DUE + 10.0) == 1, "one at a time"
    scene.over.set()


def test_the_producer_that_reserved_the_turn_prepares_its_claim_before_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    assert scene.at(30.0 - AHEAD_SECONDS - 0.1) == 0 and not scene.announced
    assert scene.at(RESERVES) == 0
    (reservation,) = scene.announced
    assert reservation.round == RESERVED
    scene.show(reservation)
    assert scene.at(RESERVES + 0.5) == 1
    (waits,) = scene.begun
    assert scene.at(DUE - 0.1) == 1 and not waits() and scene.announced == [reservation]
    scene.at(DUE)
    claim = Claim(reservation.claimer, FENCED.revision, 1)
    assert scene.announced == [reservation, claim], "an operator that looks now waits for it"
    scene.show(claim)
    scene.at(DUE + 1.0)
    assert scene.announced == [reservation, claim] and not waits()
    scene.over.set()


def test_it_is_left_to_the_producer_that_reserved_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.show(Claim("another", FENCED.revision, RESERVED))
    assert scene.at(RESERVES) == scene.at(DUE + RESERVED_SECONDS - 0.1) == 0
    assert not scene.announced, "and it is awaited from the time when it is due"
    assert scene.at(DUE + RESERVED_SECONDS + SPREAD_SECONDS) == 0
    assert [claim.round for claim in scene.announced] == [1]


def test_an_operator_at_work_is_left_to_it_whatever_was_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.at(RESERVES)
    scene.show(scene.announced[0])
    assert scene.at(RESERVES + 0.5) == 1
    (waits,) = scene.begun
    scene.show(Claim("operator", FENCED.revision, 1))
    scene.at(DUE)
    assert waits() and len(scene.announced) == 1
    scene.over.set()


def test_a_short_pause_is_not_reserved_before_half_of_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_pause=4.0)
    assert scene.at(1.9) == 0 and not scene.announced
    scene.at(3.0)
    assert [claim.round for claim in scene.announced] == [RESERVED]


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


@pytest.mark.parametrize("another_has_the_turn", [True, False])
def test_a_claim_that_waits_for_its_turn_ends_when_another_has_it(
    monkeypatch: pytest.MonkeyPatch, another_has_the_turn: bool
) -> None:
    recorded: list[Event] = []

    class Log:
        def claim(self, _: Deadline, fit: Callable[[PartitionState], bool]) -> PartitionState:
            assert fit(FENCED)
            return FENCED

        def record(self, _: PartitionState, event: Event, __: Deadline) -> None:
            recorded.append(event)

        def connect(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(fence_task, "OperationLog", lambda *_: Log())
    connection: Any = None
    if another_has_the_turn:
        with pytest.raises(ConflictError, match="has the turn"):
            fence_task.roll_back(connection, PARENT, SPLIT.id, None, lambda: True)
        assert recorded == []
    else:
        assert fence_task.roll_back(connection, PARENT, SPLIT.id, None, lambda: False)
        assert [type(event) for event in recorded] == [Abort]


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
