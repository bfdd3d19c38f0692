"""What is a marker: Spark and Python agree on every published header (tests/unit/test_records_vectors.py)."""

from __future__ import annotations

import json
from pathlib import Path

from kpsplit.spark_jobs.records import with_our_headers
from kpsplit.splitter.records.data import MARKER_HEADER

VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/markers.json").read_text("utf-8"))["headers"]
COLUMNS = "number INT, home BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def test_published_headers_are_the_same_to_spark(spark) -> None:
    rows = [
        (
            n,
            bytes(8),
            [(MARKER_HEADER, None if v is None else bytearray(v.encode())) for v in vector["values"]],
        )
        for n, vector in enumerate(VECTORS)
    ]
    found = with_our_headers(spark.createDataFrame(rows, COLUMNS)).orderBy("number").collect()
    told = {
        VECTORS[r.number]["why"]: ("newer", None)
        if r.is_newer
        else ("marker" if r.marker_of is not None else "data", r.marker_of)
        for r in found
    }
    assert told == {v["why"]: (v["is"], v.get("of")) for v in VECTORS}
