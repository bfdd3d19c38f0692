"""Key hash and key ranges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import (
    KEY_SPACE,
    WHOLE,
    KeyRange,
    key_hash,
    keyless_hash,
    ranges_between,
    uncovered,
    union_of_adjacent,
)

VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/key_hash.json").read_text("utf-8"))["vectors"]


def bitwise_crc32(data: bytes) -> int:
    """CRC-32 from its definition, one bit at a time, to be independent of zlib."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_there_are_at_least_a_dozen_published_vectors() -> None:
    assert len(VECTORS) >= 12
    assert {"", "313233343536373839"} <= {v["key_hex"] for v in VECTORS}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["note"] or v["key_hex"])
def test_a_published_vector_is_what_the_definition_and_the_code_compute(vector: dict[str, object]) -> None:
    key = bytes.fromhex(str(vector["key_hex"]))
    assert bitwise_crc32(key) == vector["crc32"]
    assert bitwise_crc32(key) * 1640531527 % 2**32 == vector["key_hash"]
    assert key_hash(key) == vector["key_hash"]
    assert f"{key_hash(key):08x}" == vector["key_hash_hex"]


def test_the_check_value_of_crc32_is_the_well_known_one() -> None:
    assert bitwise_crc32(b"123456789") == 0xCBF43926


def test_a_record_without_key_is_placed_by_its_offset_in_eight_big_endian_bytes() -> None:
    assert keyless_hash(1000) == key_hash(b"\0\0\0\0\0\0\x03\xe8")


def test_the_last_range_ends_at_two_to_the_32_and_is_shown_so() -> None:
    assert str(WHOLE) == "00000000:100000000"
    assert KEY_SPACE - 1 in WHOLE
    assert KEY_SPACE not in WHOLE


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (5, 4), (-1, 4), (0, KEY_SPACE + 1), (KEY_SPACE, KEY_SPACE)])
def test_what_is_no_interval_of_the_key_space_is_refused(lo: int, hi: int) -> None:
    with pytest.raises(UsageError):
        KeyRange(lo, hi)


@pytest.mark.parametrize("text", ["40000000:80000000", "0x40000000:0x80000000", " 40000000:80000000 "])
def test_a_range_is_read_from_hexadecimal(text: str) -> None:
    assert KeyRange.parse(text) == KeyRange(0x40000000, 0x80000000)


@pytest.mark.parametrize(
    "text", ["", ":", "0:", "1", "2:1", "0:1000000000", "0:fffffffff", "g:h", "-1:5", "0:1:2", "٠:١"]
)
def test_a_text_that_is_no_range_is_refused_with_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        KeyRange.parse(text)


def test_the_widths_of_an_even_division_differ_by_at_most_one() -> None:
    parts = KeyRange(7, 107).split_evenly(7)
    assert union_of_adjacent(parts) == KeyRange(7, 107)
    assert {p.width for p in parts} == {14, 15}


@pytest.mark.parametrize("parts", [0, -1, 4])
def test_a_division_into_none_or_more_parts_than_hashes_is_refused(parts: int) -> None:
    with pytest.raises(UsageError):
        KeyRange(0, 3).split_evenly(parts)


def test_ranges_with_a_hole_or_an_overlap_have_no_union() -> None:
    assert union_of_adjacent([KeyRange(0, 2), KeyRange(3, 4)]) is None
    assert union_of_adjacent([KeyRange(0, 3), KeyRange(2, 4)]) is None
    assert union_of_adjacent([]) is None
    assert union_of_adjacent([KeyRange(2, 4), KeyRange(0, 2)]) == KeyRange(0, 4)


def test_neighbours_share_no_hash() -> None:
    a, b = ranges_between([0, 10, 20])
    assert not a.overlaps(b)
    assert 10 not in a
    assert 10 in b
    assert KeyRange(0, 20).covers(a)
    assert not a.covers(KeyRange(0, 20))


def test_what_ranges_leave_uncovered_is_what_is_missing_to_the_key_space() -> None:
    assert uncovered([WHOLE]) == []
    assert uncovered([]) == [WHOLE]
    assert uncovered([KeyRange(0, 1 << 31)]) == [KeyRange(1 << 31, KEY_SPACE)]
    assert uncovered([KeyRange(5, 9), KeyRange(1, 3)]) == [
        KeyRange(0, 1),
        KeyRange(3, 5),
        KeyRange(9, KEY_SPACE),
    ]
