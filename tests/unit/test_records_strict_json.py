"""Strict JSON: everything unexpected is rejected with a RecordError, and with nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.records.control import decode_enrolment, decode_settings, decode_state
from kpsplit.splitter.records.offsets import CommitKey, decode_boundary, decode_range_commit
from kpsplit.splitter.records.producers import decode_record
from kpsplit.splitter.records.strict_json import MAX_BYTES, decode, encode
from tests.unit.samples import PARENT

DECODERS: dict[str, Callable[[bytes | None], object]] = {
    "settings": decode_settings,
    "enrolment": decode_enrolment,
    "state": decode_state,
    "producer": lambda data: decode_record(b"00000000000000a1", data),
    "boundary": decode_boundary,
    "range commit": lambda data: decode_range_commit(CommitKey("g", PARENT, WHOLE), data),
}

BAD_BYTES: dict[str, bytes | None] = {
    "a tombstone": None,
    "nothing": b"",
    "not UTF-8": b"\xff\xfe\x00",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "truncated": b'{"v":1,"lease_ms":50',
    "two objects": b'{"v":1}{"v":1}',
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "no version": b'{"lease_ms":5000}',
    "a version that is a text": b'{"v":"1"}',
    "a version that is true": b'{"v":true}',
    "version zero": b'{"v":0}',
    "a version beyond all sense": b'{"v":%d}' % 10**4000,
    "a duplicate key": b'{"v":1,"lease_ms":5000,"lease_ms":5001}',
    "a duplicate version": b'{"v":1,"v":2}',
    "NaN": b'{"v":1,"lease_ms":NaN}',
    "Infinity": b'{"v":1,"lease_ms":-Infinity}',
    "a float": b'{"v":1,"lease_ms":5000.0}',
    "an exponent": b'{"v":1,"lease_ms":5e3}',
    "more digits than Python reads": b'{"v":1,"lease_ms":' + b"9" * 5000 + b"}",
    "many digits": b'{"v":1,"lease_ms":' + b"9" * 4000 + b"}",
    "nested lists without end": b"[" * 100_000,
    "nested objects without end": b'{"v":' * 100_000,
    "too large": b" " * (MAX_BYTES + 1),
    "random letters": b"kpsplit",
}


@pytest.mark.parametrize("form", DECODERS)
@pytest.mark.parametrize("name", BAD_BYTES)
def test_garbage_is_rejected_as_a_record_and_with_no_other_error(form: str, name: str) -> None:
    with pytest.raises(RecordError) as caught:
        DECODERS[form](BAD_BYTES[name])
    assert not isinstance(caught.value, FutureVersionError)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("form", DECODERS)
def test_a_newer_version_is_told_from_garbage_whatever_else_the_record_holds(form: str) -> None:
    with pytest.raises(FutureVersionError, match="version 9 is newer"):
        DECODERS[form](b'{"v":9,"what":["nobody","knows"]}')


@pytest.mark.parametrize("depth", range(900, 1001, 1))
def test_a_value_nested_nearly_as_deep_as_python_allows_is_rejected_wherever_it_stands(depth: int) -> None:
    """JSON of that depth is read, but showing or comparing the value would go too deep."""
    if sys.getrecursionlimit() != 1000:
        depth += sys.getrecursionlimit() - 1000
    nested = b"[" * depth + b"]" * depth
    segment = b'{"v":1,"topic":"orders","partition":3,"segments":[{"kind":' + nested + b"}]}"
    for data in (segment, b'{"v":1,"marker":' + nested + b"}", b'{"v":1,"lease_ms":' + nested + b"}"):
        for read in DECODERS.values():
            with pytest.raises(RecordError):
                read(data)


def test_no_record_over_the_limit_is_written() -> None:
    with pytest.raises(RecordError, match="over the limit"):
        encode({"v": 1, "text": "x" * MAX_BYTES})


def test_the_greatest_record_within_the_limit_is_written() -> None:
    assert len(encode({"v": 1, "text": "x" * (MAX_BYTES - 17)})) <= MAX_BYTES


def test_an_unknown_field_is_named_but_its_value_is_never_shown() -> None:
    with pytest.raises(RecordError) as caught:
        decode_settings(b'{"v":1,"lease_ms":5000,"password":"hunter2"}')
    assert "password" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_text_of_the_allowed_length_and_any_script_is_taken() -> None:
    fields = decode('{"v":1,"name":"日本🙂"}'.encode(), "record", 1)
    assert fields.text("name", 3) == "日本🙂"
    fields.done()
