"""Records of the producers topic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kpsplit.errors import RecordError
from kpsplit.splitter.records.producers import (
    Certificate,
    Newer,
    PauseReport,
    ProducerRegistration,
    Removed,
    decode_entry,
    decode_record,
)

FULL = ProducerRegistration(
    instance=0xA1,
    generation=3,
    client_id="checkout-7",
    transactional_id="checkout",
    topics=("orders", "returns"),
    ready={"orders/3": "attempt-1"},
    acknowledged={"orders/3": "attempt-1"},
    pauses={"orders/3": PauseReport("attempt-1", 35, 812, 2)},
    closed=True,
    certificates={"orders/3": Certificate(1000, {"0": 600, "2": 399}, (17,), "id-of-orders")},
)


def test_each_registration_of_an_instance_has_a_key_of_its_own() -> None:
    keys = {replace(FULL, generation=n).key for n in range(1, 1000)}
    assert len(keys) == 999
    assert replace(FULL, generation=1).key == b"00000000000000a1"


def test_a_record_under_the_key_of_another_registration_is_rejected() -> None:
    with pytest.raises(RecordError, match="another registration"):
        decode_record(replace(FULL, generation=2).key, FULL.encode())


def test_a_tombstone_and_a_registration_are_read() -> None:
    assert decode_entry(FULL.key, None) == Removed(FULL.key)
    assert decode_entry(FULL.key, FULL.encode()) == FULL


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_registration_of_a_version_that_was_never_released_is_garbage(version: int) -> None:
    """It would be waited for in each operation, and never be removed."""
    value = json.loads(FULL.encode()) | {"v": version}
    with pytest.raises(RecordError, match="no longer read"):
        decode_entry(FULL.key, json.dumps(value).encode())


@pytest.mark.parametrize("key", [None, b"", b"anything", FULL.key])
def test_nothing_stands_under_a_key_with_a_tombstone(key: bytes | None) -> None:
    assert decode_entry(key, None) == Removed(key or b"")


@pytest.mark.parametrize("transactional_id", ["checkout", "kpsplit", "kpsplit.run.billing/a1", None])
def test_a_producer_has_any_transactional_id_that_is_not_kpsplits_own(transactional_id: str | None) -> None:
    record = replace(FULL, transactional_id=transactional_id)
    assert decode_entry(record.key, record.encode()) == record


@pytest.mark.parametrize(
    "transactional_id", ["", "check\0out", "kpsplit.", "kpsplit.op.orders/3", "kpsplit.commit.billing/a1"]
)
def test_a_registration_with_a_transactional_id_that_no_producer_has_is_rejected(
    transactional_id: str,
) -> None:
    value = json.loads(FULL.encode()) | {"transactional_id": transactional_id}
    with pytest.raises(RecordError, match="transactional_id"):
        decode_entry(FULL.key, json.dumps(value).encode())


def test_of_a_newer_registration_the_topics_are_known() -> None:
    newer = json.loads(FULL.encode()) | {"v": 99, "surprise": {}}
    assert decode_entry(FULL.key, json.dumps(newer).encode()) == Newer(FULL.key, FULL.topics)


@pytest.mark.parametrize("value", [b'{"v":99}', b'{"v":99,"topics":"orders"}', b'{"v":99999,"topics":[]}'])
def test_a_newer_record_that_names_no_topics_is_garbage(value: bytes) -> None:
    for key in (FULL.key, b"any key"):
        with pytest.raises(RecordError) as rejected:
            decode_entry(key, value)
        assert type(rejected.value) is RecordError


@pytest.mark.parametrize(
    "key", [None, b"", b"a1", b"00000000000000A1", b"00000000000000a1!", b"00000000000000a1\n"]
)
def test_a_key_that_kpsplit_never_writes_is_rejected(key: bytes | None) -> None:
    with pytest.raises(RecordError, match="key"):
        decode_record(key, FULL.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"instance": "A1"},
        {"topics": "orders"},
        {"topics": [1]},
        {"topics": ["x" * 250]},
        {"ready": []},
        {"ready": {"orders/3": 1}},
        {"pauses": {"orders/3": 1}},
        {"pauses": {"orders/3": {"attempt": "a"}}},
        {"closed": 1},
        {
            "certificates": {
                "orders/3": {"next_sequence": 1, "delivered": {"first": 1}, "failed": [], "topic_id": None}
            }
        },
        {
            "certificates": {
                "orders/3": {"next_sequence": 1, "delivered": {"0": -1}, "failed": [], "topic_id": None}
            }
        },
        {
            "certificates": {
                "orders/3": {"next_sequence": 1, "delivered": {}, "failed": [True], "topic_id": None}
            }
        },
        {"surprise": None},
    ],
)
def test_a_malformed_record_is_rejected(changes: dict[str, Any]) -> None:
    value = json.loads(FULL.encode()) | changes
    with pytest.raises(RecordError):
        decode_record(FULL.key, json.dumps(value).encode())


def test_what_readers_would_reject_is_never_written() -> None:
    with pytest.raises(RecordError):
        ProducerRegistration(1, 0, "").encode()
    with pytest.raises(RecordError):
        ProducerRegistration(
            1, 1, "", certificates={"orders/3": Certificate(1, {}, tuple(range(200_000)))}
        ).encode()
