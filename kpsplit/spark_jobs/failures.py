"""What Spark reports with a page of Java, as one clear line."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from kpsplit.errors import ConfigurationError, KpsplitError
from kpsplit.spark_jobs.jars import connector_coordinates

SPARK_ERRORS = (PySparkException, Py4JJavaError)


def explained(error: Exception) -> KpsplitError:
    """Return one clear line for what Spark reports with a page of Java."""
    text = str(error)
    if "Failed to find data source: kafka" in text:
        return ConfigurationError(
            "this Spark has no Kafka connector",
            hint=f"give spark-submit --packages {connector_coordinates()}",
        )
    if "OffsetOutOfRange" in text or "data may have been lost" in text.lower() or "KAFKA_DATA_LOSS" in text:
        return KpsplitError(
            "records went away while they were read (retention, or a deleted topic)", hint="run it again"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return KpsplitError(f"Spark failed: {first[:300]}", hint="see Spark's log")
