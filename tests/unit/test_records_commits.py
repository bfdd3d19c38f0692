"""Range commits and the keys of the offset log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.records.offsets import (
    MAX_GROUP,
    BoundaryKey,
    CommitKey,
    Position,
    RangeCommit,
    decode_range_commit,
    parse_offset_key,
)
from tests.unit.samples import PARENT

RANGE = KeyRange(0x40000000, 0x44000000)
KEY = CommitKey("billing", PARENT, RANGE)
COMMIT = RangeCommit("billing", PARENT, RANGE, {3: Position(87, 4), 1: Position(1001)}, "m-1", 12)


def test_a_range_commit_is_this_json() -> None:
    assert json.loads(COMMIT.key) == {
        "group": "billing",
        "topic": "orders",
        "partition": 3,
        "lo": RANGE.lo,
        "hi": RANGE.hi,
    }
    assert json.loads(COMMIT.encode()) == {
        "v": 1,
        "topic": "orders",
        "partition": 3,
        "lo": RANGE.lo,
        "hi": RANGE.hi,
        "positions": [
            {"segment": 1, "next": 1001, "leader_epoch": None},
            {"segment": 3, "next": 87, "leader_epoch": 4},
        ],
        "member": "m-1",
        "generation": 12,
        "cause": "progress",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"lo": 0},
        {"partition": 4},
        {"topic": "payments"},
        {"hi": RANGE.lo},
        {"hi": (1 << 32) + 1},
        {"positions": None},
        {"positions": [{"segment": 1, "next": 1}]},
        {"positions": [{"segment": 1, "next": -1, "leader_epoch": None}]},
        {"positions": [{"segment": 1, "next": True, "leader_epoch": None}]},
        {"positions": [{"segment": 1, "next": 1, "leader_epoch": None, "more": 1}]},
        {"positions": [{"segment": 1, "next": n, "leader_epoch": None} for n in (1, 2)]},
        {"member": "m" * (MAX_GROUP + 1)},
        {"generation": -2},
        {"generation": None},
        {"cause": "whim"},
        {"unknown": 1},
    ],
)
def test_a_malformed_range_commit_is_rejected(changes: dict[str, Any]) -> None:
    value = json.loads(COMMIT.encode()) | changes
    with pytest.raises(RecordError) as caught:
        decode_range_commit(KEY, json.dumps(value).encode())
    assert not isinstance(caught.value, FutureVersionError)


@pytest.mark.parametrize("data", [None, b"", b"[]", b"\xff", b"{", b"null", b"1" * 1_000_000])
def test_what_is_no_record_at_all_is_rejected(data: bytes | None) -> None:
    with pytest.raises(RecordError):
        decode_range_commit(KEY, data)
    with pytest.raises(RecordError):
        parse_offset_key(data)


def test_a_range_commit_of_a_newer_version_stops_the_reader() -> None:
    with pytest.raises(FutureVersionError, match="version 2 is newer"):
        decode_range_commit(KEY, COMMIT.encode().replace(b'"v":1', b'"v":2'))


def test_what_readers_would_reject_is_never_written() -> None:
    with pytest.raises(RecordError):
        RangeCommit("g", PARENT, WHOLE, {0: Position(0)}, "m" * (MAX_GROUP + 1), 1).encode()
    with pytest.raises(RecordError):
        CommitKey("g" * (MAX_GROUP + 1), PARENT, WHOLE).encode()
    many = {s: Position(1 << 62, 1) for s in range(20_000)}
    with pytest.raises(RecordError, match="over the limit"):
        RangeCommit("g", PARENT, WHOLE, many, "m", 1).encode()


def test_keys_tell_boundaries_from_commits() -> None:
    assert parse_offset_key(BoundaryKey(PARENT, RANGE).encode()) == BoundaryKey(PARENT, RANGE)


@pytest.mark.parametrize("group", ["", "ghost\0"])
def test_a_group_that_cannot_be_named_has_no_key(group: str) -> None:
    """`retire` would wait for it, and nobody could have it forgotten."""
    data = json.dumps(json.loads(KEY.encode()) | {"group": group}, sort_keys=True, separators=(",", ":"))
    with pytest.raises(RecordError, match="no group has such a name"):
        parse_offset_key(data.encode())
    with pytest.raises(RecordError):
        CommitKey(group, PARENT, WHOLE).encode()


@pytest.mark.parametrize(
    ("one", "other"), [(b'":', b'": '), (b"billing", b"billin\\u0067"), (b'"lo":0', b'"lo":-0')]
)
def test_a_commit_has_one_key_only(one: bytes, other: bytes) -> None:
    """Another spelling would be another key for compaction and for tombstones."""
    key = CommitKey("billing", PARENT, WHOLE).encode()
    with pytest.raises(RecordError, match="canonical"):
        parse_offset_key(key.replace(one, other, 1))


@pytest.mark.parametrize(
    "changes", [{"group": 7}, {"lo": -1}, {"hi": 0}, {"topic": "a/b"}, {"partition": None}, {"v": 1}]
)
def test_a_malformed_key_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        parse_offset_key(json.dumps(json.loads(COMMIT.key) | changes).encode())
