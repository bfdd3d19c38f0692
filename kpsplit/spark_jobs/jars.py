"""Spark's Kafka connector for sessions that kpsplit starts itself: fetched once into the jar cache.

The connector's version is that of the installed PySpark. Where the package has a list of checksums for it,
the jars must be those; for other versions the list is made when the jars are fetched, which a line on stderr
says, and holds from then on. A user's own Spark brings its own connector: ``--packages`` with
``connector_coordinates()``, which ``python -m kpsplit.spark_jobs.jars [VERSION]`` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kpsplit.devcluster.jars import (
    LIST,
    Java,
    WantedJars,
    cache_folder,
    faults,
    fetch_verified,
    find_java,
    locked,
    put_in_place,
    read_list,
)
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
    folder = (cache or cache_folder()) / f"spark-kafka-{spark}-clients-{KAFKA_CLIENTS}"
    with locked(folder):
        if (wrong := _wrong(folder, spark)) is not None:
            runtime = java or find_java()
            wanted = WantedJars(
                *(
                    f"Spark's Kafka connector {spark}",
                    _HERE / "ivy.xml",
                    ("reading Kafka with Spark", "spark"),
                ),
                expected=_known(spark),
                properties={"kpsplit.spark": spark, "kpsplit.clients": KAFKA_CLIENTS},
            )
            try:
                put_in_place(folder, lambda work: fetch_verified(wanted, runtime, work))
            except OSError as error:
                raise KpsplitError(f"cannot install Spark's Kafka connector ({wrong}): {error}") from error
    return folder


def connector_jars(java: Java | None = None) -> list[Path]:
    """Return the connector's jars for the installed PySpark: the argument of ``--jars``, joined by commas."""
    folder = ensure_connector(java)
    return [folder / name for name in _expected(folder, spark_version())]


def _expected(folder: Path, spark: str) -> Mapping[str, str]:
    """Return the checksums by the names of jars, from the package or from when they were fetched."""
    return _known(spark) or read_list(folder / LIST)


def _known(spark: str) -> Mapping[str, str]:
    """Return the checksums that the package has; empty for a version that it does not know."""
    return read_list(_HERE / f"connector-{spark}.sha256")


def _wrong(folder: Path, spark: str) -> str | None:
    expected = _expected(folder, spark)
    found = faults(folder, expected) if expected else ["they are not there"]
    return "; ".join(found[:3]) or None


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
