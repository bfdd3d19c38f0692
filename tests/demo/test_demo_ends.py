"""`kpsplit demo` when something happens to it. No test here looks at a time."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.demo.playing import children_of, result_of, running, wait_for_writing

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.nightly
def test_a_writer_that_is_killed_fails_the_demo_with_the_reason(bootstrap: str, tmp_path: Path) -> None:
    with running(bootstrap, tmp_path, "--duration", "60", "--rate", "500") as demo:
        children = wait_for_writing(demo, tmp_path)
        writers = children_of(demo, "kpsplit.demo.writer")
        assert (len(writers), len(children)) == (5, 9)
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


@pytest.mark.nightly
def test_nobody_outlives_a_demo_that_is_killed(bootstrap: str, tmp_path: Path) -> None:
    with running(bootstrap, tmp_path, "--duration", "60", "--rate", "500") as demo:
        children = wait_for_writing(demo, tmp_path)
        children_of(demo, "kpsplit.demo.writer")[-1].suspend()
        children_of(demo, "kpsplit.demo.member")[-1].suspend()
        demo.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
