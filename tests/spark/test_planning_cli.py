"""``kpsplit plan --engine spark`` on brokers: a plan from all records, run by ``kpsplit split --plan``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from kpsplit.admin_cli.main import cli
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.operating import enrolled, state_of

pytestmark = [pytest.mark.broker]

LONG_AGO, NOW = 1_600_000_000_000, 1_700_000_000_000
CONFLICT = 5


class Commands:
    """The command line on the session's brokers, in this process, which has the Spark session."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, verb: str, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["-b", self._bootstrap, "-o", "json", verb, *arguments])

    def plan(self, *arguments: str) -> dict:
        ran = self("plan", *arguments, "--engine", "spark")
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)


@pytest.fixture
def kpsplit(spark, bootstrap: str) -> Commands:
    return Commands(bootstrap)


@pytest.fixture
def parent(operations, bootstrap, make_topic) -> PhysicalPartition:
    """A partition whose load was in the low keys long ago and is in the high keys now."""
    topic = make_topic(config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    keys = sorted((b"key-%d" % i for i in range(80)), key=key_hash)
    for key in keys[:40]:
        for _ in range(5):
            producer.produce(topic, b"v" * 10, key, 0, timestamp=LONG_AGO)
    for key in keys[40:]:
        for _ in range(5):
            producer.produce(topic, b"v" * 10, key, 0, timestamp=NOW)
    assert producer.flush(30) == 0
    return enrolled(operations, topic)


def test_the_saved_plan_balances_the_time_that_was_asked_for_and_is_run(
    kpsplit, operations, parent, tmp_path: Path
) -> None:
    began_ms = time.time_ns() // 1_000_000
    everything = kpsplit.plan(str(parent), "--ranges", "2", "--weight", "records")
    assert (everything["sampled"], everything["shares"]["ppm"]) == (400, [500_000, 500_000])
    assert everything["stretch"]["since_ms"] is None
    file = tmp_path / "plan.json"
    recent = kpsplit.plan(
        *(str(parent), "--ranges", "2", "--since", "2023-01-01T00:00:00Z", "--save", str(file))
    )
    assert recent["sampled"] == 200
    stretch = json.loads(file.read_text())["stretch"]
    assert stretch["since_ms"] == 1_672_531_200_000
    assert began_ms < stretch["until_ms"] <= recent["made_ms"]
    assert recent["ranges"][0]["hi"] > everything["ranges"][0]["hi"]
    split = kpsplit("split", str(parent), "--plan", str(file), "--yes")
    assert split.exit_code == 0, split.output
    made = [(s.range.lo, s.range.hi) for s in state_of(operations, parent).lineage.open_segments()]
    assert made == [(r["lo"], r["hi"]) for r in recent["ranges"]]
    again = kpsplit("split", str(parent), "--plan", str(file), "--yes")
    assert again.exit_code == CONFLICT, again.output
    assert "epoch" in again.stderr


def test_a_key_too_hot_to_split_is_named_and_refused_without_force(
    kpsplit, bootstrap, operations, make_topic
) -> None:
    topic = make_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for i in range(300):
        producer.produce(topic, b"v" * 50, b"hot" if i % 10 else b"cold-%d" % i, 0)
    assert producer.flush(30) == 0
    parent = enrolled(operations, topic)
    ran = kpsplit("plan", str(parent), "--ranges", "4", "--engine", "spark")
    assert ran.exit_code == 3, ran.output
    plan = json.loads(ran.stdout)
    assert plan["useful"] is False
    assert plan["heaviest"][0]["label"] == "hot"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--merge", "--engine", "spark"], "needs --ranges"),
        (["--ranges", "2", "--even", "--engine", "spark"], "needs --ranges"),
        (["--ranges", "2", "--since", "6h"], "need --engine spark"),
        (["--ranges", "2", "--engine", "spark", "--since", "yesterday"], "is not a time"),
        (["--ranges", "2", "--engine", "spark", "--since", "2026-01-01"], "no time zone"),
        (["--ranges", "2", "--engine", "spark", "--memory", "lots"], "not a memory size"),
    ],
)
def test_what_does_not_fit_together_is_refused(kpsplit, arguments, reason) -> None:
    ran = kpsplit("plan", "nowhere/0", *arguments)
    assert ran.exit_code == 2, ran.output
    assert reason in ran.stderr


def test_a_topic_that_is_not_enrolled_is_refused(kpsplit, make_topic) -> None:
    ran = kpsplit("plan", f"{make_topic()}/0", "--ranges", "2", "--engine", "spark")
    assert ran.exit_code == 2, ran.output
    assert "not enrolled" in ran.stderr
