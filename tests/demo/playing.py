"""Runs `kpsplit demo` as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import psutil

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 800
PASS = re.compile(
    r"PASS sent=(\d+) delivered=(\d+) lost=0 duplicated=0 out_of_order=0 strays=(\d+) "
    r"pause_p50_ms=\d+ pause_p99_ms=\d+ pause_max_ms=\d+"
)
START_OF_WRITING = "steady traffic"


@contextmanager
def running(bootstrap: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo on the session's cluster; killed at the end if it still runs."""
    command = [sys.executable, "-m", "kpsplit.admin_cli", "demo", "-b", bootstrap]
    with (folder / "stderr").open("w") as stderr:
        demo = subprocess.Popen(
            [*command, "--html", str(folder / "page.html"), *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            yield demo
        finally:
            for process in [*children_of(demo), demo]:
                process.kill()
            demo.wait()


def children_of(demo: subprocess.Popen[str], module: str = "kpsplit.demo.") -> list[psutil.Process]:
    """Its writers and the members of its group, or only one kind of them."""
    try:
        children = psutil.Process(demo.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if any(word.startswith(module) for word in words_of(child))]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none if it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one too
        return []


def wait_for_writing(demo: subprocess.Popen[str], folder: Path) -> list[psutil.Process]:
    """Return the writers and members once there are records of all."""
    end = monotonic() + PATIENCE / 2
    while START_OF_WRITING not in (folder / "stderr").read_text():
        assert demo.poll() is None and monotonic() < end, (folder / "stderr").read_text()
        sleep(0.05)
    return children_of(demo)


def result_of(demo: subprocess.Popen[str], folder: Path) -> tuple[int, str]:
    """The exit code and the last line on stdout."""
    out, _ = demo.communicate(timeout=PATIENCE)
    return demo.returncode, (out.splitlines() or [(folder / "stderr").read_text()])[-1]


def apache_logs() -> Path:
    """Where real log lines are, which are not part of the repository: they may be absent."""
    named = os.environ.get("KPSPLIT_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    return folder / "apache_logs"
