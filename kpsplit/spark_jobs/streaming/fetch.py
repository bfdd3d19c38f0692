"""Reads the offsets of one task from Kafka, as Arrow. Runs on executors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.pandas.types import to_arrow_schema

from kpsplit.consumer.fetch.physical_reader import AHEAD, LostStartError, PhysicalReader
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import headers_of
from kpsplit.spark_jobs.connector_options import portable
from kpsplit.spark_jobs.schemas import PLACED, REGIONS
from kpsplit.splitter.lineage import PhysicalPartition

ROWS = 2000
BYTES = 8 << 20
"""So many records, or bytes of values, are one Arrow batch: bounds what a task holds at a time."""

_LEAST = 1_000
_SPARE = 8
"""A reader is taken for a task if it fetches at most so many times as many records ahead as that reads."""

_kept: dict[str, PhysicalReader] = {}
"""The reader that the last task of this process left, if it was done; at most one."""

_log = logging.getLogger(__name__)
_FIRST, _BEHIND = REGIONS.fieldNames().index("first"), REGIONS.fieldNames().index("behind")


def fetch(
    connection: Connection, regions: Sequence[tuple[Any, ...]], patience: float, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of regions (rows of ``schemas.REGIONS``), one region after the other.

    Raises:
        KpsplitError: a broker cannot be reached, or records are gone.
    """
    most = max((region[_BEHIND] - region[_FIRST] for region in regions), default=0)
    with _reader(connection, patience, most) as reader:
        for region in regions:
            for block in _blocks(_records(reader, region, fail_on_data_loss)):
                yield _arrow(block, region)


@contextmanager
def _reader(connection: Connection, patience: float, most: int) -> Iterator[PhysicalReader]:
    """Yield a reader: the one that the task before left in this process, if it fits, else a new one.

    Spark keeps its Python processes for the tasks of later batches. A client that is connected already reads
    at once; between two tasks it fetches nothing. After an error, and where a task is not read to its end, it
    is closed.
    """
    name = json.dumps([portable(connection.properties), patience], sort_keys=True)
    least = max(min(most, AHEAD), _LEAST)
    kept = _kept.pop(name, None)
    while _kept:  # of another query
        _kept.popitem()[1].close()
    if kept is not None and not least <= kept.ahead <= _SPARE * least:
        kept.close()
        kept = None
    reader = kept or PhysicalReader(connection, patience, least)
    try:
        yield reader
        reader.rest()
    except BaseException:
        reader.close()
        raise
    _kept[name] = reader


def _blocks(records: Iterator[Message]) -> Iterator[list[Message]]:
    block: list[Message] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record)
        if len(block) >= ROWS or size >= BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _records(reader: PhysicalReader, region: tuple[Any, ...], fail_on_data_loss: bool) -> Iterator[Message]:
    source = PhysicalPartition(region[0], region[1])
    first, behind = region[_FIRST], region[_BEHIND]
    while True:
        try:
            yield from reader.records(source, first, behind)
            break
        except LostStartError as lost:
            bounds = reader.bounds(source)
            low = behind if bounds is None else min(max(bounds.low, lost.position), behind)
            extent = f"offsets {lost.position} to {low - 1} of {source} are gone"
            if fail_on_data_loss or low <= lost.position:
                raise KpsplitError(
                    f"records that were not read yet are lost: {extent}",
                    hint="go on without them with fail_on_data_loss=False, from the same checkpoint",
                ) from None
            _log.warning("passed over: %s", extent)
            first = low
    if first < behind and reader.position < behind:
        raise KpsplitError(
            f"{source} ends at {reader.position}, although it was read committed to {behind}",
            hint="the log was cut off; look at: kpsplit status",
        )


def _arrow(records: list[Message], region: tuple[Any, ...]) -> pa.RecordBatch:
    times = [m.timestamp() for m in records]
    count = len(records)
    read: dict[str, list[Any]] = {
        "key": [m.key() for m in records],
        "value": [m.value() for m in records],
        "offset": [m.offset() for m in records],
        "timestamp": [at * 1000 for _, at in times],
        "timestampType": [kind - 1 for kind, _ in times],
        "headers": [_headers(m) for m in records],
    }
    same = dict(zip(REGIONS.fieldNames(), region, strict=True))
    columns = [
        pa.array(read[f.name], f.type)
        if f.name in read
        else pa.repeat(pa.scalar(same[f.name], f.type), count)
        for f in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    return headers_of(message) or None


_SCHEMA = to_arrow_schema(PLACED)
