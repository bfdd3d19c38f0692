"""Ctrl-C while Spark works for the command line: one line, exit code 130, and nothing of Spark is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kpsplit.spark_jobs.session import _py4j_kept_quiet

PROGRAM = """
import sys, click
from kpsplit.admin_cli.main import run
from kpsplit.spark_jobs.session import SparkContext, running_session

@click.command()
def work():
    print("starting", flush=True)
    with running_session(1, "512m") as spark:
        print(SparkContext._gateway.proc.pid, flush=True)
        spark.range(10 ** 13).selectExpr("sum(id * id % 7)").collect()

sys.exit(run(work, []))
"""


def test_an_interrupted_verification_ends_with_its_jvm_and_its_folder(spark, tmp_path: Path) -> None:
    """``spark``: its jars are there."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as working:  # fmt: skip
        assert working.stdout is not None
        assert working.stdout.readline() == "starting\n"
        jvm = int(working.stdout.readline())
        working.send_signal(signal.SIGINT)
        out, err = working.communicate(timeout=60)
    assert (working.returncode, out, err) == (130, "", "kpsplit: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(jvm, 0)
    assert list(tmp_path.glob("kpsplit-*")) == []


def test_what_py4j_logs_of_an_interrupted_call_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    theirs = logging.getLogger("py4j.clientserver")
    with _py4j_kept_quiet():
        theirs.error("Exception occurred while shutting down connection")
        logging.getLogger("kpsplit").warning("ours")
    assert [record.message for record in caplog.records] == ["ours"]
    theirs.error("outside of a session of ours")
    assert caplog.records[-1].name == "py4j.clientserver"
