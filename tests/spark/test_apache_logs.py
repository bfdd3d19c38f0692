"""Real requests through a split, a nested split and a merge are clean, in each layout on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kpsplit import Producer
from kpsplit.spark_jobs import Verdict, read_logical, verify
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.operating import PAUSE_MS, enrolled, merge

pytestmark = [pytest.mark.broker, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """Real log lines that are not part of the repository."""
    named = os.environ.get("KPSPLIT_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    path = folder / "apache_logs"
    if not path.is_file():
        pytest.skip(f"no {path}: set KPSPLIT_TEST_DATA to a folder with a file apache_logs")
    return path.read_bytes().splitlines()


def test_real_requests_are_clean_in_each_layout(spark, operations, bootstrap, make_topic, lines) -> None:
    """A quarter of the lines in each layout, by two producers; the values come back as they were."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    connection = {"bootstrap.servers": bootstrap}
    quarter = -(-len(lines) // 4)
    parts = [lines[at : at + quarter] for at in range(0, len(lines), quarter)]
    judged: list[int] = []
    with Producer(connection) as anna, Producer(connection) as bert:
        for part, change in zip(parts, (split_by_load, split_again, merge, None), strict=True):
            for number, line in enumerate(part):
                (anna, bert)[number % 2].produce(topic, line, line.split(b" ", 1)[0], 0)
            assert anna.flush(30) + bert.flush(30) == 0
            if change is not None:
                change(operations, parent)
            if change in (split_by_load, merge):
                judged.append(clean_count(verify(spark, topic, connection), parent))
    judged.append(clean_count(verify(spark, topic, connection), parent))
    assert judged == [quarter, 3 * quarter, len(lines)]
    back = read_logical(spark, topic, connection).select("value").collect()
    assert sorted(bytes(row.value) for row in back) == sorted(lines)


def clean_count(verdict: Verdict, parent: PhysicalPartition) -> int:
    assert verdict.clean, (verdict.defects, verdict.unproven)
    return verdict.counts[str(parent)]["data"]


def split_by_load(operations, parent: PhysicalPartition) -> None:
    operations.run(operations.plan_split(parent, 4), max_pause_ms=PAUSE_MS, force=True)


def split_again(operations, parent: PhysicalPartition) -> None:
    layout = operations.view().state(parent).lineage.open_segments()
    plan = operations.plan_split(parent, 2, of=layout[0].range)
    operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
