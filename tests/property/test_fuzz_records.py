"""Every reader of a document: whatever the bytes are, a sound value or one clear refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer.state.changelog import check_record
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker as StateMarker
from kpsplit.control.plans import Plan
from kpsplit.errors import CheckFailedError, KpsplitError, RecordError
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE
from kpsplit.splitter.lineage import MAX_OFFSET
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    EndedBy,
    Fence,
    Finish,
    Freeze,
    PartitionState,
    Prepare,
    Thaw,
)
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    Settings,
    decode_enrolment,
    decode_settings,
    decode_state,
    encode_enrolment,
    encode_settings,
    encode_state,
)
from kpsplit.splitter.records.data import Marker, MarkerKind, Stamp
from kpsplit.splitter.records.keys import parse_control_key
from kpsplit.splitter.records.offsets import (
    CommitKey,
    Position,
    RangeCommit,
    boundaries,
    decode_boundary,
    decode_range_commit,
    parse_offset_key,
)
from kpsplit.splitter.records.producers import (
    Certificate,
    PauseReport,
    ProducerRegistration,
    decode_record,
)
from kpsplit.splitter.records.strict_json import MAX_BYTES
from tests.property.fuzzing import Unread, check_message, check_sound, documents, doubled, mutated, mutations
from tests.property.test_core_records import (
    boundary_records,
    enrolments,
    markers,
    producer_records,
    range_commits,
    settings_records,
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
from tests.unit.test_kafka_plans import PLAN

COMMIT_KEY = CommitKey("g", PARENT, WHOLE)
INSTANCE = 0xA1
PRODUCER = f"{INSTANCE:016x}".encode()


@dataclass(frozen=True)
class Form:
    """One kind of document: how it is read and written, valid ones, and the most bytes it may have."""

    name: str
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    valid: st.SearchStrategy[bytes]
    samples: Sequence[bytes]
    most: int = MAX_BYTES


def _encode(value: Any) -> bytes:
    return bytes(value.encode())


def _states() -> list[PartitionState]:
    """A partition in every phase, with a short and with a long lineage."""
    whole = life()
    attempt = split_attempt(whole.split, 4, whole.split.lineage.get(4).range.split_evenly(3), "n")
    under_way = committed(whole.split, attempt, {4: 10})
    frozen = apply(under_way, Freeze("no right to seal"))
    ended = apply(fenced(whole.split, attempt), Abort("n", EndedBy.REQUEST, "no reason"))
    begun = apply(whole.split, Prepare(attempt))
    return [UNSPLIT, whole.split, whole.merged, begun, fenced(whole.split, attempt), under_way, frozen, ended]


STATES = [encode_state(state) for state in _states()]
HALVES = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
UNDER_WAY = committed(UNSPLIT, HALVES, {0: 10})
MERGED = operated(
    apply(UNDER_WAY, Finish(HALVES.id)),
    merge_attempt(apply(UNDER_WAY, Finish(HALVES.id)), (2, 3), WHOLE),
    {1: 12, 2: 5, 3: 6},
)
SHORT_STATES = [
    encode_state(apply(UNDER_WAY, Freeze("no right to seal"))),
    encode_state(MERGED),
]
COMMIT = RangeCommit("g", PARENT, WHOLE, {0: Position(7, 1), 2: Position(1)}, "m", 1)
MARKER = Marker(MarkerKind.SEAL, PARENT, "a")
BOUNDARIES = boundaries(life().nested)
REGISTERED = ProducerRegistration(
    instance=INSTANCE,
    generation=1,
    client_id="app",
    transactional_id="tx",
    topics=("orders",),
    ready={"orders/3": "a"},
    acknowledged={"orders/3": "a"},
    pauses={"orders/3": PauseReport("a", 1, 2, 3)},
    certificates={"orders/3": Certificate(4, {"0": 3}, (2,), "id")},
)

FORMS = [
    Form(
        "settings",
        decode_settings,
        encode_settings,
        settings_records.map(encode_settings),
        [encode_settings(Settings())],
    ),
    Form(
        "enrolment",
        decode_enrolment,
        encode_enrolment,
        enrolments.map(encode_enrolment),
        [encode_enrolment(Enrolment("orders", "id", Partitioner.EXPLICIT, True, 4))],
    ),
    Form("state", decode_state, encode_state, st.sampled_from(STATES), SHORT_STATES),
    Form("boundary", decode_boundary, _encode, boundary_records.map(_encode), [BOUNDARIES[0].encode()]),
    Form(
        "marker",
        Marker.decode,
        _encode,
        markers.map(_encode),
        [Marker(MarkerKind.SEAL, PARENT, "a").encode()],
    ),
    Form(
        "range commit",
        lambda data: decode_range_commit(COMMIT_KEY, data),
        _encode,
        range_commits.map(lambda c: replace(c, group="g", parent=PARENT, range=WHOLE).encode()),
        [COMMIT.encode()],
    ),
    Form(
        "producer record",
        lambda data: decode_record(PRODUCER, data),
        _encode,
        producer_records.map(lambda r: replace(r, instance=INSTANCE, generation=1).encode()),
        [REGISTERED.encode()],
    ),
    Form(
        "offset log key",
        parse_offset_key,
        _encode,
        (range_commits | boundary_records).map(lambda r: r.key),
        [COMMIT.key, BOUNDARIES[0].key],
    ),
    Form("plan", Plan.decode, _encode, st.just(PLAN.encode()), [PLAN.encode()]),
]

each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name.replace(" ", "-"))


def read_or_refused(form: Form, data: bytes) -> Any:
    """What a reader makes of bytes: a sound value that is read back as it is written, or None: refused."""
    try:
        value = form.read(data)
    except RecordError as error:
        check_message(error.message)
        return None
    check_sound(value, type(value))
    assert form.read(form.write(value)) == value
    return value


@each_form
@given(st.binary(max_size=80))
def test_any_bytes_are_a_sound_value_or_refused(form: Form, data: bytes) -> None:
    read_or_refused(form, data)


@each_form
@given(documents())
def test_any_json_is_a_sound_value_or_refused(form: Form, data: bytes) -> None:
    read_or_refused(form, data)


def check_read(form: Form, data: bytes) -> None:
    """A document is refused, or read as a value that everything goes on with."""
    value = read_or_refused(form, data)
    if isinstance(value, PartitionState):
        check_state(value)
    if isinstance(value, Plan):
        check_plan(value)


@each_form
@given(st.data())
def test_a_document_with_some_things_wrong_is_sound_or_refused(form: Form, data: st.DataObject) -> None:
    check_read(form, data.draw(mutated(data.draw(form.valid))))


@each_form
def test_a_document_with_anything_wrong_anywhere_is_sound_or_refused(form: Form) -> None:
    for data in form.samples:
        for wrong in mutations(data):
            check_read(form, wrong)


@each_form
def test_a_field_that_stands_twice_is_refused_at_every_depth(form: Form) -> None:
    for data in form.samples:
        for twice in doubled(data):
            with pytest.raises(RecordError, match="not strict JSON|malformed"):
                form.read(twice)


@each_form
@pytest.mark.parametrize("more", [1, 1 << 20])
def test_a_document_over_its_limit_is_refused_before_anybody_looks_into_it(form: Form, more: int) -> None:
    with pytest.raises(RecordError, match="over the limit"):
        form.read(Unread(form.most + more))


def check_state(state: PartitionState) -> None:
    """A state that was read is one on which operations can go on."""
    assert state.lineage.problems() == []
    open_ranges = [s.range for s in state.lineage.open_segments()]
    assert sum(r.width for r in open_ranges) == KEY_SPACE
    assert all(s.end is None or s.logical(s.end) <= MAX_OFFSET for s in state.lineage)
    ranges = state.attempt.ranges if state.attempt else ()
    assert all(a.hi == b.lo for a, b in pairwise(ranges))
    assert state.epoch == max(s.opened_epoch for s in state.lineage)
    assert all(s.closed_epoch is None or s.closed_epoch <= state.epoch for s in state.lineage)
    names = [t.name for t in state.subtopics]
    assert len(set(names)) == len(names)
    for boundary in boundaries(state):
        assert decode_boundary(boundary.encode()) == boundary
    attempt = state.attempt.id if state.attempt else "none"
    for event in (Abort(attempt, EndedBy.TAKEOVER, ""), Fence(attempt, "id"), Finish(attempt), Thaw()):
        try:
            after = apply(state, event)
        except KpsplitError:
            continue
        assert decode_state(encode_state(after)) == after


def check_plan(plan: Plan) -> None:
    """A plan that was read names ranges and shares that can be shown and tried."""
    assert plan.sources
    assert plan.ranges
    assert len(set(plan.sources)) == len(plan.sources)
    assert all(a.hi == b.lo for a, b in pairwise(plan.ranges))


@given(st.binary(max_size=40) | st.binary(min_size=20, max_size=22))
def test_a_stamp_is_read_whole_or_refused(data: bytes) -> None:
    try:
        stamp = Stamp.decode(data)
    except RecordError as error:
        check_message(error.message)
    else:
        assert stamp.encode() == data


@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda b: b"orders/" + b)
    | st.integers().map(lambda n: b"orders/%d" % n)
)
def test_a_control_key_is_read_whole_or_refused(key: bytes) -> None:
    try:
        subject = parse_control_key(key)
    except RecordError as error:
        check_message(error.message)
        return
    told = "_cluster" if subject is None else f"{subject}/*" if isinstance(subject, str) else str(subject)
    assert told.encode() == key


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: bytes([1]) + b))
def test_the_marker_of_a_local_state_is_read_whole_or_counts_for_nothing(data: bytes) -> None:
    marker = StateMarker.decode(data)
    assert marker is None or marker.encode() == data


SLOT = SlotId("orders", 3, 5, 8)


PLACE = bytes([1]) + SLOT.place


@given(st.binary(max_size=12) | st.binary(max_size=3).map(lambda b: PLACE[: 9 - len(b)] + b))
def test_a_changelog_record_is_one_of_the_slot_or_refused(header: bytes) -> None:
    try:
        check_record(SLOT, b"key", [("kpc", header)])
    except (RecordError, CheckFailedError) as error:
        check_message(error.message)
    else:
        assert header == PLACE


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("closed_epoch", 9, "an epoch that was not reached"), ("stride", 2**62, "a logical offset is over")],
)
def test_a_closed_segment_that_nothing_goes_on_from_keeps_the_limits_too(
    field: str, value: int, why: str
) -> None:
    document = json.loads(encode_state(MERGED))
    overflow, last = document["segments"][1], document["segments"][-1]
    last["predecessors"].remove(overflow["id"])
    assert decode_state(json.dumps(document).encode())
    overflow[field] = value
    overflow["end"] += 10
    last["start"] += 10
    with pytest.raises(RecordError, match=why):
        decode_state(json.dumps(document).encode())
