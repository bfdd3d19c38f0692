"""A job as a user submits it: reads the logical view, a small table, and verifies.

Run by ``spark-submit`` with a topic and a file of librdkafka's properties; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import kpsplit
from kpsplit.kafka.connection import Connection, read_properties
from kpsplit.spark_jobs import read_logical, verify
from kpsplit.spark_jobs.view import FORMAT, register


def main(topic: str, properties: str) -> None:
    connection = Connection(read_properties(Path(properties)))
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    small = spark.read.format(FORMAT).option("topic", topic).options(**connection.properties).load()
    told = {
        "kpsplit": kpsplit.__file__,
        "records": read_logical(spark, topic, connection).count(),
        "segments": small.count(),
        "clean": verify(spark, topic, connection).clean,
        "executors": spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos().__len__() - 1,
    }
    print("RESULT " + json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
