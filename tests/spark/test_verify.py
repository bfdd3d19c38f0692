"""The verification of a live history on real brokers: as a call, on the command line, as small tables."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from kpsplit.admin_cli.main import cli
from kpsplit.clock import Deadline
from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs import findings_frame, verify
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.spark_jobs.report import times_of
from kpsplit.spark_jobs.snapshot import without_boundary
from kpsplit.spark_jobs.verification.checks import boundaries_agree
from kpsplit.spark_jobs.verification.findings import Severity
from kpsplit.spark_jobs.verification.job import take_snapshot
from kpsplit.spark_jobs.verification.verifier import VerifyCheck
from kpsplit.spark_jobs.view import FORMAT, register
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from kpsplit.splitter.records.offsets import Boundary
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.broker.operating import PAUSE_MS, DiedError, dying_after, enrolled, merge, split, state_of

pytestmark = [pytest.mark.broker]


def run(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-b", bootstrap, "-o", "json", "verify", *arguments])


def test_a_live_history_is_clean_and_every_record_is_counted(spark, history) -> None:
    verdict = verify(spark, history.topic, {"bootstrap.servers": history.bootstrap})
    assert verdict.clean, (verdict.defects, verdict.unproven)
    assert verdict.counts[str(history.parent)]["data"] == len(history.read())
    assert {f.severity for f in verdict.findings} == {Severity.NOTE}
    assert findings_frame(spark, verdict).count() == len(verdict.findings)


def test_a_repeated_record_of_a_producer_without_a_certificate_is_found_on_the_command_line(
    spark, operations, bootstrap, make_topic, tmp_path
) -> None:
    """A record is written twice past kpsplit, with the stamp of a producer that says nothing of it."""
    topic = make_topic()
    enrolled(operations, topic)
    plain = Producer({"bootstrap.servers": bootstrap})
    for sequence in (0, 0, 1):
        plain.produce(topic, b"v", b"k", 0, headers=[(STAMP_HEADER, Stamp(0, 5, sequence).encode())])
    plain.flush(20)
    page, folder = tmp_path / "report.html", tmp_path / "findings"
    ran = run(bootstrap, f"{topic}/0", "--html", str(page), "--parquet", str(folder))
    assert ran.exit_code == 3, ran.output
    told = json.loads(ran.stdout)
    (finding,) = [f for f in told["findings"] if f["severity"] == "finding"]
    assert (finding["check"], finding["producer"], finding["count"]) == (
        VerifyCheck.SEQUENCES_UNIQUE,
        f"{5:016x}",
        1,
    )
    steps = ["own topics read", "Spark started", "records read", "sequence numbers checked", "checks done"]
    lines = [line for line in ran.stderr.splitlines() if line.startswith("✓ ")]
    assert len(lines) == len(steps) and all(step in line for step, line in zip(steps, lines, strict=True))
    assert "sequences_unique" in page.read_text()
    assert spark.read.parquet(str(folder)).count() == len(told["findings"])


def test_the_report_says_by_the_clock_when_each_epoch_began(history, bootstrap) -> None:
    """Split, nested split, merge: four epochs, the last one open."""
    connection = Connection({"bootstrap.servers": bootstrap})
    snapshot = take_snapshot(connection, history.topic)
    times = times_of(connection, snapshot, 60)
    began = times.epochs[history.parent]
    assert sorted(began) == [0, 1, 2, 3]
    assert began[0] < began[1] < began[2] < began[3] < times.taken_ms


def test_the_command_line_says_what_it_cannot_judge(operations, bootstrap, make_topic) -> None:
    topic = make_topic()
    assert run(bootstrap, topic).exit_code == 2
    enrolled(operations, topic)
    ran = run(bootstrap, topic, "--group", "nobody")
    assert ran.exit_code == 2
    assert "group nobody has no range commit" in ran.stderr


def test_a_split_behind_the_reading_of_the_offset_log_has_its_boundary_records(
    operations, bootstrap, make_topic
) -> None:
    """The control topic is read later, and knows of it. Of the next one it does not know yet."""
    parent = enrolled(operations, make_topic())

    class Overtaken(Gatherer):
        def _producers(self) -> tuple[ProducerRegistration, ...]:
            split(operations, parent, 2)
            return super()._producers()

        def _later_boundaries(self, parents: list[PhysicalPartition]) -> list[Boundary]:
            merge(operations, parent)
            return super()._later_boundaries(parents)

    taken = Overtaken(Connection({"bootstrap.servers": bootstrap}), parent.topic).snapshot(with_groups=True)
    assert taken.states[0].epoch == 1
    assert without_boundary(taken.states, ()) != []
    assert without_boundary(taken.states, taken.boundaries) == []
    assert list(boundaries_agree(taken)) == []


def test_an_operation_that_does_not_end_keeps_it_from_judging(
    operations, bootstrap, make_topic, monkeypatch
) -> None:
    """Its operator is gone and its fence is up: that is no wrong usage, and no timeout of an operation.

    The time is over when it first waits for the operation, however long it read before.
    """
    pause, left = Gatherer._pause, []

    def late(gatherer: Gatherer, why: str, next_step: str) -> None:
        left.append(gatherer._limit.left())
        gatherer._limit = Deadline(0)
        pause(gatherer, why, next_step)

    monkeypatch.setattr(Gatherer, "_pause", late)
    parent = enrolled(operations, make_topic())
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.raises(DiedError):
        operations.run(plan, max_pause_ms=PAUSE_MS, observer=dying_after("Fence"))
    ran = run(bootstrap, str(parent), "--timeout", "50s")
    assert ran.exit_code == 1, ran.output
    assert "could not judge: the operation under way" in ran.stderr
    assert len(left) == 1 and left[0] <= 50, left
    operations.abort(parent, "the test is over")


def test_uncommitted_reading_judges_nothing(operations, bootstrap, make_topic) -> None:
    topic = make_topic()
    enrolled(operations, topic)
    ran = run(bootstrap, topic, "-X", "isolation.level=read_uncommitted")
    assert ran.exit_code == 1, ran.output
    assert "verify needs isolation.level=read_committed, got read_uncommitted" in ran.stderr


def test_brokers_that_do_not_answer_keep_it_from_judging() -> None:
    ran = run("127.0.0.1:1", "orders", "--timeout", "2s")
    assert ran.exit_code == 1, ran.output
    assert "no broker of 127.0.0.1:1 answered" in ran.stderr


def test_unknown_groups_are_refused_before_spark_is_needed(history) -> None:
    with pytest.raises(UsageError, match="no range commit"):
        take_snapshot(Connection({"bootstrap.servers": history.bootstrap}), history.topic, groups=["nobody"])


def test_the_lineage_can_be_read_as_a_data_source(spark, history) -> None:
    register(spark)
    reader = spark.read.format(FORMAT).option("topic", history.topic)
    reader = reader.option("bootstrap.servers", history.bootstrap)
    segments = reader.option("table", "lineage").load().orderBy("segment").collect()
    lineage = state_of(history.operations, history.parent).lineage
    assert [(r.segment, r.start, r.end, r.base, r.stride) for r in segments] == [
        (s.id, s.start, s.end, s.progression.base, s.progression.stride) for s in lineage
    ]
    certificates = reader.option("table", "certificates").load().collect()
    assert len({r.producer for r in certificates}) == 2
    assert reader.option("table", "commits").load().count() == 0
