"""What tests measure is printed at the end of a run, also where workers ran the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURING = """
import pytest
from tests.measured import measured

@pytest.mark.parametrize(("case", "seconds"), [("quick", 0.5), ("too-slow", 15.25)])
def test_a_time(case, seconds, record_property):
    record_property(*measured("back again (bound: 15 s)", case, seconds, 15.0))
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_measured_times_are_printed_at_the_end_of_the_run(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (tmp_path / "test_measuring.py").write_text(MEASURING)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", f"--rootdir={tmp_path}", *workers]
    run = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    start = lines.index("back again (bound: 15 s):")
    assert lines[start + 1 : start + 3] == ["  quick       0.50 s", "  too-slow   15.25 s  BEYOND ITS BOUND"]
