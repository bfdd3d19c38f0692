"""An enrolment whose operator died before it was settled: each member goes on by itself, a lease later."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.consumer import metadata as module
from kpsplit.consumer.metadata import Metadata
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.splitter.control_plane import LEASE_MARGIN, ControlView
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner, Settings, encode_enrolment
from kpsplit.splitter.records.keys import enrolment_key, slots_topic

BEGUN = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, settled=False, slots=4)
LEASE = 2.0


class Scene:
    """What a member knows; the test writes the control topic and sets the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.written, self.failure = 100.0, 0, cast(KpsplitError | None, None)
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.view = ControlView()
        self.view.settings = Settings(int(LEASE * 1000))
        self.metadata = Metadata(SimpleNamespace(shared_admin=lambda: None))  # type: ignore[arg-type]
        tail: Any = SimpleNamespace(
            view=self.view, poll=self._poll, ask_end=self._ask, progress=lambda: self.written
        )
        self.metadata._tail = tail

    def _poll(self, _seconds: float) -> None:
        if self.failure is not None:
            raise self.failure

    def _ask(self) -> Any:
        return SimpleNamespace(done=lambda: False)

    def write(self, enrolment: Enrolment) -> None:
        self.view.fold(enrolment_key(enrolment.topic), encode_enrolment(enrolment))
        self.written += 1

    def mode(self, now: float) -> Mode:
        self.now = now
        self.metadata.turn()
        return self.metadata.subscribed("orders").mode


def test_an_enrolment_that_nobody_settles_is_settled_for_a_member_that_has_known_it_for_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    assert scene.mode(100.0) is Mode.PLAIN
    scene.write(BEGUN)
    assert scene.mode(110.0) is Mode.MOVING
    assert scene.mode(110.0 + LEASE) is Mode.MOVING
    assert scene.mode(110.0 + LEASE * LEASE_MARGIN) is Mode.SLOTS
    assert scene.metadata.subscribed("orders").group_topic == slots_topic("orders")
    scene.write(replace(BEGUN, settled=True))
    assert scene.mode(120.0) is Mode.SLOTS


def test_another_number_of_slots_that_nobody_settles_is_settled_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.write(replace(BEGUN, settled=True))
    scene.mode(100.0)
    assert scene.metadata.subscribed("orders").begins
    scene.write(replace(BEGUN, slots=8, generation=2, former_slots=4))
    scene.mode(110.0)
    before = scene.metadata.subscribed("orders")
    assert (before.group_topic, before.slots, before.begins) == (slots_topic("orders"), 4, False)
    scene.mode(110.0 + LEASE * LEASE_MARGIN)
    after = scene.metadata.subscribed("orders")
    assert (after.group_topic, after.slots, after.begins) == (slots_topic("orders", 2), 8, True)
    assert after.former == before.division


def test_an_enrolment_that_is_recorded_anew_is_known_for_a_lease_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.write(BEGUN)
    scene.mode(110.0)
    scene.write(replace(BEGUN, topic_id="another"))
    assert scene.mode(112.0) is Mode.MOVING
    assert scene.mode(113.0) is Mode.MOVING
    assert scene.mode(112.0 + LEASE * LEASE_MARGIN) is Mode.SLOTS


def test_an_enrolment_without_slots_is_never_settled_by_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version writes it: how many slots there will be is known to its operator alone."""
    scene = Scene(monkeypatch)
    scene.write(replace(BEGUN, slots=None))
    scene.mode(110.0)
    assert scene.mode(200.0) is Mode.MOVING


def test_an_enrolment_that_was_read_before_an_error_is_known_with_the_next_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.write(BEGUN)
    scene.failure = UnreachableError("no brokers")
    assert scene.mode(110.0) is Mode.MOVING
    scene.failure = None
    assert scene.mode(111.0) is Mode.MOVING
    assert scene.mode(111.0 + LEASE * LEASE_MARGIN) is Mode.SLOTS


def test_a_partition_of_a_topic_that_is_left_keeps_its_topic_for_what_is_read_along_its_lineage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it was never split, so that no state of it is recorded: bookmarks name the topic."""
    scene = Scene(monkeypatch)
    scene.write(replace(BEGUN, settled=True, slots=None, generation=2, returning=True))
    parent = PhysicalPartition("orders", 0)
    assert scene.metadata.state(parent, left=True).topic_id == "id"
    assert scene.metadata.state(parent).topic_id == ""
    assert scene.metadata.state(PhysicalPartition("bills", 0), left=True).topic_id == ""
