"""Records of the producers topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kpsplit.errors import RecordError
from kpsplit.splitter.records.producers import Certificate, Expiry, PauseReport, ProducerRecord, decode_record

FULL = ProducerRecord(
    instance=0xA1,
    generation=3,
    client_id="checkout-7",
    transactional_id="checkout",
    since=14,
    fenced_below=12,
    topics=("orders", "returns"),
    ready={"orders/3": "attempt-1"},
    acknowledged={"orders/3": "attempt-1"},
    pauses={"orders/3": PauseReport("attempt-1", 35, 812, 2)},
    closed=True,
    certificates={"orders/3": Certificate(1000, {"0": 600, "2": 399}, (17,))},
)


@pytest.mark.parametrize(
    "record", [FULL, ProducerRecord(1, 1, ""), Expiry(0xA1, 0), Expiry(2**64 - 1, 2**63 - 1)]
)
def test_a_record_is_read_back_as_it_was_written(record: ProducerRecord | Expiry) -> None:
    assert decode_record(record.key, record.encode()) == record


def test_producers_and_operators_write_different_keys_and_never_overwrite_each_other() -> None:
    assert FULL.key == b"00000000000000a1"
    assert Expiry(0xA1, 3).key == b"00000000000000a1!"


@pytest.mark.parametrize(
    "key", [None, b"", b"a1", b"00000000000000A1", b"00000000000000a1!!", b"00000000000000a1\n"]
)
def test_a_key_that_kpsplit_never_writes_is_rejected(key: bytes | None) -> None:
    with pytest.raises(RecordError, match="key"):
        decode_record(key, FULL.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"topics": "orders"},
        {"topics": [1]},
        {"topics": ["x" * 250]},
        {"ready": []},
        {"ready": {"orders/3": 1}},
        {"pauses": {"orders/3": 1}},
        {"pauses": {"orders/3": {"attempt": "a"}}},
        {"closed": 1},
        {"certificates": {"orders/3": {"next_sequence": 1, "delivered": {"first": 1}, "failed": []}}},
        {"certificates": {"orders/3": {"next_sequence": 1, "delivered": {"0": -1}, "failed": []}}},
        {"certificates": {"orders/3": {"next_sequence": 1, "delivered": {}, "failed": [True]}}},
        {"surprise": None},
    ],
)
def test_a_malformed_record_is_rejected(changes: dict[str, Any]) -> None:
    value = json.loads(FULL.encode()) | changes
    with pytest.raises(RecordError):
        decode_record(FULL.key, json.dumps(value).encode())


def test_what_readers_would_reject_is_never_written() -> None:
    with pytest.raises(RecordError):
        ProducerRecord(1, 0, "").encode()
    with pytest.raises(RecordError):
        Expiry(1, -1).encode()
    with pytest.raises(RecordError):
        ProducerRecord(
            1, 1, "", certificates={"orders/3": Certificate(1, {}, tuple(range(200_000)))}
        ).encode()
