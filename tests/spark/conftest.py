"""One Spark session for all tests that need one: small, two threads, in this process's own JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from kpsplit.admin import Admin
from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs.session import local_session
from tests.broker.operating import operating
from tests.spark.live import History

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}
"""For hundreds of small queries on a machine that does other things as well."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session. Without Java or the connector's jars the tests are skipped, but never in CI."""
    try:
        session = local_session(cores=2, memory="1g", name="tests", more=QUICK)
    except KpsplitError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Spark: {error}")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def operations(bootstrap: str) -> Iterator[Admin]:
    """Operations on the session's cluster."""
    with operating(bootstrap) as running:
        yield running


@pytest.fixture(scope="session")
def history(operations: Admin, bootstrap: str, admin: AdminClient) -> History:
    """A topic whose one partition has lived through everything; nobody writes to it any more."""
    topic = "spark-history"
    admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=30)[topic].result(30)
    made = History(operations, bootstrap, topic)
    made.live()
    return made
