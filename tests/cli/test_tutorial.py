"""Every command and program of docs/tutorial.md runs, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(
    r"(?:`(?P<file>\w+\.py)`(?:(?!```).)*)?```(?P<kind>sh|python)\n(?P<text>.*?)```", re.DOTALL
)
ELSEWHERE = re.compile(r"^(pip install|export KPSPLIT|kpsplit cluster down)")
"""What the tests have done already: they have a cluster of their own."""

OPERATION = re.compile(r"^kpsplit (split|merge) .*--yes$", re.MULTILINE)


def steps(page: str, folder: Path, topic: str) -> Iterator[str]:
    """Write the page's programs into a folder; yield the lines of its commands."""
    for block in BLOCK.finditer(page):
        text = block["text"].replace("orders", topic)
        if block["kind"] == "python":
            (folder / block["file"]).write_text(text)
        else:
            yield from (line for line in text.splitlines() if not ELSEWHERE.match(line))


@pytest.mark.broker
@pytest.mark.nightly
def test_the_tutorial_runs_and_bills_every_order_once(kpsplit, tmp_path) -> None:
    commands = "\n".join(steps(PAGE.read_text("utf-8"), tmp_path, f"tutorial-{uuid.uuid4().hex[:8]}"))
    commands, operations = OPERATION.subn(r"\g<0> --max-pause 60s", commands)
    assert operations == 2
    (tmp_path / "tutorial.sh").write_text(
        "set -eu\n"
        f'python() {{ "{sys.executable}" "$@"; }}\n'
        'kpsplit() { python -m kpsplit.admin_cli "$@"; }\n' + commands
    )
    ran = subprocess.run(
        ["bash", "tutorial.sh"],
        cwd=tmp_path,
        env=kpsplit.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sent = (tmp_path / "shop.log").read_text().split()[0]
    assert (tmp_path / "billing.log").read_text().split()[0] == sent != "0"
    assert "took effect" in ran.stdout
    assert "deleted " in ran.stdout


def test_every_program_of_the_tutorial_has_a_name_and_compiles(tmp_path) -> None:
    commands = list(steps(PAGE.read_text("utf-8"), tmp_path, "orders"))
    programs = sorted(path.name for path in tmp_path.iterdir())
    assert programs == ["billing.py", "create.py", "shop.py"]
    for name in programs:
        compile((tmp_path / name).read_text(), name, "exec")
    assert sum(line.startswith("kpsplit ") for line in commands) >= 10
