"""Spark's Kafka connector for sessions that kpsplit starts itself: fetched once into the jar cache.

The connector's version is that of the installed PySpark. Where the package has a list of checksums for it,
the jars must be those; for other versions the list is made when the jars are fetched, which a line on stderr
says, and holds from then on. A user's own Spark brings its own connector: ``--packages`` with
``connector_coordinates()``, which ``python -m kpsplit.spark_jobs.jars [VERSION]`` prints.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kpsplit.devcluster.jars import Java, WantedJars, cache_folder, ensure, read_list
from kpsplit.errors import KpsplitError

_HERE = Path(__file__).parent
KAFKA_CLIENTS = "3.9.2"
"""The least version of Kafka's own client for Spark: older ones have known vulnerabilities."""


def spark_version() -> str:
    if find_spec("pyspark") is None:
        raise KpsplitError("PySpark is not installed", hint="run: pip install 'kpsplit[spark]'")
    return str(import_module("pyspark").__version__)


def connector_coordinates(spark: str | None = None) -> str:
    """Return the connector's Maven coordinates for a version of Spark: the argument of ``--packages``."""
    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark or spark_version()}"
    return f"{connector},org.apache.kafka:kafka-clients:{KAFKA_CLIENTS}"


def ensure_connector(java: Java | None = None, cache: Path | None = None) -> Path:
    """Return the folder with the connector's jars, downloaded first if that is needed.

    ``java``: the runtime that runs Ivy; ``cache``: parent of the folder. Both are found when not given.

    Raises:
        KpsplitError: no PySpark, no Java, no network, or not the jars that the list names.
    """
    spark = spark_version()
    wanted = WantedJars(
        *(f"Spark's Kafka connector {spark}", _HERE / "ivy.xml", ("reading Kafka with Spark", "spark")),
        expected=read_list(_HERE / f"connector-{spark}.sha256"),  # empty for a version that we do not know
        properties={"kpsplit.spark": spark, "kpsplit.clients": KAFKA_CLIENTS},
    )
    return ensure(wanted, (cache or cache_folder()) / f"spark-kafka-{spark}-clients-{KAFKA_CLIENTS}", java)


def connector_jars(java: Java | None = None) -> list[Path]:
    """Return the connector's jars for the installed PySpark: the argument of ``--jars``, joined by commas."""
    return sorted(ensure_connector(java).glob("*.jar"))


def main(versions: list[str]) -> int:
    """Print the connector's coordinates for a version of Spark, or for the installed PySpark."""
    try:
        sys.stdout.write(f"{connector_coordinates(versions[0] if versions else None)}\n")
    except KpsplitError as error:
        sys.stderr.write(f"kpsplit: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
