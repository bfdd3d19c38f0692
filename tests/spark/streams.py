"""Runs streaming queries and records what each of their micro-batches holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StreamingQuery

from kpsplit.clock import Deadline
from tests.broker.consuming import wait_for

SECONDS = 300.0
"""A query that has not ended by then hangs."""


def await_end(query: StreamingQuery) -> None:
    """Wait until a query has ended; raise what ended it. One that hangs is reported with what it is at."""
    limit = Deadline(SECONDS)
    while not query.awaitTermination(1):
        limit.check(f"a query to end; it is at: {query.status}, its last batch: {query.lastProgress}")


class Recorder:
    """The rows of every micro-batch, by its number. A batch that is run again must hold the same rows."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Row]] = {}
        self.fail_once = False
        self.repeated = 0

    @property
    def rows(self) -> list[Row]:
        """All rows, batch after batch, in the order in which the tasks gave them."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def offsets(self) -> list[int]:
        """The logical offsets, sorted."""
        return sorted(row.logical_offset for row in self.rows)

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Start a query that goes on where the checkpoint is."""
        return self._writer(frame).trigger(processingTime="0 seconds").start()

    @contextmanager
    def running(self, frame: DataFrame) -> Iterator[StreamingQuery]:
        """Run a query for as long as the block lasts."""
        query = self.start(frame)
        try:
            yield query
        finally:
            query.stop()

    def read_all(self, query: StreamingQuery, count: int) -> None:
        """Have a query read what there is, until so many rows came; there are no more.

        Where brokers do not answer, the source says that nothing is new: Spark takes that for all there is.
        """

        def done() -> bool:
            query.processAllAvailable()
            return len(self.rows) >= count

        wait_for(done, f"a query to read {count} rows")
        assert len(self.rows) == count

    def read_what_is_there(self, frame: DataFrame) -> None:
        """Run one query that ends when it has read everything."""
        await_end(self._writer(frame).trigger(availableNow=True).start())

    def check_order(self) -> None:
        """Per key and partition, the rows are in order across batches and inside each.

        Those of writers that do not use kpsplit on their own: an overflow is beside the phantoms.
        """
        keys: dict[tuple[int, bytes, bool], list[int]] = {}
        for row in self.rows:
            if row.key is not None:
                keys.setdefault((row.partition, bytes(row.key), row.producer is None), []).append(
                    row.logical_offset
                )
        for key, offsets in keys.items():
            assert all(a < b for a, b in pairwise(offsets)), f"{key}: {offsets}"

    def _writer(self, frame: DataFrame):
        return frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(self._record)

    def _record(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        if number in self.batches:
            self.repeated += 1
            assert [tuple(r) for r in rows] == [tuple(r) for r in self.batches[number]]
        self.batches[number] = rows
        if self.fail_once:
            self.fail_once = False
            raise RuntimeError("the sink fails once")
