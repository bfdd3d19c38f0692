"""The logical view as a stream, on real brokers: through splits and merges, and from its checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer as PlainProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from kpsplit import Producer
from kpsplit.spark_jobs import read_logical, read_logical_stream
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from tests.spark.live import PATIENCE, History
from tests.spark.streams import Recorder, await_end

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECRET = "hunter2-and-more"


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "checkpoint")


def strays(bootstrap: str, topic: str, count: int) -> None:
    """Records of epoch 0 behind the reopened parent's start, as of a producer that was suspended."""
    producer = PlainProducer({"bootstrap.servers": bootstrap})
    for number in range(count):
        mark = Stamp(0, 7, number).encode()
        producer.produce(topic, b"stray", b"key-1", headers=[(STAMP_HEADER, mark)])
    assert producer.flush(30) == 0


def test_a_query_goes_on_through_a_split_a_nested_split_and_a_merge_and_from_its_checkpoint(
    spark, operations, bootstrap, make_topic, recorder
) -> None:
    """Each change happens while the query runs; it is stopped behind each, and its sink fails once."""
    history = History(operations, bootstrap, make_topic())
    connection = {"bootstrap.servers": bootstrap, "ssl.key.password": SECRET}

    def stream() -> DataFrame:
        return read_logical_stream(spark, history.topic, connection, max_offsets_per_trigger=150)

    plain = PlainProducer({"bootstrap.servers": bootstrap})
    ours = {"bootstrap.servers": bootstrap, "transactional.id": f"ours-{history.topic}"}
    with Producer({"bootstrap.servers": bootstrap}) as producer, Producer(ours) as transactional:
        transactional.init_transactions(PATIENCE)

        def everybody_writes() -> None:
            history.write(producer)
            history.write(plain, 20)
            history.transactions(transactional)

        for change in (history.split, history.nested, history.merge):
            with recorder.running(stream()) as query:
                everybody_writes()
                change()
                everybody_writes()
                query.processAllAvailable()
            history.write(producer)
        strays(bootstrap, history.topic, 5)
        everybody_writes()
    recorder.fail_once = True
    with recorder.running(stream()) as query:
        with pytest.raises(StreamingQueryException, match="the sink fails once"):
            await_end(query)
    batch = read_logical(spark, history.topic, {"bootstrap.servers": bootstrap}).collect()
    with recorder.running(stream()) as query:
        recorder.read_all(query, len(batch))
    recorder.check_order()
    assert recorder.repeated, "the batch whose sink failed was not read again"
    assert sorted(map(tuple, recorder.rows), key=str) == sorted(map(tuple, batch), key=str)
    assert recorder.offsets() == sorted(r.logical_offset for r in history.read())
    assert len({r.segment for r in recorder.rows}) > 6, "rows of every layout"
    assert not any(bytes(r.value) == b"stray" for r in recorder.rows)
    kept = [p.read_text(errors="replace") for p in recorder.checkpoint.rglob("*") if p.is_file()]
    assert not any(SECRET in text for text in kept)


def test_available_now_reads_everything_there_is_and_goes_on_the_next_time(
    spark, operations, bootstrap, make_topic, recorder
) -> None:
    history = History(operations, bootstrap, make_topic())
    stream = read_logical_stream(spark, history.topic, {"bootstrap.servers": bootstrap}, include_headers=True)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        history.write(producer)
        history.split()
        history.write(producer)
        recorder.read_what_is_there(stream)
        assert len(recorder.rows) == 120
        history.merge()
        history.write(producer)
    recorder.read_what_is_there(stream)
    assert recorder.offsets() == sorted(r.logical_offset for r in history.read())
    recorder.check_order()
    headers = {tuple((h.key, bytes(h.value)) for h in r.headers or ()) for r in recorder.rows}
    assert headers == {(), (("mine", b"1"),)}


@pytest.mark.nightly
def test_available_now_from_a_checkpoint_fails_while_brokers_are_away(
    spark, operations, bootstrap, make_topic, recorder
) -> None:
    """It would end as if everything were read. The next run, with brokers, reads what is there."""
    history = History(operations, bootstrap, make_topic())
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        history.write(producer)
        recorder.read_what_is_there(
            read_logical_stream(spark, history.topic, {"bootstrap.servers": bootstrap})
        )
        history.write(producer)
    nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    for start in (recorder.read_what_is_there, lambda frame: await_end(recorder.start(frame))):
        away = read_logical_stream(spark, history.topic, nobody, patience=2.0)
        with pytest.raises(
            StreamingQueryException, match="nothing was read, and the checkpoint is as it was"
        ):
            start(away)
        assert len(recorder.rows) == 60
    recorder.read_what_is_there(read_logical_stream(spark, history.topic, {"bootstrap.servers": bootstrap}))
    assert recorder.offsets() == sorted(r.logical_offset for r in history.read())


@pytest.mark.nightly
def test_available_now_with_a_limit_reads_one_batch_of_it_and_the_checkpoint_stays_good(
    spark, operations, bootstrap, make_topic, recorder, tmp_path
) -> None:
    """Also of a query that ran with another trigger before: Spark says where that stood."""
    history = History(operations, bootstrap, make_topic())
    connection = {"bootstrap.servers": bootstrap}
    limited = read_logical_stream(spark, history.topic, connection, max_offsets_per_trigger=20)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        history.write(producer)
        with recorder.running(limited) as query:
            recorder.read_all(query, 60)
        history.write(producer)
    for done in (80, 100, 120):
        recorder.read_what_is_there(limited)
        assert len(recorder.rows) == done
    begun = Recorder(tmp_path / "begun")
    for done in (20, 40, 60):
        begun.read_what_is_there(limited)
        assert len(set(begun.offsets())) == len(begun.rows) == done
    recorder.read_what_is_there(read_logical_stream(spark, history.topic, connection))
    assert recorder.offsets() == sorted(r.logical_offset for r in history.read())
    recorder.check_order()


@pytest.mark.nightly
def test_a_query_begins_where_it_is_told_to_as_the_batch_view_does(spark, history, tmp_path) -> None:
    connection = {"bootstrap.servers": history.bootstrap}
    records = history.read()
    middle = sorted(r.timestamp for r in records)[len(records) // 2]
    number = sorted(r.logical_offset for r in records)[len(records) // 3]
    for name, start in {"time": datetime.fromtimestamp(middle / 1000, UTC), "number": {0: number}}.items():
        recorder = Recorder(tmp_path / name)
        recorder.read_what_is_there(
            read_logical_stream(spark, history.topic, connection, starting_offsets=start)
        )
        batch = read_logical(spark, history.topic, connection, starting_offsets=start)
        wanted = sorted(r.logical_offset for r in batch.select("logical_offset").collect())
        assert 0 < len(wanted) < len(records)
        assert recorder.offsets() == wanted, name


def test_a_connections_secret_is_in_no_plan(spark, bootstrap) -> None:
    connection = {"bootstrap.servers": bootstrap, "sasl.password": SECRET}
    frame = read_logical_stream(spark, "orders", connection)
    assert SECRET not in frame._jdf.queryExecution().toString()
    assert "redacted" in frame._jdf.queryExecution().toString()


def test_a_topic_that_is_not_enrolled_ends_the_query_with_one_clear_line(
    spark, bootstrap, operations, make_topic, recorder
) -> None:
    topic = make_topic()
    stream = read_logical_stream(spark, topic, {"bootstrap.servers": bootstrap})
    with pytest.raises(StreamingQueryException, match=f"topic {topic} is not enrolled; run: kpsplit enroll"):
        await_end(recorder.start(stream))
