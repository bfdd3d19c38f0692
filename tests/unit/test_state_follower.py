"""The thread that restores slots, without brokers: what it does when the local store cannot be written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.consumer.state import follower as module
from kpsplit.consumer.state.changelog import HEADER, headers_for
from kpsplit.consumer.state.follower import Follower
from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import ChangelogFacts, RestoreMarker
from kpsplit.consumer.state.store import StateStore
from kpsplit.errors import FutureVersionError, KpsplitError
from tests.unit.lane_samples import eventually
from tests.unit.state_fakes import Disk

SLOT, OTHER = SlotId("orders", 0, 0, 4), SlotId("orders", 0, 1, 4)
LOG = "changelog"


class LocalStore(Disk):
    """A disk that keeps markers as well."""

    def __init__(self) -> None:
        super().__init__()
        self.markers: dict[SlotId, RestoreMarker] = {}

    def marker(self, slot: SlotId) -> RestoreMarker | None:
        return self.markers.get(slot)

    def wipe(self, slot: SlotId, marker: RestoreMarker | None = None) -> None:
        self.contents.pop(slot, None)

    def apply(self, slot: SlotId, writes: Any, marker: RestoreMarker) -> None:
        super().apply(slot, writes, marker)
        self.markers[slot] = marker


class Logs:
    """Changelogs that have as many records as the test says, and who reads them."""

    def __init__(self) -> None:
        self.length = 0
        self.asked, self.silent = 0, False
        self.writes = False
        """Who takes a slot writes an end record."""
        self.key = b"k"
        self.headers: list[tuple[str, str | bytes | None]] = []
        self.refuses = False
        """The client refuses every change of its assignment."""
        self.heard = True
        """The client knows the high watermark from an answer to a fetch."""
        self.unreadable: KpsplitError | None = None
        self.calls: list[tuple[str, set[int]]] = []
        """Changes of what is read, in their order: which, and of which partitions."""
        self._due: deque[Message] = deque()

    # a connection, a consumer

    def open_reader(self, *_: Any, **__: Any) -> Logs:
        return self

    def _check(self) -> None:
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def unassign(self) -> None:
        self._check()
        self._due.clear()

    def incremental_assign(self, parts: Sequence[TopicPartition]) -> None:
        self._check()
        self._note("assign", parts)
        for part in parts:
            slot = SlotId("orders", 0, part.partition, 4)
            self._due.extend(
                Message(
                    topic=LOG,
                    partition=part.partition,
                    offset=offset,
                    key=self.key,
                    value=b"%d" % offset,
                    headers=self.headers or headers_for(slot),
                )
                for offset in range(part.offset, self.length)
            )

    def incremental_unassign(self, parts: Sequence[TopicPartition]) -> None:
        self._check()
        self._note("unassign", parts)
        gone = {part.partition for part in parts}
        self._due = deque(m for m in self._due if m.partition() not in gone)

    def pause(self, parts: Sequence[TopicPartition]) -> None:
        self._note("pause", parts)

    def resume(self, parts: Sequence[TopicPartition]) -> None:
        self._note("resume", parts)

    def _note(self, call: str, parts: Sequence[TopicPartition]) -> None:
        self.calls.append((call, {part.partition for part in parts}))

    def poll(self, seconds: float) -> Message | None:
        if self._due:
            return self._due.popleft()
        time.sleep(0.001)
        return None

    def consume(self, count: int, seconds: float) -> list[Message]:
        return []

    def get_watermark_offsets(self, part: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "a broker would be asked"
        return (0, self.length) if self.heard else (-1001, -1001)

    def close(self) -> None: ...

    # Changelogs

    def name(self, slot: SlotId) -> str:
        return LOG

    def facts(self, slots: Sequence[SlotId], deadline: Any, *, owned: bool) -> dict[SlotId, ChangelogFacts]:
        if self.unreadable is not None:
            raise self.unreadable
        written = owned and self.writes
        facts = ChangelogFacts("id", 0, self.length, 86_400_000, written)
        self.length += written
        return dict.fromkeys(slots, facts)

    def ends(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self.asked += 1
        if self.silent:
            raise KpsplitError("no broker answers")
        return dict.fromkeys(places, self.length)


class Scene:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.disk = LocalStore()
        self.follower = Follower(self.disk, logs, "g")  # type: ignore[arg-type]

    def take(self, slot: SlotId) -> OwnedState:
        owned = OwnedState(slot, self.disk)  # type: ignore[arg-type]
        self.follower.follow(slot, owned)
        return owned


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    logs = Logs()
    monkeypatch.setattr(module, "Changelogs", lambda *_: logs)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    made = Scene(logs)
    yield made
    made.follower.close()


@pytest.mark.parametrize("records", [0, 3])
def test_whoever_waits_for_a_slot_hears_that_it_cannot_be_stored_and_gets_it_when_it_can(
    scene: Scene, records: int
) -> None:
    scene.logs.length = records
    scene.disk.broken = True
    refused = scene.take(SLOT)
    eventually(lambda: refused.error, "the disk's error")
    with pytest.raises(KpsplitError, match="disk is full"):
        refused.usable()
    scene.disk.broken = False
    scene.follower.leave(SLOT)
    again = scene.take(SLOT)
    eventually(lambda: again.marker, "the slot")
    assert again.get(b"k") == (b"2" if records else None)


def test_a_warm_copy_that_cannot_be_stored_for_a_while_is_kept_and_goes_on(scene: Scene) -> None:
    scene.logs.length = 3
    scene.disk.broken = True
    scene.follower.follow(OTHER, None)
    eventually(lambda: scene.follower.last_error, "the disk's error")
    scene.disk.broken = False
    eventually(lambda: scene.disk.get(OTHER, b"k") == b"2", "the copy")


def test_after_an_internal_error_whoever_waits_hears_of_it_and_the_thread_goes_on(scene: Scene) -> None:
    scene.logs.length = 3
    scene.logs.refuses = True
    refused = scene.take(SLOT)
    eventually(lambda: refused.error, "the internal error")
    scene.logs.refuses = False
    again = scene.take(SLOT)
    eventually(lambda: again.marker, "the slot")


def test_a_record_of_a_newer_version_ends_the_restoration_and_garbage_does_not(scene: Scene) -> None:
    scene.logs.length = 3
    scene.logs.headers = [(HEADER, b"\x01")]
    owned = scene.take(SLOT)
    eventually(lambda: owned.marker, "the slot")
    assert scene.follower.counts["garbage"] == 3
    scene.logs.headers = [(HEADER, b"\x02new")]
    refused = scene.take(OTHER)
    eventually(lambda: refused.error, "the refusal")
    assert isinstance(refused.error, FutureVersionError)


def test_records_that_show_where_the_log_ended_are_passed_over_and_are_no_garbage(scene: Scene) -> None:
    scene.logs.length = 3
    scene.logs.headers, scene.logs.key = [("other", b"")], b"kpsplit.end.0123456789abcdef"
    owned = scene.take(SLOT)
    eventually(lambda: owned.marker, "the slot")
    assert owned.marker is not None and owned.marker.position == 3
    assert scene.follower.counts["garbage"] == scene.follower.counts["restored"] == 0
    assert owned.get(scene.logs.key) is None


@pytest.mark.parametrize("records", [0, 3])
def test_our_own_end_record_does_not_make_a_complete_copy_look_as_if_it_had_missed_something(
    scene: Scene, records: int
) -> None:
    scene.logs.length, scene.logs.writes = records, True
    first = scene.take(SLOT)
    eventually(lambda: first.marker, "the slot")
    assert scene.disk.markers[SLOT].position == records + 1
    later = replace(scene.disk.markers[SLOT], as_of_ms=0)  # long ago
    scene.disk.markers[SLOT] = later
    scene.follower.leave(SLOT)
    again = scene.take(SLOT)
    eventually(lambda: again.marker, "the slot again")
    assert again.marker is not None and again.marker.position == records + 2
    assert not [name for name in scene.follower.counts if name.startswith("wiped")]


def test_where_no_end_record_was_written_nothing_but_what_was_read_counts(scene: Scene) -> None:
    scene.logs.length = 3
    owned = scene.take(SLOT)
    eventually(lambda: owned.marker, "the slot")
    assert owned.marker is not None and owned.marker.position == 3


def as_of(scene: Scene) -> int:
    """Return since when the warm copy that is stored is known to be complete."""
    marker = scene.disk.markers.get(SLOT)
    return 0 if marker is None else marker.as_of_ms


def test_the_time_of_a_warm_copy_to_which_nothing_comes_is_moved_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reports the end of a log once."""
    monkeypatch.setattr(module, "NOTE_TIME_MS", 1)
    scene.logs.length = 3
    scene.follower.follow(SLOT, None)
    eventually(lambda: scene.follower.warm() == {SLOT: 3}, "the copy")
    before = int(time.time() * 1000)
    eventually(lambda: as_of(scene) > before, "the time")
    scene.logs.silent = True
    asked = scene.logs.asked
    eventually(lambda: scene.logs.asked > asked, "a question")
    scene.logs.silent = False
    before = int(time.time() * 1000)
    eventually(lambda: as_of(scene) > before, "the time after an outage")


def test_the_time_of_a_warm_copy_that_is_behind_stands_still(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOTE_TIME_MS", 1)
    scene.logs.length = 3
    scene.follower.follow(SLOT, None)
    eventually(lambda: scene.follower.warm() == {SLOT: 3}, "the copy")
    scene.logs.length = 4
    asked = scene.logs.asked
    eventually(lambda: scene.logs.asked > asked + 1, "a question")
    before = as_of(scene)
    asked = scene.logs.asked
    eventually(lambda: scene.logs.asked > asked + 1, "a question")
    assert as_of(scene) == before


def test_slots_that_come_together_cost_as_many_calls_as_one_and_warm_copies_rest_meanwhile(
    scene: Scene,
) -> None:
    """The client answers a call when its other threads have acted: many calls make a hand-over slow."""
    slots = [SlotId("orders", 0, index, 4) for index in range(4)]
    scene.logs.length, scene.logs.writes = 3, True
    scene.follower._orders.extend([(slot, None, True) for slot in slots])
    eventually(lambda: len(scene.follower.warm()) == len(slots), "warm copies")
    assert scene.logs.calls == [("assign", {0, 1, 2, 3})]
    scene.logs.calls.clear()
    scene.logs.length += 3  # written meanwhile
    states = [OwnedState(slot, scene.disk) for slot in slots[:3]]  # type: ignore[arg-type]
    scene.follower._orders.extend([(owned.slot, owned, True) for owned in states])
    eventually(lambda: all(owned.marker for owned in states), "the slots")
    eventually(lambda: scene.follower.following() == {slots[3]}, "the end")
    calls = [call for call in scene.logs.calls if call[0] != "unassign"]
    assert calls == [("assign", {0, 1, 2}), ("pause", {3}), ("resume", {3})]
    assert scene.logs.calls[0] == ("unassign", {0, 1, 2}), "the copies"


def test_a_warm_copy_that_was_given_up_is_followed_again_when_the_group_is_as_before(
    scene: Scene, tmp_path: Path
) -> None:
    store = StateStore(tmp_path / "state", group="g", standbys=1)
    store._follower, group = scene.follower, {"another": [SLOT]}
    scene.logs.length = 3
    store.assigned(group, "me")
    eventually(lambda: scene.follower.warm() == {SLOT: 3}, "the copy")
    gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    scene.logs._due.append(Message(error=gone, topic=LOG, partition=0, offset=3))
    eventually(lambda: not scene.follower.following(), "the error")
    scene.logs.length = 9
    store.assigned(group, "me")
    assert scene.follower.following() == {SLOT}
    eventually(lambda: scene.follower.warm() == {SLOT: 9}, "the copy again")


def test_a_warm_copy_that_is_followed_is_not_begun_anew_each_time_the_group_is_looked_at(
    scene: Scene, tmp_path: Path
) -> None:
    store = StateStore(tmp_path / "state", group="g", standbys=1)
    store._follower, group = scene.follower, {"another": [SLOT]}
    for _ in range(2):
        store.assigned(group, "me")
        eventually(lambda: SLOT in scene.follower.warm(), "the copy")
        store.assigned(group, "me")
        assert not scene.follower._orders
