"""What kpsplit's own Spark session is made of: the checked jars, and plans that hold no secret."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kpsplit.devcluster.jars import Java
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.jars import connector_coordinates, ensure_connector
from kpsplit.spark_jobs.records import small_frame
from kpsplit.spark_jobs.session import REDACTED, explained, running_session
from kpsplit.spark_jobs.view import scan
from kpsplit.splitter.lineage import PhysicalPartition

NO_JAVA = Java(Path("/no/such/java"), 17)


@pytest.fixture
def cache(spark, tmp_path: Path) -> Path:
    """A cache of its own with the jars that are there already."""
    jars = ensure_connector()
    shutil.copytree(jars, tmp_path / jars.name)
    return tmp_path


def test_jars_that_are_there_are_used_without_java_and_network(cache) -> None:
    folder = ensure_connector(NO_JAVA, cache)
    assert any(jar.name.startswith("spark-sql-kafka") for jar in folder.iterdir())


def test_an_altered_jar_is_not_used(cache) -> None:
    jar = next(cache.glob("*/kafka-clients-*.jar"))
    jar.write_bytes(b"something else")
    with pytest.raises(KpsplitError, match="kafka-clients"):
        ensure_connector(NO_JAVA, cache)


def test_a_jar_that_the_list_does_not_name_is_not_used(cache) -> None:
    (next(cache.iterdir()) / "z.jar").write_bytes(b"foreign")
    with pytest.raises(KpsplitError, match="z.jar is not in the list"):
        ensure_connector(NO_JAVA, cache)


def test_the_coordinates_are_those_of_the_sparks_version() -> None:
    assert connector_coordinates("4.0.1") == (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1,org.apache.kafka:kafka-clients:3.9.2"
    )


def test_a_running_session_is_used_and_left_running(spark) -> None:
    with running_session() as found:
        assert found is spark
    assert spark.range(3).count() == 3


def test_a_failure_names_its_cause_and_a_log_that_outlives_the_session(spark) -> None:
    nowhere = {"kafka.bootstrap.servers": "no.such.host.invalid:1", "subscribe": "orders"}
    with pytest.raises(Py4JJavaError) as caught:
        spark.read.format("kafka").options(**nowhere).load().count()
    error = explained(caught.value)
    assert error.message.startswith("Spark failed: ConfigException: No resolvable bootstrap urls")
    assert error.hint is not None and error.hint.startswith("see ")
    log = Path(error.hint.removeprefix("see "))
    try:
        assert log.is_file()
        assert log.parent == Path(tempfile.gettempdir())
        assert log.stat().st_mode & 0o077 == 0
    finally:
        log.unlink(missing_ok=True)


def test_nothing_is_left_where_it_is_started(spark) -> None:
    """Spark makes a folder for artifacts in the JVM's working directory."""
    spark.range(3).count()
    root = Path(spark._jsparkSession.artifactManager().artifactPath().toString())
    assert root.parent.parent.parent == Path(spark._jvm.System.getProperty("user.dir")).resolve()
    assert not Path.cwd().is_relative_to(root.parent.parent.parent)
    assert not Path("artifacts").exists()


ROWS = [(1, b"\x00\xff", 'a "quoted" name\né', (1 << 63) - 1), (None, b"", "", -1), (3, None, None, 0)]
SHAPE = StructType(
    [
        StructField("one", IntegerType()),
        StructField("two", BinaryType()),
        StructField("three", StringType()),
        StructField("four", LongType()),
    ]
)


def test_a_small_frame_needs_no_python_on_executors_and_keeps_every_value(spark, monkeypatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python")
    rows = small_frame(spark, ROWS, SHAPE).collect()
    assert [(r.one, r.two and bytes(r.two), r.three, r.four) for r in rows] == ROWS
    assert small_frame(spark, [], SHAPE).collect() == []


@pytest.mark.broker
def test_no_plan_shows_a_password(spark, history) -> None:
    """The brokers of the tests ask for no password; the settings travel all the same."""
    secret = "hunter2"
    properties = {
        "bootstrap.servers": history.bootstrap,
        "security.protocol": "plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": secret,
    }
    options = kafka_options(Connection(properties))
    frame = scan(spark, options, {PhysicalPartition(history.topic, 0): (0, 1)})
    assert frame.count() == 1
    assert secret not in frame._jdf.queryExecution().toString()
    holding = {name for name, value in options.items() if secret in value}
    assert holding == {"kafka.sasl.jaas.config"}
    assert all(re.search(REDACTED, name) for name in holding)
    assert all(secret not in value for _, value in spark.sparkContext.getConf().getAll())
