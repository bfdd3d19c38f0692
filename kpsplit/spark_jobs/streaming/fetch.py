"""Reads the offsets of one task from Kafka, as Arrow. Runs on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.pandas.types import to_arrow_schema

from kpsplit.consumer.physical_reader import LostStartError, PhysicalReader
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.schemas import REGIONS
from kpsplit.spark_jobs.streaming.schema import PLACED
from kpsplit.splitter.lineage import PhysicalPartition

ROWS = 2000
BYTES = 8 << 20
"""So many records, or bytes of values, are one Arrow batch: bounds what a task holds at a time."""

_log = logging.getLogger(__name__)
_FIRST, _BEHIND = REGIONS.fieldNames().index("first"), REGIONS.fieldNames().index("behind")


def fetch(
    connection: Connection, regions: Sequence[tuple[Any, ...]], patience: float, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of regions (rows of ``schemas.REGIONS``), one region after the other.

    Raises:
        KpsplitError: a broker cannot be reached, or records are gone.
    """
    reader = PhysicalReader(connection, patience)
    try:
        for region in regions:
            for block in _blocks(_records(reader, region, fail_on_data_loss)):
                yield _arrow(block, region)
    finally:
        reader.close()


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
    found = message.headers()
    pairs = found.items() if isinstance(found, dict) else found or ()
    return [(n, v.encode() if isinstance(v, str) else v) for n, v in pairs] or None


_SCHEMA = to_arrow_schema(PLACED)
