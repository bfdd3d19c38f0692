"""The demo's figures: percentiles, latencies in and out of fences, series, what the watch measures."""

from __future__ import annotations

import pytest

from kpsplit.control.status import Spread, percentile
from kpsplit.demo.endpoints import WriterNews, WriterOrders, WriterStage
from kpsplit.demo.records import JournalEntry
from kpsplit.demo.timeline import (
    OperationTimeline,
    Samples,
    Timeline,
    TimeSpan,
    by_time,
    latencies,
    longest_waits,
    slowest,
    throughput,
    until_caught_up,
    without_suspended,
)
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.testing import SendOutcome

HOT, OTHER = 2, 4


def entry(partition: int, sent_at: float, reported_at: float | None) -> JournalEntry:
    outcome = SendOutcome.UNKNOWN if reported_at is None else SendOutcome.OK
    return JournalEntry(0, b"k", partition, sent_at, outcome, partition, 0, reported_at)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.99, 4), (1.0, 4)]
)
def test_percentiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4], share) == expected


def test_nothing_has_a_spread_of_zeros() -> None:
    assert Spread.of([]) == Spread(0, 0.0, 0.0, 0.0)
    assert Spread.of([3, 1, 2]) == Spread(3, 2, 3, 3)


def test_latencies_are_told_apart_by_partition_and_fence() -> None:
    fences = [TimeSpan("split", 10.0, 10.1)]
    entries = [
        entry(HOT, 9.95, 10.2),
        entry(HOT, 10.2, 10.3),
        entry(OTHER, 10.05, 10.06),
        entry(OTHER, 11.0, 11.5),
        entry(HOT, 12.0, None),
    ]
    found = latencies(entries, HOT, fences)
    assert (found.affected_in.count, found.affected_in.most) == (1, pytest.approx(250))
    assert (found.affected_outside.count, found.affected_outside.most) == (1, pytest.approx(100))
    assert (found.others_in.count, found.others_in.most) == (1, pytest.approx(10))
    assert (found.others_outside.count, found.others_outside.most) == (1, pytest.approx(500))
    assert longest_waits(entries, HOT, fences) == [pytest.approx(250)]


def test_what_was_under_way_in_a_writers_suspension_is_left_out() -> None:
    entries = [entry(HOT, 1.0, 1.1), entry(HOT, 4.9, 9.0), entry(HOT, 9.5, 9.6), entry(HOT, 6.0, None)]
    left = without_suspended(entries, TimeSpan("suspended", 5.0, 8.0))
    assert [e.sent_at for e in left] == [1.0, 9.5, 6.0]
    assert without_suspended(entries, None) == entries


def test_a_suspended_writer_has_caught_up_when_all_that_was_under_way_is_reported() -> None:
    suspension = TimeSpan("suspended", 5.0, 8.0)
    entries = [entry(HOT, 1.0, 1.1), entry(HOT, 4.9, 9.0), entry(HOT, 7.9, 8.5), entry(HOT, 8.2, 9.9)]
    assert until_caught_up(entries, suspension) == TimeSpan("suspended", 5.0, 9.0)
    assert until_caught_up([], suspension) == suspension


def test_throughput_counts_records_per_second_in_bins() -> None:
    series = throughput("x", [10.0, 10.1, 10.6, 99.0, 9.0], 10.0, 1.0, 0.5)
    assert series.values == (4.0, 2.0)


def test_a_bin_without_samples_has_no_value() -> None:
    assert by_time("x", [(10.1, 5.0), (10.2, 7.0)], 10.0, 1.0, 0.5, slowest).values == (7.0, None)


def test_a_fence_lasts_from_its_record_to_the_commit() -> None:
    log = OperationTimeline("split")
    log.steps += [
        (1.0, StepDone("Prepare", 0.1)),
        (5.0, StepDone("Fence", 0.5)),
        (6.0, StepDone("Commit", 0.25)),
    ]
    assert log.fence == TimeSpan("split", 4.5, 6.0)
    rolled_back = OperationTimeline(
        "merge", steps=[(5.0, StepDone("Fence", 0.5)), (6.0, StepDone("Abort", 0.1))]
    )
    assert rolled_back.fence is None
    assert Timeline(0.0, "t", operations=[log, rolled_back]).fences == [TimeSpan("split", 4.5, 6.0)]


def test_the_hottest_partition_is_the_one_that_grew_most_lately() -> None:
    a, b = PhysicalPartition("t", 0), PhysicalPartition("t", 1)
    samples = Samples()
    for at, ends in [
        (0.0, {a: 0, b: 0}),
        (1.0, {a: 900, b: 10}),
        (2.0, {a: 910, b: 210}),
        (3.0, {a: 920, b: 410}),
    ]:
        samples.add(at, ends)
    assert samples.hottest([a, b], 0.0) == [a, b]
    assert samples.reach([a, b], 1.0) and not samples.reach([a, b], 60.0)
    assert samples.hottest([a, b], 1.5) == [b, a]
    assert samples.grown(b, 1.5) == 400
    assert samples.rate(b, 1.0) == pytest.approx(200)
    unknown = PhysicalPartition("t", 2)
    assert (samples.grown(unknown, 0.0), samples.rate(unknown, 1.0)) == (0, 0.0)


def test_orders_and_news_survive_the_pipe() -> None:
    orders = WriterOrders(
        name="w",
        properties={"bootstrap.servers": "b"},
        topic="t",
        journal="/j",
        partitions=6,
        rate=1.5,
        seed=7,
        plain=True,
        writers=("w", "x"),
        input="/in",
        expression=r"^(\S+)",
    )
    assert WriterOrders.decode(orders.encode()) == orders
    news = WriterNews(WriterStage.DRAINING, 5, 4, 1, 0, 2, 3, (10, 20), {"t/1": 2}, "why")
    assert WriterNews.decode(news.encode()) == news
