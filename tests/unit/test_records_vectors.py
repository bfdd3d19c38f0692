"""The published vectors of the wire format, and that the page names every field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kpsplit.consumer.fetch.record_filter import read_headers
from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import home_of
from kpsplit.splitter.records import control
from kpsplit.splitter.records.data import MARKER_HEADER, Marker, Stamp, marker_among
from kpsplit.splitter.records.keys import parse_control_key
from kpsplit.splitter.records.offsets import CommitKey, decode_boundary, decode_range_commit, parse_offset_key
from kpsplit.splitter.records.producers import decode_record

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "wire-format.md").read_text("utf-8")
VECTORS = json.loads((DOCS / "vectors/records.json").read_text("utf-8"))
MARKERS = json.loads((DOCS / "vectors/markers.json").read_text("utf-8"))


def _range_commit(data: bytes) -> bytes:
    value = json.loads(data)
    range_ = KeyRange(value.get("lo", 0), value.get("hi", 1)) if value.get("lo") != value.get("hi") else WHOLE
    key = CommitKey("billing", PhysicalPartition("orders", 3), range_)
    return decode_range_commit(key, data).encode()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "settings": lambda data: control.encode_settings(control.decode_settings(data)),
    "enrolment": lambda data: control.encode_enrolment(control.decode_enrolment(data)),
    "claim": lambda data: control.encode_claim(control.decode_claim(data)),
    "state": lambda data: control.encode_state(control.decode_state(data)),
    "producer": lambda data: decode_record(b"000000000000a1b2", data).encode(),
    "boundary": lambda data: decode_boundary(data).encode(),
    "range commit": _range_commit,
    "marker": lambda data: Marker.decode(data).encode(),
}


def test_every_form_has_a_vector() -> None:
    assert {v["form"] for v in VECTORS["records"]} == {v["form"] for v in VECTORS["newer"]} == set(FORMS)


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda v: v["form"])
def test_a_published_record_is_read_and_written_again_byte_by_byte(vector: dict[str, str]) -> None:
    data = vector["value"].encode("ascii")
    assert FORMS[vector["form"]](data) == data


@pytest.mark.parametrize("vector", VECTORS["older"], ids=lambda v: v["form"])
def test_a_published_record_of_an_older_version_is_read_and_written_in_the_newest(
    vector: dict[str, str],
) -> None:
    assert FORMS[vector["form"]](vector["older"].encode()) == vector["value"].encode()


@pytest.mark.parametrize("vector", VECTORS["garbage"], ids=lambda v: v["why"])
def test_published_garbage_is_rejected(vector: dict[str, str]) -> None:
    with pytest.raises(RecordError) as caught:
        FORMS[vector["form"]](vector["value"].encode())
    assert not isinstance(caught.value, FutureVersionError)


@pytest.mark.parametrize("vector", VECTORS["newer"], ids=lambda v: v["form"])
def test_a_published_record_of_a_newer_version_stops_the_reader(vector: dict[str, str]) -> None:
    with pytest.raises(FutureVersionError):
        FORMS[vector["form"]](vector["value"].encode())


@pytest.mark.parametrize("vector", MARKERS["headers"], ids=lambda v: v["why"])
def test_published_headers_are_a_marker_or_newer_or_data(vector: dict[str, Any]) -> None:
    """Spark: ``test_published_headers_are_the_same_to_spark``."""
    headers = [(MARKER_HEADER, None if v is None else v.encode()) for v in vector["values"]]
    if vector["is"] == "newer":
        with pytest.raises(FutureVersionError):
            read_headers(headers)
        with pytest.raises(FutureVersionError):
            marker_among(headers)
        return
    marker = read_headers(headers).marker
    assert marker == marker_among(headers)
    assert (marker and str(marker.parent)) == vector.get("of")


@pytest.mark.parametrize("vector", VECTORS["stamps"], ids=lambda v: v["hex"])
def test_a_published_stamp_is_read_and_written_byte_by_byte(vector: dict[str, Any]) -> None:
    stamp = Stamp(vector["epoch"], vector["instance"], vector["sequence"], vector["home"])
    assert stamp.encode().hex() == vector["hex"]
    assert Stamp.decode(bytes.fromhex(vector["hex"])) == stamp


@pytest.mark.parametrize("vector", VECTORS["homes"], ids=lambda v: v["home"])
def test_a_published_home_is_computed(vector: dict[str, Any]) -> None:
    place = (vector["topic_id"], vector["partition"], vector["source_topic"], vector["source_partition"])
    assert home_of(*place) == vector["home"]


def test_the_keys_of_published_records_are_those_of_the_page() -> None:
    keys = {v["form"]: v["key"] for v in reversed(VECTORS["records"])}
    assert parse_control_key(keys["settings"].encode()) is None
    assert parse_control_key(keys["enrolment"].encode()) == "orders"
    assert parse_control_key(keys["state"].encode()) == PhysicalPartition("orders", 3)
    assert keys["claim"].encode() == control.claim_key(PhysicalPartition("orders", 3))
    for form in ("boundary", "range commit"):
        key = parse_offset_key(keys[form].encode())
        assert key.encode() == keys[form].encode()
        assert isinstance(key, CommitKey) == (form == "range commit")


def fields(value: Any) -> Iterator[str]:
    """Every field name inside a JSON value; keys of maps (partitions, segment ids) are not names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if re.fullmatch(r"[a-z_]+", name):
                yield name
            yield from fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner)


def test_the_page_names_every_field_that_is_written() -> None:
    written = {name for v in VECTORS["records"] for name in fields(json.loads(v["value"]))}
    assert {name for name in written if f"`{name}`" not in PAGE} == set()
