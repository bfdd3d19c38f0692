"""Spark's Kafka connector for sessions that kpsplit starts itself: fetched once into the jar cache.

The connector's version is that of the installed PySpark. Where the package has a list of checksums for it,
the jars must be those; for other versions the list is made when the jars are fetched, and holds from then
on. A user's own Spark brings its own connector: ``--packages`` with ``connector_coordinates()``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from kpsplit.devcluster.cache import cache_folder
from kpsplit.devcluster.jars import faults
from kpsplit.devcluster.java import Java, find_java
from kpsplit.devcluster.truststore import java_trust_options
from kpsplit.errors import KpsplitError

_HERE = Path(__file__).parent
_LIST = "jars.sha256"
_SECONDS = 600


def spark_version() -> str:
    """Return the version of the installed PySpark.

    Raises:
        KpsplitError: there is none.
    """
    if find_spec("pyspark") is None:
        raise KpsplitError("PySpark is not installed", hint="run: pip install 'kpsplit[spark]'")
    return version("pyspark")


def connector_coordinates(spark: str | None = None) -> str:
    """Return the connector's Maven coordinates for a version of Spark: the argument of ``--packages``."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark or spark_version()}"


def ensure_connector(java: Java | None = None, cache: Path | None = None) -> Path:
    """Return the folder with the connector's jars, downloaded first if that is needed.

    Args:
        java: the runtime that runs Ivy; found when not given.
        cache: parent of the folder; the user's cache folder when not given.

    Raises:
        KpsplitError: no PySpark, no Java, no network, or not the jars that the list names.
    """
    spark = spark_version()
    parent = cache or cache_folder()
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"spark-kafka-{spark}"
    with (parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (wrong := _wrong(folder, spark)) is not None:
            _install(java or find_java(), folder, spark, wrong)
    return folder


def _wrong(folder: Path, spark: str) -> str | None:
    """Return what is wrong with the jars in a folder, None if all is well."""
    expected = _read_list(_HERE / f"connector-{spark}.sha256") or _read_list(folder / _LIST)
    found = faults(folder, expected) if expected else ["they are not there"]
    return "; ".join(found[:3]) or None


def _read_list(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        return {}
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines())}


def _install(java: Java, folder: Path, spark: str, why: str) -> None:
    """Download beside the folder, verify, rename into place."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _resolve(java, work, spark)
        jars = work / "jars"
        digests = (
            f"{sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in sorted(jars.glob("*.jar"))
        )
        (jars / _LIST).write_text("".join(digests))
        if wrong := _wrong(jars, spark):
            raise KpsplitError(
                f"the jars of Spark's Kafka connector are not the expected ones: {wrong}",
                hint="a proxy or mirror may have altered them; try again",
            )
        if folder.exists():
            os.rename(folder, work / "replaced")
        os.rename(jars, folder)
    except OSError as error:
        raise KpsplitError(f"cannot install Spark's Kafka connector ({why}): {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _resolve(java: Java, work: Path, spark: str) -> None:
    """Run Ivy; with the machine's certificate authorities where a bundled Java does not know them."""
    code, log = _run_ivy(java, work, spark, [])
    if code and java.bundled and (options := java_trust_options(work)):
        code, log = _run_ivy(java, work, spark, options)
    if code:
        problems = [line.strip() for line in log.splitlines() if line.strip()][-3:]
        raise KpsplitError(
            f"fetching Spark's Kafka connector {spark} failed: {' '.join(problems)}",
            hint="check the network, then try again",
        )


def _run_ivy(java: Java, work: Path, spark: str, options: list[str]) -> tuple[int, str]:
    command = [
        *(str(java.path), *options, f"-Dkpsplit.spark={spark}", f"-Divy.default.ivy.user.dir={work / 'ivy'}"),
        *("-jar", str(_ivy_jar()), "-m2compatible", "-ivy", str(_HERE / "ivy.xml"), "-confs", "default"),
        *("-types", "jar", "bundle", "-retrieve"),
        f"{work / 'jars'}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise KpsplitError("this PySpark brings no Apache Ivy", hint="run: pip install 'kpsplit[spark]'")
    return found[-1]
