"""``spark-submit --py-files`` with the wheel, on a standalone master with two workers; no secret is seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import psutil
import pyspark
import pytest

from kpsplit.devcluster.jars import find_java
from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs.jars import connector_jars
from kpsplit.spark_jobs.session import REDACTED
from tests.spark.conftest import QUICK_JAVA

pytestmark = [pytest.mark.broker, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
JOB = Path(__file__).with_name("submitted_job.py")
HOME = Path(pyspark.__file__).parent
PATIENCE = 540.0
SECRET = "hunter2-of-the-submitted-job"
WORKERS = 2
LOOK_SECONDS = 0.5
"""Between two looks at the command lines: each costs the machine some time."""


def environment() -> dict[str, str]:
    """What Spark's own scripts need; nothing of a session that this process may have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))}
    java = find_java()
    if java.bundled:
        pytest.skip("Spark's own scripts need a system Java")
    return kept | {
        "JAVA_HOME": str(java.path.resolve().parents[1]),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYSPARK_PYTHON": sys.executable,
    }


@dataclass
class Daemon:
    """A child process with a log."""

    process: psutil.Popen
    log: Path

    def says(self, pattern: str, end: float) -> str:
        """Wait until the log has a line like that; return what the pattern's group found."""
        while (found := re.search(pattern, self.log.read_text())) is None:
            assert self.process.poll() is None and monotonic() < end, self.log.read_text()
            sleep(0.05)
        return found[1]


@contextmanager
def daemon(folder: Path, name: str, *command: str) -> Iterator[Daemon]:
    """A class of Spark's as a child process; it and its own children are ended by their ids."""
    log = folder / f"{name}.log"
    with log.open("w") as out:
        process = psutil.Popen(
            [str(HOME / "bin" / "spark-class"), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
            cwd=folder,
        )
    try:
        yield Daemon(process, log)
    finally:
        children = process.children(recursive=True) if process.is_running() else []
        for one in (process, *children):
            if one.is_running():
                one.kill()
        process.wait()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("kpsplit-*.whl"))


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[tuple[str, list[Daemon]]]:
    """The address of a master on loopback that two workers have joined, and all three."""
    try:
        find_java()
    except KpsplitError as error:
        pytest.skip(str(error))
    end = monotonic() + PATIENCE / 2
    with ExitStack() as stack:
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *where)
        running = [stack.enter_context(master)]
        address = running[0].says(r"Starting Spark master at (spark://\S+)", end)
        for number in range(WORKERS):
            size = ("--cores", "1", "--memory", "768m", "--work-dir", str(tmp_path / f"work-{number}"))
            kind = "org.apache.spark.deploy.worker.Worker"
            worker = daemon(tmp_path, f"worker-{number}", kind, *where, *size, address)
            running.append(stack.enter_context(worker))
        for worker in running[1:]:
            worker.says(r"(Successfully registered) with master", end)
        yield address, running


@pytest.mark.nightly
def test_the_wheel_reads_and_verifies_on_executors_and_no_secret_is_seen(
    standalone, wheel: Path, history, tmp_path: Path
) -> None:
    address, daemons = standalone
    properties, events = tmp_path / "client.properties", tmp_path / "events"
    events.mkdir()
    properties.write_text(
        f"bootstrap.servers={history.bootstrap}\nsecurity.protocol=plaintext\n"
        f"sasl.mechanism=PLAIN\nsasl.username=me\nsasl.password={SECRET}\n"
    )
    settings = {
        "spark.redaction.regex": REDACTED,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.cores.max": str(WORKERS),  # without it a master's cores are not waited for
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:g}s",
        "spark.ui.enabled": "false",
    }
    command = [
        *(str(HOME / "bin" / "spark-submit"), "--master", address, "--py-files", str(wheel)),
        *("--jars", ",".join(map(str, connector_jars()))),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *(str(JOB), history.topic, str(properties)),
    ]
    out, err = tmp_path / "driver.out", tmp_path / "driver.err"
    with out.open("w") as stdout, err.open("w") as stderr:
        job = psutil.Popen(command, env=environment(), stdout=stdout, stderr=stderr, cwd=tmp_path)
        seen = command_lines(job, [job, *(d.process for d in daemons)])
    assert job.returncode == 0, err.read_text()[-3000:]
    told = json.loads(out.read_text().rpartition("RESULT ")[2])
    assert str(wheel.name) in told["kpsplit"]
    assert (told["records"], told["clean"]) == (len(history.read()), True)
    assert told["segments"] > 1
    assert told["executors"] == WORKERS
    assert any("CoarseGrainedExecutorBackend" in line for line in seen)
    assert not [line for line in seen if SECRET in line]
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p != properties]
    assert any(p.is_relative_to(events) for p in written)
    assert any(p.name == "stderr" and p.stat().st_size for p in written), "no executor left a log"
    assert not [p for p in written if SECRET.encode() in p.read_bytes()]


@pytest.mark.nightly
def test_the_command_line_verifies_on_a_master_that_is_named(standalone, history, tmp_path: Path) -> None:
    """Executors have no kpsplit, no connector of their own (the jars come from the driver) and no Python."""
    address, daemons = standalone
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.executor.memory 512m\nspark.driver.host 127.0.0.1\nspark.sql.shuffle.partitions 2\n"
    )
    ours = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": "/no/such/python",
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kpsplit.admin_cli", "-b", history.bootstrap, "-o", "json"),
            *("verify", history.topic, "--master", address, "--memory", "512m"),
        ],
        env=environment() | ours,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["counts"][str(history.parent)]["data"] == len(history.read())
    assert not (tmp_path / "artifacts").exists()
    launched = [d.log.read_text().count("Asked to launch executor") for d in daemons[1:]]
    assert sum(launched) >= 1, launched


def command_lines(job: psutil.Popen, roots: list[psutil.Process]) -> set[str]:
    """Look at the command lines of some processes and all their children until the job has ended."""
    found: set[str] = set()
    end = monotonic() + PATIENCE
    while job.poll() is None:
        if monotonic() >= end:
            job.kill()
        for root in roots:
            for process in (root, *children_of(root)):
                found.add(command_line(process))
        sleep(LOOK_SECONDS)
    return found


def children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def test_the_documentation_hides_what_kpsplit_hides() -> None:
    assert f"spark.redaction.regex={REDACTED}" in (REPOSITORY / "docs" / "spark.md").read_text("utf-8")
