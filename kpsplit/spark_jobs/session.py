"""A Spark session on this machine, for the command line and tests. Other jobs take the user's own."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from kpsplit.devcluster.java import Java, find_java
from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs.jars import ensure_connector
from kpsplit.spark_jobs.master import check_master, is_local

DEFAULT_MEMORY = "1g"
ARTIFACTS = "artifacts"
LOG = "spark.log"
REDACTED = "(?i)secret|password|passwd|token|access[.]?key|jaas|keystore[.]key|credential"
"""What Spark hides in its UI, logs and plans: its own words and those of Kafka's security settings."""

_logs: list[Path] = []
"""Of the sessions that were started here, the latest last."""


def local_session(
    cores: int | None = None,
    memory: str = DEFAULT_MEMORY,
    name: str = "kpsplit",
    log: Path | None = None,
    more: Mapping[str, str] | None = None,
    master: str | None = None,
) -> SparkSession:
    """Start Spark in this process's own JVM, with the Kafka connector from the jar cache.

    With a ``master`` that is not ``local`` only the driver is in this process, and executors get the
    connector from it. Their number and memory, and addresses, are said in ``spark-defaults.conf``.

    Args:
        cores: threads that work; all of the machine's when not given.
        memory: the JVM's heap.
        name: of the application.
        log: the file for what the JVM writes; a temporary one when not given.
        more: settings of Spark that win over kpsplit's.
        master: Spark's master URL; ``local[cores]`` when not given.

    Raises:
        UsageError: that is no master URL, or not one of this kind of session.
        KpsplitError: no Java, no connector, the master cannot be reached, or Spark did not start.
    """
    threads = cores or os.cpu_count() or 1
    place = master or f"local[{threads}]"
    check_master(place)
    java = find_java()
    jars = ensure_connector(java)
    scratch = Path(tempfile.mkdtemp(prefix="kpsplit-spark-"))
    local = is_local(place)
    _environment(java, scratch, local)
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.driver.memory": memory,
        **(_on_this_machine(jars, scratch) if local else _on_a_cluster(jars)),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * threads),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.redaction.regex": REDACTED,
    }
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    path = log or scratch / LOG
    _remove_later(Path(ARTIFACTS))
    try:
        with _stderr_into(path):
            started = builder.master(place).appName(name).getOrCreate()
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        _logs.append(path)
        return started
    except Exception as error:
        raise KpsplitError(
            f"Spark did not start on {place} ({type(error).__name__})", hint=f"see {path}"
        ) from error


def _on_this_machine(jars: Path, scratch: Path) -> dict[str, str]:
    return {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
    }


def _on_a_cluster(jars: Path) -> dict[str, str]:
    return {"spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))}


def _remove_later(folder: Path) -> None:
    """Spark makes this folder where it is started and leaves it there, empty."""
    if not folder.exists():
        atexit.register(_remove_if_empty, folder.resolve())


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def running_session(
    cores: int | None = None, memory: str = DEFAULT_MEMORY, master: str | None = None
) -> Iterator[SparkSession]:
    """Yield the session that this process has already, or one of our own that ends with the block.

    A session that is there already stays with its own master and memory.
    """
    found = SparkSession.getActiveSession()
    spark = found or local_session(cores, memory, master=master)
    try:
        yield spark
    finally:
        if found is None:
            spark.stop()


def kept_log() -> Path | None:
    """Return a copy of the log of our own session that is there when this process is over; None without any.

    After a failure: the log itself goes with the session's scratch folder.
    """
    if not _logs or not _logs[-1].exists():
        return None
    handle, name = tempfile.mkstemp(prefix="kpsplit-spark-", suffix=".log")
    os.close(handle)
    return Path(shutil.copyfile(_logs[-1], name))


def _environment(java: Java, scratch: Path, local: bool) -> None:
    """Tell Spark's launcher and its Python workers which programs to run."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if java.bundled:
        os.environ["JAVA_HOME"] = str(_home_for_spark(java, scratch))


def _home_for_spark(java: Java, scratch: Path) -> Path:
    """Return a JAVA_HOME whose java drops a module that Spark asks for and the bundled runtime lacks."""
    home = scratch / "java-home"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(
        "#!/usr/bin/env bash\n"
        "arguments=()\n"
        'for a in "$@"; do [[ $a == --add-modules=jdk.incubator.vector ]] || arguments+=("$a"); done\n'
        f'exec "{java.path}" "${{arguments[@]}}"\n'
    )
    script.chmod(0o755)
    return home


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Let the JVM that is started meanwhile inherit a file as its stderr: its chatter is not the user's."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
