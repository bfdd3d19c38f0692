"""Every record form: what is written is read back; what was damaged is rejected and never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.errors import FutureVersionError, KpsplitError, RecordError
from kpsplit.splitter.key_range import MAX_SLOTS, WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
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
from kpsplit.splitter.records.keys import (
    MAX_PARTITION,
    MOST_GENERATIONS,
    enrolment_key,
    is_topic_name,
    is_writers_id,
    parse_control_key,
    partition_key,
    slots_topic,
    subtopic_name,
)
from kpsplit.splitter.records.offsets import (
    NO_GENERATION,
    Boundary,
    Cause,
    CommitKey,
    Position,
    RangeCommit,
    SegmentEnd,
    boundaries,
    decode_boundary,
    decode_range_commit,
    parse_offset_key,
)
from kpsplit.splitter.records.producers import VERSION as PRODUCER_VERSION
from kpsplit.splitter.records.producers import (
    Certificate,
    PauseReport,
    ProducerRegistration,
    decode_entry,
    decode_record,
)
from tests.property.strategies import key_ranges, states

INT64 = st.integers(0, 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=40)
groups = texts.filter(lambda name: name and "\0" not in name)
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(is_topic_name)
places = st.builds(PhysicalPartition, topics, st.integers(0, MAX_PARTITION))
attempts = st.text(max_size=64)

settings_records = st.builds(Settings, st.integers(100, 600_000))
enrolments = st.builds(
    Enrolment,
    topics,
    texts,
    st.sampled_from(Partitioner),
    st.booleans(),
    st.none() | st.integers(1, MAX_SLOTS),
    st.integers(1, MOST_GENERATIONS),
    st.none() | st.integers(1, MAX_SLOTS),
).filter(lambda e: e.former_slots is None or (e.slots not in (None, e.former_slots) and e.generation > 1))
stamps = st.builds(Stamp, st.integers(0, 2**32 - 1), UINT64, UINT64, st.none() | UINT64)
marker_attempts = st.from_regex(r"[a-zA-Z0-9._-]{1,64}", fullmatch=True)
markers = st.builds(Marker, st.sampled_from(MarkerKind), places, marker_attempts)
segment_ends = st.builds(SegmentEnd, INT64, places, INT64, st.none() | INT64)
boundary_records = st.builds(
    Boundary,
    parent=places,
    range=key_ranges(),
    epoch=INT64,
    ends=st.lists(segment_ends, max_size=3).map(tuple),
    opened_segment=INT64,
    opened=places,
    start=INT64,
)
pauses = st.builds(PauseReport, attempts, INT64, INT64, INT64)
certificates = st.builds(
    Certificate,
    INT64,
    st.dictionaries(INT64.map(str), INT64, max_size=3),
    st.lists(INT64, max_size=3).map(tuple),
    st.none() | texts,
)
producer_records = st.builds(
    ProducerRegistration,
    instance=UINT64,
    generation=st.integers(1, 2**63 - 1),
    client_id=texts,
    transactional_id=st.none() | texts.filter(is_writers_id),
    topics=st.lists(topics, max_size=3).map(tuple),
    ready=st.dictionaries(texts, texts, max_size=3),
    acknowledged=st.dictionaries(texts, texts, max_size=3),
    pauses=st.dictionaries(texts, pauses, max_size=3),
    closed=st.booleans(),
    certificates=st.dictionaries(texts, certificates, max_size=3),
)

range_commits = st.builds(
    RangeCommit,
    group=groups,
    parent=places,
    range=key_ranges(),
    positions=st.dictionaries(INT64, st.builds(Position, INT64, st.none() | INT64), max_size=4),
    member=texts,
    generation=st.just(NO_GENERATION) | INT64,
    cause=st.sampled_from(Cause),
)

COMMIT_KEY = CommitKey("g", PhysicalPartition("orders", 3), WHOLE)
PRODUCER_KEY = b"00000000000000a1"
DECODERS: list[Callable[[bytes], object]] = [
    decode_settings,
    decode_enrolment,
    decode_state,
    decode_boundary,
    Marker.decode,
    Stamp.decode,
    lambda data: decode_range_commit(COMMIT_KEY, data),
    lambda data: decode_record(PRODUCER_KEY, data),
]

valid_bytes = st.one_of(
    settings_records.map(encode_settings),
    enrolments.map(encode_enrolment),
    states().map(encode_state),
    boundary_records.map(lambda b: b.encode()),
    range_commits.map(lambda c: c.encode()),
    markers.map(lambda m: m.encode()),
    producer_records.map(lambda r: r.encode()),
)


def read_everywhere(data: bytes) -> None:
    """Every reader takes the bytes or rejects them; any other error fails the test."""
    for decode in DECODERS:
        try:
            decode(data)
        except RecordError as error:
            assert error.message
            assert isinstance(error, KpsplitError)


@given(settings_records)
def test_settings_are_read_back(record: Settings) -> None:
    assert decode_settings(encode_settings(record)) == record


@given(enrolments)
def test_an_enrolment_is_read_back(record: Enrolment) -> None:
    assert decode_enrolment(encode_enrolment(record)) == record


@given(stamps)
def test_a_stamp_is_read_back(record: Stamp) -> None:
    assert Stamp.decode(record.encode()) == record


@given(markers)
def test_a_marker_is_read_back(record: Marker) -> None:
    assert Marker.decode(record.encode()) == record


@given(boundary_records)
def test_a_boundary_is_read_back(record: Boundary) -> None:
    assert decode_boundary(record.encode()) == record


@given(producer_records)
def test_a_record_of_the_producers_topic_is_read_back(record: ProducerRegistration) -> None:
    assert decode_record(record.key, record.encode()) == record


@given(states())
def test_a_state_and_its_boundaries_are_read_back(state: Any) -> None:
    assert decode_state(encode_state(state)) == state
    for boundary in boundaries(state):
        assert decode_boundary(boundary.encode()) == boundary


@given(places)
def test_control_keys_are_read_back(place: PhysicalPartition) -> None:
    assert parse_control_key(partition_key(place)) == place
    assert parse_control_key(enrolment_key(place.topic)) == place.topic


@given(places, st.integers(1, 10_000))
def test_every_sub_topic_has_a_name_that_kafka_accepts(place: PhysicalPartition, number: int) -> None:
    assert is_topic_name(subtopic_name(place, number))


@given(range_commits)
def test_a_range_commit_and_its_key_are_read_back(record: RangeCommit) -> None:
    key = parse_offset_key(record.key)
    assert key == CommitKey(record.group, record.parent, record.range)
    assert decode_range_commit(key, record.encode()) == record


@given(places)
def test_every_slots_topic_has_a_name_that_kafka_accepts(place: PhysicalPartition) -> None:
    assert is_topic_name(slots_topic(place.topic))


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_random_keys_never_crash_a_reader(key: bytes, value: bytes) -> None:
    for read in (
        lambda: parse_control_key(key),
        lambda: parse_offset_key(key),
        lambda: decode_record(key, value),
        lambda: decode_entry(key, value),
    ):
        try:
            read()
        except RecordError as error:
            assert error.message


@given(valid_bytes, st.data())
def test_a_damaged_byte_never_crashes_a_reader(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    patch = draw.draw(st.binary(max_size=3))
    read_everywhere(data[:at] + patch + data[at + draw.draw(st.integers(0, 3)) :])


@given(valid_bytes, st.data())
def test_a_truncated_record_is_rejected(data: bytes, draw: st.DataObject) -> None:
    cut = data[: draw.draw(st.integers(0, len(data) - 1))]
    for decode in DECODERS:
        try:
            decode(cut)
        except RecordError:
            continue
        raise AssertionError(f"a truncated record was read: {cut!r}")


@given(valid_bytes, st.integers(PRODUCER_VERSION + 1, 0xFFFF))
def test_a_newer_version_is_always_told_from_garbage(data: bytes, version: int) -> None:
    fields = json.loads(data)
    del fields["v"]
    newer = json.dumps({**fields, "v": version}, separators=(",", ":")).encode()
    for decode in DECODERS:
        if decode == Stamp.decode:
            continue
        try:
            decode(newer)
        except FutureVersionError as error:
            assert error.hint == "upgrade kpsplit"
        else:
            raise AssertionError("a newer version was read")


@given(stamps, st.integers(3, 255))
def test_a_stamp_of_a_newer_version_is_told_from_garbage(stamp: Stamp, version: int) -> None:
    try:
        Stamp.decode(bytes([version]) + stamp.encode()[1:])
    except FutureVersionError as error:
        assert error.hint == "upgrade kpsplit"
    else:
        raise AssertionError("a newer version was read")
