"""examples/shared_partition.py keeps its promise on real brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "shared_partition.py"
SECONDS = 400

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(SECONDS + 30)]


@pytest.mark.nightly
def test_three_members_share_a_partition_that_is_split_and_merged(bootstrap: str) -> None:
    command = [sys.executable, str(EXAMPLE), "--bootstrap-server", bootstrap]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout[:4]) == (0, "PASS"), ended.stdout + ended.stderr[-3000:]
