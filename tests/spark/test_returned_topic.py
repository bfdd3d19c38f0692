"""Spark over a topic that was led back to plain clients and enrolled again, on real brokers."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.admin_cli.main import cli
from kpsplit.clock import Deadline
from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs import read_logical, read_logical_stream, verify
from kpsplit.spark_jobs.verification.commit_checks import commits_within_data, in_order
from kpsplit.spark_jobs.verification.findings import Severity
from kpsplit.spark_jobs.verification.job import take_snapshot
from kpsplit.spark_jobs.verification.start import JudgedFrom
from kpsplit.spark_jobs.verification.verifier import VerifyCheck
from tests.broker.consuming import Log, Member, drain, shared, wait_for
from tests.broker.consuming import consumer as member_of
from tests.broker.operating import enrolled
from tests.spark.live import History
from tests.spark.streams import Recorder, await_end
from tests.spark.test_stream_reader import make_again

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def place_in(text: str) -> str:
    """The offsets at which an error says that the query stands, as Spark's own source takes them."""
    found = re.search(r"it stands at (\{.*?\}\})", text)
    assert found, text
    return found[1]


@pytest.mark.nightly
def test_a_query_and_a_verification_go_over_a_return_and_the_next_enrolment(
    spark, operations: Admin, bootstrap: str, make_topic, tmp_path: Path
) -> None:
    """One producer lives through all of it, one ends while the topic is plain; a group reads."""
    history, log = History(operations, bootstrap, make_topic()), Log()
    topic, connection = history.topic, {"bootstrap.servers": bootstrap}
    recorder, written = Recorder(tmp_path / "checkpoint"), 0
    early, plain = Producer(connection), PlainProducer(connection)
    member = Member(bootstrap, f"g-{topic}", [topic], log, "before")
    member.start()

    def stream():
        return read_logical_stream(spark, topic, connection)

    def write(*producers: PlainProducer | Producer) -> None:
        nonlocal written
        for producer in producers:
            history.write(producer)
            written += 60

    def returns(step: str) -> None:
        if step == "Snapshot":  # in the middle of a verification
            assert operations.unenrol(topic, wait_seconds=60).left

    with Producer(connection) as producer:
        write(producer, early)
        history.split()
        write(producer, early)
        history.merge()
        write(producer, early)
        query = recorder.start(stream())
        recorder.read_all(query, written)
        operations.retire(history.parent, wait_seconds=60)
        write(early)
        verdict = verify(spark, topic, connection, observer=returns)
        assert verdict.clean, (verdict.defects, verdict.unproven)

        with pytest.raises(StreamingQueryException, match="was returned to plain clients: this query reads"):
            await_end(query)
        for arguments in ([topic], [f"{topic}/0", "--since", "1h"]):
            ran = CliRunner().invoke(cli, ["-b", bootstrap, "verify", *arguments])
            assert ran.exit_code == 2, ran.output
            said = " ".join(ran.stderr.split())
            assert (
                f"topic {topic} is not enrolled: it was returned to plain clients; any Kafka client" in said
            )
        with pytest.raises(UsageError, match="returned to plain clients"):
            read_logical(spark, topic, connection)
        wait_for(lambda: not producer.layout_stats().partitions, "the producer to stop stamping")
        write(producer, early, plain)
        early.close()
        with pytest.raises(StreamingQueryException) as caught:
            await_end(recorder.start(stream()))
        place = place_in(str(caught.value))
        assert json.loads(place).keys() == {topic}
        kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        kafka = kafka.option("subscribe", topic).option("startingOffsets", place)
        rest = {bytes(row.value) for row in kafka.load().select("value").collect()}
        done = {bytes(row.value) for row in recorder.rows}
        assert len(rest) + len(done) == written and not rest & done

        wait_for(lambda: log.distinct() == written, "the group to have read everything")
        member.stop()
        enrolled(operations, topic)
        member = Member(bootstrap, f"g-{topic}", [topic], log, "after")
        member.start()
        write(producer)
        with recorder.running(stream()) as query:
            recorder.read_all(query, written)
        history.split()
        write(producer, plain)
        history.merge()
        write(producer)
    recorder.read_what_is_there(stream())
    recorder.check_order()
    assert len({bytes(row.value) for row in recorder.rows}) == len(recorder.rows) == written
    batch = read_logical(spark, topic, connection).select("logical_offset").collect()
    assert {row.logical_offset for row in batch} <= set(recorder.offsets())
    assert len(batch) == written - 120, "all but what lay in the retired sub-topic"
    wait_for(lambda: log.distinct() == written, "the group to have read everything")
    member.stop()
    assert log.duplicates() == 0
    verdict = verify(spark, topic, connection, require_certificates=True)
    assert verdict.clean, (verdict.defects, verdict.unproven)
    assert verdict.groups == (f"g-{topic}",)
    assert {f.severity for f in verdict.findings} == {Severity.NOTE}
    assert verdict.of(VerifyCheck.FOREIGN_RECORDS)


@pytest.mark.nightly
def test_what_was_committed_before_a_return_is_not_judged_by_the_topic_that_was_made_again(
    operations: Admin, bootstrap: str, admin: AdminClient, make_topic
) -> None:
    """The commits of the old topic are in the offset log until compaction, behind the end of the new one."""
    topic, connection = make_topic(), Connection({"bootstrap.servers": bootstrap})
    shared(operations, topic, slots=2)

    def read(count: int) -> None:
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for number in range(count):
                producer.produce(topic, b"v", b"key-%d" % number)
            assert producer.flush(60) == 0
        with closing(member_of(bootstrap, f"g-{topic}")) as member:
            member.subscribe([topic])
            drain(member, count)

    read(20)
    assert operations.unenrol(topic, wait_seconds=60).left
    make_again(admin, connection, topic, Deadline(180))
    shared(operations, topic, slots=2)
    snapshot = take_snapshot(connection, topic)
    assert not snapshot.groups() and any(logged.commit for logged in snapshot.commits)
    assert list(commits_within_data(snapshot, in_order(snapshot, None, JudgedFrom()))) == []
