"""Where slots start: what one slot waits for keeps no other waiting."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.application_requests import OffsetQueries
from kpsplit.consumer.commit import group_offsets
from kpsplit.consumer.commit.group_offsets import MOST_PIECES, GroupOffsets
from kpsplit.consumer.commit.writes import logical_position
from kpsplit.consumer.slots import initializer
from kpsplit.consumer.slots.assigned import NoOffsetError, SlotStart, StartRequest
from kpsplit.errors import DeadlineExceededError, FutureVersionError, KpsplitError, UnreachableError
from kpsplit.kafka.log_ends import Failed
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import offsets_partition
from kpsplit.splitter.records.offsets import Cause, CommitKey, Position, RangeCommit
from tests.unit.engine_world import SLOTS, World, record, slot
from tests.unit.samples import life

PARTITIONS = 16
PLACES = [PhysicalPartition("orders", n) for n in range(8)]
STUCK, WELL = (
    PLACES[0],
    next(p for p in PLACES if offsets_partition(p, PARTITIONS) != offsets_partition(PLACES[0], PARTITIONS)),
)
PLAIN = PhysicalPartition("plain", 0)
UNDECIDED = DeadlineExceededError("an open transaction holds it up")


class Scene:
    """A ledger whose offset log holds a commit of each enrolled partition, at offset 7."""

    def __init__(self, reset: str = "earliest") -> None:
        self.query_client: Any = SimpleNamespace(committed=lambda *_: dict(self.ordinary))
        self.ordinary: dict[PhysicalPartition, int] = {PLAIN: 5}
        self.failed: dict[int, KpsplitError] = {}
        self.lows: dict[PhysicalPartition, int] = {}
        self.fold = CommitFold()
        for offset, place in enumerate((STUCK, WELL)):
            commit = RangeCommit("g", place, WHOLE, {0: Position(7)}, "me", 1, Cause.PROGRESS)
            self.fold.fold(commit.key, commit.encode(), offset)
        self.writer: Any = SimpleNamespace(open=lambda _: None)
        self.group_offsets = GroupOffsets(None, self.query_client, "g", reset)  # type: ignore[arg-type]
        self.group_offsets._tail = SimpleNamespace(  # type: ignore[assignment]
            fold=self.fold, follow=lambda _: None, read_each=lambda *_: self.failed
        )
        self.group_offsets._partitions = PARTITIONS
        self.group_offsets._writer = self.writer
        self.group_offsets._admin = SimpleNamespace(start_offsets=self._lows)  # type: ignore[assignment]

    def _lows(self, places: list[PhysicalPartition], failed: Failed) -> dict[PhysicalPartition, int]:
        failed |= {place: UnreachableError("no leader") for place in places if place not in self.lows}
        return {place: low for place, low in self.lows.items() if place in places}

    def starts(self, *places: PhysicalPartition) -> list[Any]:
        modes = {PLAIN.topic: Mode.PLAIN}
        return self.group_offsets.starts(
            [StartRequest(Lineage.unsplit(p), modes.get(p.topic, Mode.SLOTS), WHOLE) for p in places], None
        )


def position(start: object) -> int:
    assert isinstance(start, SlotStart)
    (cursor,) = start.pieces
    return cursor.positions[0]


def test_a_commit_of_a_newer_version_holds_up_the_slot_of_its_key_only() -> None:
    scene = Scene()
    keys = [CommitKey("other", WELL, WHOLE), CommitKey("g", STUCK, WHOLE.split_evenly(2)[1])]
    for offset, key in enumerate(keys, 10):
        scene.fold.fold(key.encode(), b'{"v":99}', offset)
    low, high = (StartRequest(Lineage.unsplit(STUCK), Mode.SLOTS, half) for half in WHOLE.split_evenly(2))
    well = StartRequest(Lineage.unsplit(WELL), Mode.SLOTS, WHOLE)
    first, second, third = scene.group_offsets.starts([low, high, well], None)
    assert position(first) == 7 and position(third) == 7
    assert isinstance(second, FutureVersionError) and f"group g for {high.range} of {STUCK}" in str(second)


def test_slots_start_although_one_partition_of_the_offset_log_is_undecided() -> None:
    scene = Scene()
    scene.failed = {offsets_partition(STUCK, PARTITIONS): UNDECIDED}
    stuck, well, plain = scene.starts(STUCK, WELL, PLAIN)
    assert stuck is UNDECIDED
    assert (position(well), position(plain)) == (7, 5)
    scene.failed = {}
    assert position(scene.starts(STUCK)[0]) == 7


def test_plain_partitions_start_although_nothing_can_be_committed_in_transactions() -> None:
    scene = Scene()

    def cannot(_: object) -> None:
        raise UnreachableError("no coordinator")

    scene.writer.open = cannot
    well, plain = scene.starts(WELL, PLAIN)
    assert isinstance(well, UnreachableError)
    assert position(plain) == 5


def test_slots_with_a_commit_start_although_nothing_can_be_asked_about_those_without() -> None:
    scene = Scene()

    def cannot(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))

    scene.query_client.committed = cannot
    well, plain = scene.starts(WELL, PLAIN)
    assert position(well) == 7
    assert isinstance(plain, KpsplitError)
    scene.query_client.committed = lambda *_: {}
    well, plain = scene.starts(WELL, PLAIN)  # now their logs are asked, which have no leader
    assert position(well) == 7
    assert isinstance(plain, UnreachableError)


def test_partitions_start_although_the_log_of_another_has_no_leader() -> None:
    scene = Scene()
    scene.ordinary, scene.lows = {}, {PhysicalPartition("plain", 1): 3}
    without, led = scene.starts(PLAIN, PhysicalPartition("plain", 1))
    assert isinstance(without, UnreachableError)
    assert position(led) == 3


def test_a_slot_with_very_many_pieces_is_read_from_the_least_of_them() -> None:
    scene = Scene()
    for n in range(MOST_PIECES + 1):
        narrow = RangeCommit("g", WELL, KeyRange(2 * n, 2 * n + 1), {0: Position(9)}, "x", 1, Cause.PROGRESS)
        scene.fold.fold(narrow.key, narrow.encode(), 10 + n)
    assert position(scene.starts(WELL)[0]) == 7


def test_a_partition_without_an_offset_is_named_and_the_others_start() -> None:
    scene = Scene(reset="error")
    scene.ordinary = {}
    well, plain = scene.starts(WELL, PLAIN)
    assert position(well) == 7
    assert isinstance(plain, NoOffsetError) and plain.parent == PLAIN


def test_a_commit_that_lists_a_segment_that_there_is_not_is_reported_and_the_slot_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(initializer, "UNDECIDED_SECONDS", 0.0)
    with World() as world:
        stale = [SlotStart((Cursor(WHOLE, {99: 1}),), stale=True)]
        starts = world.group_offsets.starts

        def late(wanted: list[Any], me: str | None) -> list[Any]:
            return stale * len(wanted) if stale else starts(wanted, me)

        world.group_offsets.starts = late  # type: ignore[method-assign]
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: world.events.trouble, "the report")
        told = str(world.events.trouble)
        assert "list segments that the control topic does not have" in told and "kpsplit doctor" in told
        stale.clear()
        world.polls(lambda: slot(0) in world.reader.owned, "the slot")


@pytest.mark.parametrize("error", [UNDECIDED, UnreachableError("no leader")])
def test_the_engine_reads_slots_that_start_while_another_waits(error: KpsplitError) -> None:
    with World() as world:
        waits = [True]
        starts = world.group_offsets.starts

        def apart(wanted: list[Any], me: str | None) -> list[Any]:
            found = starts(wanted, me)
            last = slot(SLOTS - 1).range
            return [error if waits[0] and w.range == last else f for w, f in zip(wanted, found, strict=True)]

        world.group_offsets.starts = apart  # type: ignore[method-assign]
        world.subscribe()
        world.coordinator.give(*range(SLOTS))
        world.polls(lambda: len(world.reader.owned) == SLOTS - 1, "the slots that can be read")
        world.reader.write(record(0))
        assert [m.value() for m in world.take(1)] == [b"0"]
        assert slot(SLOTS - 1) not in world.reader.owned
        waits[0] = False
        world.polls(lambda: slot(SLOTS - 1) in world.reader.owned, "the slot that waited")
        assert world.reader.owned[slot(SLOTS - 1)] == Cursor(slot(SLOTS - 1).range, {0: 0})


def test_earliest_passes_over_a_sub_topic_only_when_it_is_certain_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker that is asked for the starts of the logs may be stale: its first "no" skips nothing."""
    scene, state, agreed = Scene(), life().merged, [False]
    scene.ordinary, scene.group_offsets._tail.fold = {}, CommitFold()  # type: ignore[union-attr]
    scene.group_offsets._admin = SimpleNamespace(  # type: ignore[assignment]
        start_offsets=lambda places, failed: {p: 0 for p in places if p == state.parent}
    )
    monkeypatch.setattr(group_offsets, "Absence", lambda *_: SimpleNamespace(denied=lambda: agreed[0]))
    wanted = StartRequest(state.lineage, Mode.SLOTS, WHOLE)
    [waits] = scene.group_offsets.starts([wanted], None)
    assert isinstance(waits, DeadlineExceededError) and "orders.split-3-" in str(waits)
    retired = frozenset(s.source.topic for s in state.lineage) - {state.parent.topic}
    [at_once] = scene.group_offsets.starts([replace(wanted, retired=retired)], None)
    agreed[0] = True
    [at_last] = scene.group_offsets.starts([wanted], None)
    for found in (at_once, at_last):
        assert isinstance(found, SlotStart)
        assert found.pieces[0].moved(0, 1000).readable(state.lineage) == {1: 1001}, "the phantoms are gone"


def test_earliest_passes_over_a_sub_topic_that_is_retired_and_not_deleted_yet() -> None:
    """The next ``retire`` deletes it and asks no group; nor does a log without a leader hold up the start."""
    scene, state, asked = Scene(), life().merged, list[PhysicalPartition]()
    scene.ordinary, scene.group_offsets._tail.fold = {}, CommitFold()  # type: ignore[union-attr]

    def lows(places: Collection[PhysicalPartition], failed: object) -> dict[PhysicalPartition, int]:
        asked.extend(places)
        return dict.fromkeys(places, 0)

    scene.group_offsets._admin = SimpleNamespace(start_offsets=lows)  # type: ignore[assignment]
    retired = frozenset(s.source.topic for s in state.lineage) - {state.parent.topic}
    wanted = StartRequest(state.lineage, Mode.SLOTS, WHOLE, retired=retired)
    [start] = scene.group_offsets.starts([wanted], None)
    assert isinstance(start, SlotStart) and asked == [state.parent]
    read = start.pieces[0].pending(state.lineage)
    assert {state.lineage.get(segment).source for segment in read} == {state.parent}


def test_what_a_group_has_committed_is_where_its_slots_start_when_sub_topics_are_retired() -> None:
    scene, state = Scene(), life().merged
    place = state.parent
    scene.ordinary = {place: state.lineage.segments[-1].start + 50}
    scene.fold._known.clear()
    parts = {p: TopicPartition(p.topic, p.partition, at) for p, at in scene.ordinary.items()}
    scene.query_client.committed_parts = lambda *_: parts
    retired = frozenset(s.source.topic for s in state.lineage) - {place.topic}
    wanted = StartRequest(state.lineage, Mode.SLOTS, WHOLE, retired=retired)
    [start] = scene.group_offsets.starts([wanted], None)
    [(offset, _)] = OffsetQueries(scene.group_offsets, scene.query_client).committed([wanted], 1.0)
    assert offset == logical_position(state.lineage, start.pieces)


@pytest.mark.parametrize("at, read", [(1500, True), (900, False), (1001, False)])
def test_what_was_retired_before_the_place_of_a_plain_group_counts_as_read(at: int, read: bool) -> None:
    """It went on in the parent after the merge, so nobody is to look for the phantoms of before."""
    scene, state = Scene(), life().merged
    scene.ordinary, scene.group_offsets._tail.fold = {state.parent: at}, CommitFold()  # type: ignore[union-attr]
    retired = frozenset(s.source.topic for s in state.lineage) - {state.parent.topic}
    for known in (retired, frozenset[str]()):
        wanted = StartRequest(state.lineage, Mode.SLOTS, WHOLE, retired=known)
        [start] = scene.group_offsets.starts([wanted], None)
        assert isinstance(start, SlotStart)
        phantoms = start.pieces[0].pending(state.lineage).keys() - {0, 1, state.lineage.open_segments()[0].id}
        assert bool(phantoms) != (read and bool(known))
    if read:
        assert start.pieces[0].pending(state.lineage)[state.lineage.open_segments()[0].id] == at
