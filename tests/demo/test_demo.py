"""`kpsplit demo` from end to end, as a user runs it. No test here looks at a time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

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
    """Real log lines that are not part of the repository."""
    named = os.environ.get("KPSPLIT_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    path = folder / "apache_logs"
    if not path.is_file():
        pytest.skip(f"no {path}: set KPSPLIT_TEST_DATA to a folder with a file apache_logs")
    return path


def test_real_lines_come_back_complete_and_in_order_per_key(bootstrap: str, tmp_path: Path) -> None:
    path = apache_logs()
    arguments = ("--input", str(path), "--key-regex", r"^(\S+)", "--duration", "4")
    with running(bootstrap, tmp_path, *arguments) as demo:
        code, last = result_of(demo, tmp_path)
    match = PASS.fullmatch(last)
    assert match is not None and code == 0, f"{last}\n{(tmp_path / 'stderr').read_text()}"
    lines = len(path.read_bytes().splitlines())
    assert (int(match[1]), int(match[2])) == (lines, lines)


def test_a_writer_that_is_killed_fails_the_demo_with_the_reason(bootstrap: str, tmp_path: Path) -> None:
    with running(bootstrap, tmp_path, "--duration", "60", "--rate", "500") as demo:
        children = wait_for_writing(demo, tmp_path)
        writers = children_of(demo, "kpsplit.demo.worker")
        assert (len(writers), len(children)) == (5, 8)
        writers[0].kill()
        code, last = result_of(demo, tmp_path)
        assert not any(child.is_running() for child in children)
    assert (code, last) == (3, "FAIL reason=writer writer-1 was killed by signal 9")


def test_ctrl_c_ends_the_demo_and_all_its_writers(bootstrap: str, tmp_path: Path) -> None:
    with running(bootstrap, tmp_path, "--duration", "60", "--rate", "500") as demo:
        children = wait_for_writing(demo, tmp_path)
        demo.send_signal(signal.SIGINT)
        code, _ = result_of(demo, tmp_path)
        assert not any(child.is_running() for child in children)
    assert code == 130


def test_nobody_outlives_a_demo_that_is_killed(bootstrap: str, tmp_path: Path) -> None:
    with running(bootstrap, tmp_path, "--duration", "60", "--rate", "500") as demo:
        children = wait_for_writing(demo, tmp_path)
        children_of(demo, "kpsplit.demo.worker")[-1].suspend()
        children_of(demo, "kpsplit.demo.group.member")[-1].suspend()
        demo.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
