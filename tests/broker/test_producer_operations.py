"""Splits and merges under producers that write, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpsplit import Producer
from kpsplit.kafka.operations import Operations
from kpsplit.splitter.key_range import KeyRange
from tests.broker.operating import PAUSE_MS, enrolled, merge, operating, split
from tests.broker.producing import Journal, Writer, eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def operations(bootstrap: str) -> Iterator[Operations]:
    with operating(bootstrap) as running:
        yield running


@pytest.mark.timeout(120)
def test_threads_write_through_a_split_a_nested_split_and_a_merge(operations, bootstrap, make_topic) -> None:
    topic = make_topic(partitions=2)
    parent = enrolled(operations, topic)
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 1}) as shared:
        with Producer({"bootstrap.servers": bootstrap}) as own:
            writers = [
                Writer(shared, topic, journal, "a"),
                Writer(shared, topic, journal, "b"),
                Writer(own, topic, journal, "c"),
            ]
            for writer in writers:
                writer.start()
            for step in (
                lambda: split(operations, parent),
                lambda: operations.run(
                    operations.plan_split(parent, 2, of=KeyRange(1 << 30, 2 << 30), even=True),
                    max_pause_ms=PAUSE_MS,
                    force=True,
                ),
                lambda: merge(operations, parent),
            ):
                before = [w.count for w in writers]
                eventually(
                    lambda before=before: all(
                        w.count > b + 100 or w.error for w, b in zip(writers, before, strict=True)
                    ),
                    "writers to write",
                )
                step()
            for writer in writers:
                writer.stop()
            assert own.flush(30) == 0
            stats = own.layout_stats()
        assert shared.flush(30) == 0
    tally = journal.check(operations, bootstrap, topic, 2)
    assert tally.strays == 0
    mine = stats.partitions[f"{topic}/0"]
    assert (mine.epoch, mine.fences, mine.strays, mine.failed, mine.waiting) == (3, 3, 0, 0, 0)
    assert mine.held > 0
    assert len(stats.pauses_ms) == 3
