"""Values and keys of the control topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kpsplit.errors import FutureVersionError, RecordError, UsageError
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, SegmentKind
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    PartitionState,
    Prepare,
    SubTopic,
    SubTopicState,
)
from kpsplit.splitter.records import control, keys
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    Settings,
    SlotDivision,
    decode_enrolment,
    decode_settings,
    decode_state,
    encode_enrolment,
    encode_settings,
    encode_state,
)
from tests.unit.samples import (
    PARENT,
    UNSPLIT,
    committed,
    fenced,
    life,
    merge_attempt,
    operated,
    split_attempt,
)

LIFE = life()
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(4))
FENCED = fenced(UNSPLIT, SPLIT)
COMMITTED = committed(UNSPLIT, SPLIT, {0: 10})


def test_encoding_is_canonical() -> None:
    data = encode_enrolment(Enrolment("orders", "id", Partitioner.EXPLICIT, True))
    assert (
        data == b'{"former_slots":null,"generation":1,"partitioner":"explicit","returning":false,'
        b'"settled":true,"slots":null,"topic":"orders","topic_id":"id","v":4}'
    )
    assert encode_settings(Settings(5000)) == b'{"lease_ms":5000,"v":1}'


CHANGED = Enrolment("orders", "id", Partitioner.EXPLICIT, True, 8, 2, 4)


def test_an_enrolment_names_the_topics_of_its_slots() -> None:
    former, present = SlotDivision("__kpsplit.slots.orders", 4), SlotDivision("__kpsplit.slots-2.orders", 8)
    assert (CHANGED.former, CHANGED.divisions) == (former, (former, present))
    assert replace(CHANGED, former_slots=None).divisions == (present,)
    assert replace(CHANGED, former_slots=None, slots=None).divisions == ()
    assert former.places(2) == tuple(PhysicalPartition(former.topic, number) for number in (8, 9, 10, 11))
    assert decode_enrolment(encode_enrolment(CHANGED)) == CHANGED


RETURNING = replace(CHANGED, slots=None, settled=False, returning=True)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("former", [4, None])
def test_the_enrolment_of_a_topic_that_returns_is_read_back(settled: bool, former: int | None) -> None:
    enrolment = replace(RETURNING, settled=settled, former_slots=former)
    assert decode_enrolment(encode_enrolment(enrolment)) == enrolment
    assert enrolment.left is (settled and former is None)


@pytest.mark.parametrize("wrong", [replace(RETURNING, slots=8), replace(RETURNING, generation=1)])
def test_a_topic_that_returns_has_no_slots_and_has_had_some(wrong: Enrolment) -> None:
    with pytest.raises(RecordError):
        encode_enrolment(wrong)


def test_enrolments_of_older_versions_do_not_return() -> None:
    old = json.loads(encode_enrolment(CHANGED)) | {"v": 3}
    del old["returning"]
    assert decode_enrolment(json.dumps(old).encode()) == CHANGED


@pytest.mark.parametrize(
    "wrong",
    [
        replace(CHANGED, generation=0),
        replace(CHANGED, generation=10_000),
        replace(CHANGED, generation=1),
        replace(CHANGED, slots=None),
        replace(CHANGED, former_slots=8),
        replace(CHANGED, former_slots=65),
    ],
)
def test_former_slots_that_nobody_can_have_had_are_neither_written_nor_read(wrong: Enrolment) -> None:
    with pytest.raises(RecordError):
        encode_enrolment(wrong)


@pytest.mark.parametrize("lease_ms", [99, 600_001, -1])
def test_a_lease_out_of_bounds_is_neither_written_nor_read(lease_ms: int) -> None:
    with pytest.raises(RecordError):
        encode_settings(Settings(lease_ms))
    with pytest.raises(RecordError):
        decode_settings(json.dumps({"v": 1, "lease_ms": lease_ms}).encode())


def test_what_readers_would_reject_is_never_written() -> None:
    """An operator's name that is too long, say, would make the record unreadable for everybody."""
    for changes in ({"operator": "x" * 1001}, {"id": "x" * 65}, {"subtopic": "no topic"}):
        with pytest.raises(RecordError):
            encode_state(apply(UNSPLIT, Prepare(replace(SPLIT, **changes))))  # type: ignore[arg-type]


def changed(state: PartitionState, change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(encode_state(state))
    change(value)
    return json.dumps(value).encode()


def put(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.__setitem__(name, value)


def in_segment(index: int, name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["segments"][index].__setitem__(name, value)


BAD_CHANGES: dict[str, tuple[PartitionState, Callable[[dict[str, Any]], object]]] = {
    "an unknown field": (UNSPLIT, put("surprise", 1)),
    "a missing field": (UNSPLIT, lambda s: s.pop("revision")),
    "an unknown phase": (UNSPLIT, put("phase", "resting")),
    "a phase that is a list": (UNSPLIT, put("phase", ["steady"])),
    "a number that is true": (UNSPLIT, put("revision", True)),
    "a number that is a text": (UNSPLIT, put("revision", "1")),
    "a negative number": (UNSPLIT, put("revision", -1)),
    "a number beyond 64 bits": (UNSPLIT, put("revision", 1 << 63)),
    "an epoch beyond the stamp's 32 bits": (UNSPLIT, put("epoch", 1 << 32)),
    "an epoch that no segment was opened in": (LIFE.split, put("epoch", 2)),
    "an epoch before that of a segment": (LIFE.split, put("epoch", 0)),
    "no segments": (UNSPLIT, put("segments", [])),
    "segments that are no list": (UNSPLIT, put("segments", {})),
    "a segment that is no object": (UNSPLIT, put("segments", [0])),
    "no topic's name": (UNSPLIT, put("topic", "or/ders")),
    "a topic's name that is too long": (UNSPLIT, put("topic", "x" * 250)),
    "half a character": (UNSPLIT, put("topic_id", "\ud800")),
    "a partition out of range": (UNSPLIT, put("partition", 1 << 31)),
    "an attempt while steady": (FENCED, put("phase", "steady")),
    "a fence without an attempt": (UNSPLIT, put("phase", "fenced")),
    "a commit whose source is still open": (FENCED, put("phase", "committed")),
    "a fence whose source is closed": (COMMITTED, put("phase", "fenced")),
    "an attempt on a segment that is not there": (FENCED, lambda s: s["attempt"].update(sources=[7])),
    "an attempt without sources": (FENCED, lambda s: s["attempt"].update(sources=[])),
    "an attempt with a sub-topic that is not there": (FENCED, put("subtopics", [])),
    "an attempt whose range is no pair": (FENCED, lambda s: s["attempt"].update(ranges=[[0]])),
    "an attempt whose range is a number": (FENCED, lambda s: s["attempt"].update(ranges=[0])),
    "an outcome without an attempt": (LIFE.split, lambda s: s["last"].update(attempt=None)),
    "frozen without a reason": (UNSPLIT, put("phase", "frozen")),
    "a reason without being frozen": (UNSPLIT, put("frozen_reason", "because")),
    "a range that is empty": (UNSPLIT, in_segment(0, "range", [5, 5])),
    "a range that is huge": (UNSPLIT, in_segment(0, "range", [0, 10**4000])),
    "a range of booleans": (UNSPLIT, in_segment(0, "range", [False, True])),
    "ranges that leave a hole": (LIFE.split, in_segment(2, "range", [1, 1 << 30])),
    "a segment that ends before it starts": (LIFE.split, in_segment(1, "end", 0)),
    "a segment that begins at false": (UNSPLIT, in_segment(0, "start", False)),
    "a stride of zero": (UNSPLIT, in_segment(0, "stride", 0)),
    "a predecessor that is unknown": (LIFE.split, in_segment(2, "predecessors", [77])),
    "a child that begins below its predecessor": (LIFE.split, in_segment(2, "base", 999)),
    "a segment without a successor": (
        UNSPLIT,
        lambda s: s["segments"][0].update(end=10, closed_epoch=1),
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_state_that_breaks_a_rule_is_rejected_with_a_reason(name: str, known: bool) -> None:
    """Also by a reader that knows the state before the change."""
    state, change = BAD_CHANGES[name]
    with pytest.raises(RecordError) as caught:
        decode_state(changed(state, change), state if known else None)
    assert not isinstance(caught.value, FutureVersionError)
    assert caught.value.message.startswith("partition state: ")


def test_what_is_known_of_a_lineage_is_not_read_again() -> None:
    before = LIFE.split
    for after in (LIFE.split, LIFE.nested, LIFE.merged):
        state = decode_state(encode_state(after), before)
        assert state == after
        kept = [s for s in state.lineage if any(s is known for known in before.lineage)]
        assert kept == [s for s in after.lineage if s in before.lineage.segments] and kept
    assert decode_state(encode_state(before), before).lineage is before.lineage


def many_segments(count: int) -> PartitionState:
    """A partition that was moved on and on: a long, sound history, made without the machine for speed."""
    first = UNSPLIT.lineage.segments[0]
    segments = [
        replace(
            first,
            id=i,
            start=2 * i,
            end=2 * i + 1,
            opened_epoch=i,
            closed_epoch=i + 1,
            progression=replace(first.progression, base=i),
        )
        for i in range(count)
    ]
    segments[-1] = replace(segments[-1], end=None, closed_epoch=None)
    return replace(UNSPLIT, lineage=Lineage(PARENT, tuple(segments)).check(), epoch=count - 1)


def test_no_attempt_begins_where_its_end_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition must never be stuck in a fence because the roll-back is too large to be written."""
    state = many_segments(300)
    size = len(encode_state(state))
    attempt = split_attempt(state, 299, WHOLE.split_evenly(64))
    prepared = apply(state, Prepare(attempt))
    monkeypatch.setattr(control, "MAX_BYTES", size + 2 * control.ROOM_TO_END)
    with pytest.raises(RecordError, match="too long for this operation") as refused:
        encode_state(prepared)
    assert "no further operation is possible" in (refused.value.hint or ""), "it is merged already"
    assert "merge" not in (refused.value.hint or "")
    monkeypatch.setattr(control, "MAX_BYTES", size + 2 * control.ROOM_TO_END + 3000)
    room = len(encode_state(prepared)) + control.ROOM_TO_END
    done = committed(state, attempt, {299: 1000})
    assert len(encode_state(done)) < room


def test_a_partition_that_cannot_be_split_any_more_can_be_merged_into_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = operated(UNSPLIT, SPLIT, {0: 100})
    phantoms = [s for s in state.lineage if s.is_open and s.kind is SegmentKind.PHANTOM]
    sources = tuple(s.id for s in phantoms)
    further = apply(state, Prepare(split_attempt(state, sources[0], phantoms[0].range.split_evenly(2))))
    back = apply(state, Prepare(merge_attempt(state, sources, WHOLE)))
    monkeypatch.setattr(control, "MAX_BYTES", len(encode_state(back)) + control.ROOM_TO_END)
    with pytest.raises(RecordError, match="too long for this operation") as refused:
        encode_state(further)
    assert refused.value.hint == "merge it back into its parent"
    assert decode_state(encode_state(back)) == back
    monkeypatch.setattr(control, "MAX_BYTES", len(encode_state(back)) + control.ROOM_TO_END - 1)
    with pytest.raises(RecordError, match="too long") as refused:
        encode_state(back)
    assert "no further operation is possible" in (refused.value.hint or "")


def test_what_a_merge_of_64_adds_fits_the_room_that_is_kept_for_it_even_with_the_longest_names() -> None:
    topic = PhysicalPartition("x" * 249, 2**31 - 1)
    state = PartitionState.unsplit(topic, "i" * 100)
    attempt = split_attempt(state, 0, WHOLE.split_evenly(64))
    before = apply(state, Prepare(attempt))
    grown = len(encode_state(committed(state, attempt, {0: 2**62}))) - len(encode_state(before))
    assert 0 < grown < control.ROOM_TO_END


def test_a_record_over_the_size_limit_is_not_written() -> None:
    subtopics = tuple(SubTopic("x" * 249, i + 1, 2, SubTopicState.RETIRED, "i" * 100) for i in range(2500))
    with pytest.raises(RecordError, match="over the limit"):
        encode_state(replace(UNSPLIT, subtopics=subtopics))


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        (b"orders/3", PARENT),
        (b"orders/0", PhysicalPartition("orders", 0)),
        (b"orders/*", "orders"),
        (b"_cluster", None),
        (b"_cluster/0", PhysicalPartition("_cluster", 0)),
    ],
)
def test_a_control_key_says_what_its_record_is_about(key: bytes, meaning: object) -> None:
    assert keys.parse_control_key(key) == meaning


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"/",
        b"orders",
        b"orders/",
        b"orders/03",
        b"orders/-1",
        b"orders/2147483648",
        b"orders/3/4",
        b"orders/3\n",
        b"or ders/3",
        b"\xff/3",
        "orders/٣".encode(),
        b"../*",
        b"x" * 250 + b"/3",
    ],
)
def test_a_key_that_kpsplit_never_writes_is_rejected(key: bytes | None) -> None:
    with pytest.raises(RecordError):
        keys.parse_control_key(key)


def test_every_key_that_is_written_is_read_back() -> None:
    assert keys.parse_control_key(keys.partition_key(PARENT)) == PARENT
    assert keys.parse_control_key(keys.enrolment_key("orders")) == "orders"
    assert keys.parse_control_key(keys.SETTINGS_KEY) is None


def test_neighbours_never_share_a_partition_of_the_control_topic() -> None:
    places = [keys.control_partition(PhysicalPartition("orders", p)) for p in range(keys.STATE_PARTITIONS)]
    assert sorted(places) == list(range(1, keys.CONTROL_PARTITIONS))
    assert keys.control_partition(PhysicalPartition("orders", 16)) == places[0] == 15
    assert keys.control_partition("orders") == keys.control_partition(None) == 0


def test_a_record_in_another_partition_than_its_keys_is_garbage() -> None:
    view, key = ControlView(), keys.partition_key(PARENT)
    right = keys.control_partition(PARENT)
    assert view.fold(key, control.encode_state(UNSPLIT), right - 1) is None
    assert (view.garbage, view.states) == (1, {})
    assert view.fold(key, control.encode_state(UNSPLIT), right) == PARENT
    assert view.states == {PARENT: UNSPLIT}


def test_a_partition_named_by_a_user_is_read_or_refused_as_bad_input() -> None:
    assert keys.parse_partition("orders/3") == PARENT
    with pytest.raises(UsageError):
        keys.parse_partition("orders")


def test_a_sub_topic_is_named_after_topic_partition_and_split() -> None:
    assert keys.subtopic_name(PARENT, 1) == "orders.split-3-1"


@pytest.mark.parametrize("length", [200, 238, 239, 240, 249])
def test_a_sub_topics_name_is_never_too_long_and_differs_where_the_topics_differ(length: int) -> None:
    names = {keys.subtopic_name(PhysicalPartition("x" * (length - 1) + last, 3), 1) for last in "ab"}
    assert len(names) == 2
    assert all(keys.is_topic_name(name) and name.endswith(".split-3-1") for name in names)


def test_names_that_are_one_in_kafkas_metrics_collide() -> None:
    assert keys.collides("a.b", "a_b")
    assert not keys.collides("a.b", "a.b")
    assert not keys.collides("a.b", "a.c")
