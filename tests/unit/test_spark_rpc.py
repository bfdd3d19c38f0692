"""Secrets that would travel to Spark's executors in the clear are warned of."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from kpsplit.spark_jobs.session import warn_of_plain_rpc

JAAS = {"kafka.bootstrap.servers": "one:9092", "kafka.sasl.jaas.config": "hunter2"}
PLAIN = {"kafka.bootstrap.servers": "one:9092"}


def session(master: str, **settings: str) -> SparkSession:
    named = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    known: Any = SimpleNamespace(get=({"spark.master": master} | named).get)
    return cast(SparkSession, SimpleNamespace(conf=known))


@pytest.mark.parametrize(
    ("spark", "options", "warned"),
    [
        (session("yarn"), JAAS, True),
        (session("k8s://https://one", network_crypto_enabled="false"), JAAS, True),
        (session("spark://one:7077", network_crypto_enabled="true"), JAAS, False),
        (session("spark://one:7077", ssl_rpc_enabled="true"), JAAS, False),
        (session("yarn"), PLAIN, False),
        (session("yarn"), {"sasl.password": "hunter2"}, True),
        (session("yarn"), {"ssl.key.location": "key.pem"}, True),
        (session("local[2]"), JAAS, False),
    ],
)
def test_secrets_in_the_clear_are_warned_of_without_their_values(spark, options, warned, caplog) -> None:
    with caplog.at_level(logging.WARNING, "kpsplit"):
        warn_of_plain_rpc(spark, options)
    assert ("in the clear" in caplog.text) is warned
    assert "hunter2" not in caplog.text
