"""A few rows of the driver's as a DataFrame, made by Spark itself: no executor needs Python for it.

``createDataFrame`` with a list pickles the rows, and each executor starts Python to unpickle them: the same
Python, at the same path, with PySpark, on every node. JSON is parsed by Spark.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StructType

_FAIL = {"mode": "FAILFAST"}


def small_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: StructType) -> DataFrame:
    """Return rows of a schema as a DataFrame."""
    names = schema.fieldNames()
    listed = [dict(zip(names, map(_as_json, row), strict=True)) for row in rows]
    parsed = F.from_json(F.lit(json.dumps(listed)), ArrayType(schema), _FAIL)
    return spark.range(1, numPartitions=1).select(F.inline(parsed))


def _as_json(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes | bytearray) else value
