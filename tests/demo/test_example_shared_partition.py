"""examples/shared_partition.py keeps its promise on real brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "shared_partition.py"
SECONDS = 800

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(SECONDS + 30)]


def test_three_members_share_a_partition_whatever_happens_to_it_and_them(bootstrap: str) -> None:
    command = [sys.executable, str(EXAMPLE), "--bootstrap-server", bootstrap, "--rate", "800"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    last = ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ""
    assert ended.returncode == 0, f"{last}\n{ended.stderr[-3000:]}"
    assert "missing=0 out_of_order=0 unexplained_duplicates=0" in last
    assert "redelivered_after_the_kill=" in last, "the kill left nothing to deliver again: it proved nothing"
