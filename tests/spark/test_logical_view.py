"""The logical view on real brokers, compared with what the lineage reader of kpsplit reads."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, Row

from kpsplit.consumer.fetch.lineage_reader import LogicalRecord
from kpsplit.errors import UsageError
from kpsplit.spark_jobs import read_logical
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import reader_hash
from tests.broker.operating import enrolled, state_of

pytestmark = [pytest.mark.broker]


def flat(record: LogicalRecord, parent: PhysicalPartition, range_: KeyRange) -> tuple[object, ...]:
    stamp = record.stamp
    return (
        *(parent.topic, parent.partition, record.logical_offset, record.segment, record.epoch),
        *(record.key, record.value, record.timestamp, record.headers),
        *(record.source_topic, record.source_partition, record.source_offset),
        reader_hash(record.key, record.source_offset, range_),
        *((stamp.epoch, f"{stamp.instance:016x}", stamp.sequence) if stamp else (None, None, None)),
    )


def row(r: Row) -> tuple[object, ...]:
    return (
        *(r.topic, r.partition, r.offset, r.segment, r.epoch),
        *(r.key if r.key is None else bytes(r.key), bytes(r.value), int(r.timestamp.timestamp() * 1000)),
        tuple((h.key, bytes(h.value)) for h in r.headers or ()),
        *(r.source_topic, r.source_partition, r.source_offset, r.key_hash),
        *(r.stamp_epoch, r.producer, r.sequence),
    )


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((row(r) for r in frame.collect()), key=lambda r: r[2])


def test_the_view_has_the_records_of_the_lineage_reader_with_the_same_logical_offsets(spark, history) -> None:
    view = read_logical(spark, history.topic, {"bootstrap.servers": history.bootstrap}, include_headers=True)
    ranges = {s.id: s.range for s in state_of(history.operations, history.parent).lineage}
    wanted = sorted((flat(r, history.parent, ranges[r.segment]) for r in history.read()), key=lambda r: r[2])
    found = rows(view)
    assert found == wanted
    assert len({r[3] for r in found}) > 6, "records of every layout"
    assert any(r[-1] is None for r in found), "records of foreign writers"
    assert any(r[5] is None for r in found), "records without a key"


def test_a_read_begins_and_ends_at_logical_offsets(spark, history) -> None:
    everything = sorted(r.logical_offset for r in history.read())
    start, end = everything[len(everything) // 3], everything[2 * len(everything) // 3]
    view = read_logical(
        spark,
        history.topic,
        {"bootstrap.servers": history.bootstrap},
        starting_offsets={0: start},
        ending_offsets={0: end},
    )
    found = sorted(r.offset for r in view.select("offset").collect())
    assert found == [o for o in everything if start <= o < end]


def test_a_read_begins_and_ends_at_times(spark, history) -> None:
    records = history.read()
    times = sorted(r.timestamp for r in records)
    start, end = times[len(times) // 3], times[2 * len(times) // 3]
    view = read_logical(
        spark,
        history.topic,
        {"bootstrap.servers": history.bootstrap},
        starting_offsets=datetime.fromtimestamp(start / 1000, UTC),
        ending_offsets=datetime.fromtimestamp(end / 1000, UTC),
    )
    found = sorted(r.offset for r in view.select("offset").collect())
    assert found == sorted(r.logical_offset for r in records if start <= r.timestamp < end)


def test_what_is_not_enrolled_or_not_there_is_refused(spark, bootstrap, operations, make_topic) -> None:
    topic = make_topic()
    with pytest.raises(UsageError, match="not enrolled"):
        read_logical(spark, topic, {"bootstrap.servers": bootstrap})
    enrolled(operations, topic)
    with pytest.raises(UsageError, match="no partition 7"):
        read_logical(spark, topic, {"bootstrap.servers": bootstrap}, partitions=[7])
    assert read_logical(spark, topic, {"bootstrap.servers": bootstrap}).count() == 0
