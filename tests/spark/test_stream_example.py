"""examples/logical_pipeline.py keeps its promise on real brokers and a Spark of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kpsplit.admin import Admin
from tests.spark.conftest import QUICK_JAVA

EXAMPLE = Path(__file__).parents[2] / "examples" / "logical_pipeline.py"
SECONDS = 1200

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(SECONDS + 30)]


def test_a_stateful_pipeline_ends_with_what_a_batch_over_the_history_says(
    operations: Admin, bootstrap: str
) -> None:
    command = [sys.executable, str(EXAMPLE), "--bootstrap-server", bootstrap, "--rate", "200"]
    quick = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=quick)
    last = ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ""
    assert ended.returncode == 0, f"{last}\n{ended.stderr[-3000:]}"
    assert "missing=0 doubled=0 out_of_order=0" in last and "differ=0" in last
    assert "epochs=4" in last, "the partition did not live through every change"
    assert int(re.search(r"sessions=(\d+)", last)[1]) > 200, "sessions that end prove more than open ones"
