"""A Spark session on this machine, for the command line and tests. Other jobs take the user's own.

Also here: which master URLs are accepted, and Spark's own errors as one clear line.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kpsplit.devcluster.jars import Java, find_java
from kpsplit.errors import ConfigurationError, KpsplitError, UnreachableError, UsageError
from kpsplit.spark_jobs.jars import connector_coordinates, connector_jars

CONNECT_SECONDS = 5.0
_LOCAL = re.compile(r"local(\[(\*|[1-9][0-9]{0,3})\])?")
_ADDRESS = r"([^,/:\s\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://{_ADDRESS}(,{_ADDRESS})*")
_OTHERS = re.compile(r"yarn|k8s://\S+")


def is_local(master: str) -> bool:
    """Return whether everything is done in this process's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def check_master(master: str) -> None:
    """Raise unless Spark may be started there; blocks for some seconds at most."""
    if is_local(master) or _OTHERS.fullmatch(master):
        return
    if not _STANDALONE.fullmatch(master):
        raise UsageError(
            f"Spark cannot be started on {master[:80]!r}: not a master URL",
            hint="write local[4], spark://host:7077, k8s://… or yarn",
        )
    addresses = [address.rpartition(":") for address in master.removeprefix("spark://").split(",")]
    refused = [
        why for host, _, port in addresses if (why := _refusal(host.strip("[]"), int(port))) is not None
    ]
    if len(refused) == len(addresses):
        raise UnreachableError(
            f"Spark's master {master} cannot be reached ({refused[0]})", hint="check --master and the network"
        )


def _refusal(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


DEFAULT_MEMORY = "1g"
LOG = "spark.log"
REDACTED = "(?i)secret|password|passwd|token|access[.]?key|jaas|keystore[.]key|credential"
"""What Spark hides in its UI, logs and plans: its own words and those of Kafka's security settings."""

_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.authenticate.enableSaslEncryption",
)
"""Each of these settings encrypts what Spark sends from machine to machine."""

_END_SECONDS = 5.0
"""For what a JVM does when it is terminated; then it is killed."""

_log = logging.getLogger(__name__)
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
    connector from it. What concerns executors (number, memory, addresses, shuffle partitions) is said in
    ``spark-defaults.conf``, or is Spark's own default.

    The JVM's working directory is a scratch folder: Spark makes a folder ``artifacts`` there. So paths that
    are handed to Spark must be absolute.

    Args:
        cores: threads that work; all of the machine's when not given.
        memory: the JVM's heap.
        name: of the application.
        log: the file for what the JVM writes; a temporary one when not given.
        more: settings of Spark that win over kpsplit's.
        master: Spark's master URL; ``local[cores]`` when not given.

    Raises:
        UsageError: that is not a master URL, or not one of this kind of session.
        KpsplitError: no Java, no connector, the master cannot be reached, or Spark did not start.
    """
    threads = cores or os.cpu_count() or 1
    place = master or f"local[{threads}]"
    check_master(place)
    java = find_java()
    jars = connector_jars(java)
    scratch = Path(tempfile.mkdtemp(prefix="kpsplit-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    local = is_local(place)
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if java.bundled:
        os.environ["JAVA_HOME"] = str(_home_for_spark(java, scratch))
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.driver.memory": memory,
        **(_on_this_machine(jars, scratch, threads) if local else {"spark.jars": ",".join(map(str, jars))}),
        "spark.driver.defaultJavaOptions": f'"-Duser.dir={scratch}"',
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Without "kafka" its records are not converted row by row: a fifth of the processor time of a scan.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.redaction.regex": REDACTED,
    }
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    path = log or scratch / LOG
    _logs.append(path)
    try:
        with _stderr_into(path), _interrupts_kept():
            return builder.master(place).appName(name).getOrCreate()
    except Exception as error:
        raise KpsplitError(
            f"Spark did not start on {place} ({type(error).__name__})", hint=f"see {kept_log() or path}"
        ) from error


def _on_this_machine(jars: Sequence[Path], scratch: Path, threads: int) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": str(2 * threads),
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
    }


@contextmanager
def running_session(
    cores: int | None = None, memory: str = DEFAULT_MEMORY, master: str | None = None
) -> Iterator[SparkSession]:
    """Yield the session that this process has already, or one of our own that ends with the block.

    A session that is there already stays with its own master and memory. Our own ends with its JVM where the
    block is interrupted: Spark would finish its jobs first.

    Raises:
        KeyboardInterrupt: it was interrupted, also where Py4J has made another error of that.
    """
    found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    own = None
    with _py4j_kept_quiet():
        try:
            own = local_session(cores, memory, master=master)
            yield own
        except BaseException as error:
            if _by_interrupt(error):
                own = None
                _end_jvm()
                raise KeyboardInterrupt from None
            raise
        finally:
            if own is not None:
                own.stop()


@contextmanager
def _py4j_kept_quiet() -> Iterator[None]:
    """Hide what Py4J logs: it raises the same, and an interrupted call makes it log tracebacks.

    It logs with loggers of its own, and with the root logger.
    """
    root, own = logging.getLogger(), logging.getLogger("py4j")
    propagated, own.propagate = own.propagate, False
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        own.propagate = propagated


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _by_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is an interruption, or came up while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _end_jvm() -> None:
    """End the JVM of our own session at once. Nothing is asked of it: a call may be half done."""
    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return  # it is still starting, and ends with this process, which holds its stdin
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep Spark from handling Ctrl-C: its handler calls the JVM over a connection that is in use."""
    real = signal.signal
    if threading.current_thread() is threading.main_thread():
        signal.signal = lambda *_: signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal = real


def warn_of_plain_rpc(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Log a warning if secrets among some options would travel to other machines in the clear."""
    secret = sorted(name for name in options if re.search(f"{REDACTED}|ssl[.]key[.]", name))
    if not secret or is_local(spark.conf.get("spark.master", "local") or "local"):
        return
    if not any(str(spark.conf.get(name, "false")).lower() == "true" for name in _ENCRYPTED):
        _log.warning(
            "what logs in to Kafka (%s) travels to Spark's executors in the clear; turn on "
            "spark.authenticate and spark.network.crypto.enabled, or spark.ssl.rpc.enabled, in "
            "spark-defaults.conf",
            ", ".join(secret),
        )


def kept_log() -> Path | None:
    """Return a copy of the log of our own session that is there when this process is over; None without any.

    After a failure: the log itself goes with the session's scratch folder.
    """
    if not _logs or not _logs[-1].exists():
        return None
    handle, name = tempfile.mkstemp(prefix="kpsplit-spark-", suffix=".log")
    os.close(handle)
    return Path(shutil.copyfile(_logs[-1], name))


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
    """Let the JVM that is started meanwhile inherit a file as its stderr: the user need not see it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


SPARK_ERRORS = (PySparkException, Py4JJavaError)

_LONGEST = 300
_CAUSED = "Caused by: "
_CALLING = "An error occurred while calling "
_TASK = re.compile(r"^org\.apache\.spark\.SparkException: Job aborted .*?, most recent failure: .*?\): ")
_PACKAGE = re.compile(r"^(?:[\w$]+\.)+(?=[\w$]+)")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")


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
    log = kept_log()
    return KpsplitError(
        f"Spark failed: {reason(text) or type(error).__name__}", hint=f"see {log or 'the log of your Spark'}"
    )


def reason(text: str) -> str:
    """Return the innermost cause that Spark or Java names, in one line: class and message.

    What it quotes is left out: that may be of a record, or of a login.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    others = [line.removeprefix(": ") for line in lines if not line.startswith(_CALLING)]
    line = _QUOTED.sub("'…'", _PACKAGE.sub("", _TASK.sub("", (causes[-1:] or others[:1] or [""])[0])))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
