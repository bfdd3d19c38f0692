"""What kpsplit writes into data topics (stamp, marker) and the boundary records of a commit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import home_of
from kpsplit.splitter.records.data import (
    STAMP_SIZES,
    Marker,
    MarkerKind,
    Stamp,
    instance_name,
    note_own,
    prefix,
)
from kpsplit.splitter.records.offsets import SegmentEnd, boundaries, decode_boundary
from tests.unit.samples import PARENT, UNSPLIT, committed, life, merge_attempt, phantom, split_attempt

LIFE = life()
HOME = 0xDC47_0000_0000_0001
STAMP = Stamp(epoch=2, instance=0xA1B2, sequence=258, home=HOME)
STAMP_BYTES = bytes.fromhex("0200000002000000000000a1b2dc470000000000010000000000000102")
OLD_BYTES = bytes.fromhex("0100000002000000000000a1b20000000000000102")
SEAL = Marker(MarkerKind.SEAL, PARENT, "attempt-1")


def test_a_stamp_is_29_big_endian_bytes() -> None:
    assert STAMP.encode() == STAMP_BYTES
    assert Stamp.decode(STAMP_BYTES) == STAMP
    assert STAMP_SIZES[2] == len(STAMP_BYTES)


def test_a_stamp_of_version_1_is_read_and_stands_everywhere() -> None:
    old = Stamp.decode(OLD_BYTES)
    assert old == replace(STAMP, home=None)
    assert old.encode() == OLD_BYTES
    assert old.is_at(HOME)
    assert old.is_at(HOME + 1)


def test_a_stamp_names_the_physical_partition_it_was_made_for() -> None:
    places = [
        (topic_id, partition, topic, number)
        for topic_id in ("id", "id-of-another-cluster")
        for partition in (3, 4)
        for topic in ("orders", "orders.split-3-1")
        for number in (0, 3)
    ]
    homes = {home_of(*place) for place in places}
    assert len(homes) == len(places)
    assert STAMP.is_at(HOME)
    assert not STAMP.is_at(HOME + 1)


def test_the_hot_path_completes_a_prefix_with_the_sequence_number() -> None:
    assert prefix(2, 0xA1B2, HOME) + (258).to_bytes(8, "big") == STAMP_BYTES


@pytest.mark.parametrize(
    "data",
    [
        *(None, b"", b"\x01", b"\x02", STAMP_BYTES[:-1], STAMP_BYTES + b"\0", b"\0" + STAMP_BYTES[1:]),
        *(b"\x01" + STAMP_BYTES[1:], b"\x02" + OLD_BYTES[1:], b"\0" + OLD_BYTES[1:]),
    ],
)
def test_a_malformed_stamp_is_rejected(data: bytes | None) -> None:
    with pytest.raises(RecordError) as caught:
        Stamp.decode(data)
    assert not isinstance(caught.value, FutureVersionError)


@pytest.mark.parametrize("data", [b"\x03", b"\x03" + STAMP_BYTES[1:], b"\xff" * 40])
def test_a_stamp_of_a_newer_version_is_told_from_garbage_whatever_its_length(data: bytes) -> None:
    with pytest.raises(FutureVersionError):
        Stamp.decode(data)


def test_an_instance_is_shown_with_16_digits() -> None:
    assert instance_name(0xA1) == "00000000000000a1"


def test_a_marker_is_this_json() -> None:
    assert SEAL.encode() == b'{"attempt":"attempt-1","marker":"seal","partition":3,"topic":"orders","v":1}'


def test_a_marker_that_readers_would_reject_is_never_written() -> None:
    with pytest.raises(RecordError):
        replace(SEAL, attempt_id="x" * 65).encode()


def test_a_split_has_a_boundary_per_phantom_that_says_where_the_parent_ends() -> None:
    state = committed(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(4)), {0: 1000})
    found = boundaries(state)
    assert [b.range for b in found] == list(WHOLE.split_evenly(4))
    assert [(b.opened_segment, b.opened, b.start) for b in found] == [
        (i + 2, phantom(i), 0) for i in range(4)
    ]
    assert {b.ends for b in found} == {(SegmentEnd(0, PARENT, 1000, 4),)}


def test_a_merge_has_one_boundary_with_the_ends_of_all_that_must_be_drained_before_it() -> None:
    state = committed(
        LIFE.split, merge_attempt(LIFE.split, (2, 3, 4, 5), WHOLE), {1: 1003, 2: 8, 3: 5, 4: 9, 5: 6}
    )
    (boundary,) = boundaries(state)
    assert [e.segment for e in boundary.ends] == [1, 2, 3, 4, 5]
    assert (boundary.epoch, boundary.opened, boundary.start) == (2, PARENT, 1004)


def test_a_boundary_is_read_back_as_it_was_written_and_its_key_names_range_and_no_group() -> None:
    for boundary in boundaries(LIFE.split):
        assert decode_boundary(boundary.encode()) == boundary
    first = boundaries(LIFE.split)[0]
    assert first.key == b'{"group":null,"hi":1073741824,"lo":0,"partition":3,"topic":"orders"}'


@pytest.mark.parametrize(
    "changes",
    [
        {"lo": -1},
        {"lo": 1 << 32},
        {"hi": 0},
        {"ends": {}},
        {"ends": [{"segment": 0}]},
        {"topic": "a/b"},
        {"opened_partition": 1 << 31},
        {"opened_topic": ""},
        {"more": 1},
        {"start": None},
    ],
)
def test_a_malformed_boundary_is_rejected(changes: dict[str, Any]) -> None:
    value = json.loads(boundaries(LIFE.split)[0].encode()) | changes
    with pytest.raises(RecordError):
        decode_boundary(json.dumps(value).encode())


def test_a_physical_partition_is_shown_as_users_write_it() -> None:
    assert str(PhysicalPartition("orders", 3)) == "orders/3"


def test_of_a_producers_own_copies_in_a_log_the_first_counts_and_others_records_do_not() -> None:
    """The client library may write a batch twice; the second copy may stand behind the segment's end."""
    found: dict[int, int] = {}
    log = [
        Stamp(1, 7, 3, HOME),
        None,
        Stamp(1, 8, 3, HOME),
        Stamp(1, 7, 4, HOME),
        Stamp(2, 7, 3, HOME),
        Stamp(1, 7, 5, HOME),
    ]
    for offset, stamp in enumerate(log, 20):
        note_own(found, offset, stamp, HOME, 1, 7, {3, 4})
    assert found == {3: 20, 4: 23}


def test_a_copy_of_a_producers_record_from_elsewhere_is_not_taken_for_its_own() -> None:
    """The same numbers name other records in the producer's other partitions."""
    found: dict[int, int] = {}
    for offset, stamp in enumerate([Stamp(1, 7, 3, HOME + 1), Stamp(1, 7, 3)]):
        note_own(found, offset, stamp, HOME, 1, 7, {3})
    assert found == {}


def test_a_stray_is_not_taken_for_the_copy_that_was_sent_again_for_it() -> None:
    """A producer that slept wrote it into the segment that a later epoch opened; readers skip it there."""
    found: dict[int, int] = {}
    for offset, epoch in enumerate((0, 1, 2), 20):
        note_own(found, offset, Stamp(epoch, 7, 3, HOME), HOME, 2, 7, {3})
    assert found == {3: 22}
