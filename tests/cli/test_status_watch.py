"""``status --watch``: it outlives a broker that restarts, and ends at what does not get better by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kpsplit.devcluster.cluster import DevCluster
from tests.broker.consuming import wait_for
from tests.broker.operating import operating
from tests.cli.conftest import Kpsplit

pytestmark = pytest.mark.broker

CLEARED = "\x1b[2K"


@contextmanager
def watching(watch: Kpsplit, out: int, err: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``status --watch`` in a process."""
    command = [*watch.command, "status", "--watch", "--interval", "200ms", *options]
    with subprocess.Popen(
        command, env=watch.env | {"TERM": "xterm"}, stdin=subprocess.DEVNULL, stdout=out, stderr=err
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.nightly
def test_a_watch_says_for_how_long_it_shows_nothing_new_and_goes_on_when_the_broker_is_back(
    tmp_path: Path,
) -> None:
    piped, said, drawn = tmp_path / "out", tmp_path / "err", bytearray()
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)

    def frame() -> str:
        """What the terminal shows now: what was drawn since it was last cleared."""
        with suppress(BlockingIOError):
            drawn.extend(os.read(screen, 1 << 20))
        return drawn.decode(errors="replace").rpartition(CLEARED)[2]

    with DevCluster(1) as cluster, operating(cluster.bootstrap):
        watch = Kpsplit(cluster.bootstrap)
        assert watch("status", "no-such", "--watch").code == 2
        with (
            piped.open("wb") as out,
            said.open("wb") as err,
            watching(watch, out.fileno(), err.fileno(), "-o", "json") as one,
            watching(watch, terminal, err.fileno()) as other,
        ):
            wait_for(lambda: piped.read_text() and "partition" in frame(), "a first look")
            assert not said.read_text()
            cluster.kill(0)
            wait_for(lambda: "trying again" in said.read_text(), "the error on stderr")
            wait_for(lambda: "nothing new for" in frame(), "the error on the screen")
            before = piped.read_text()
            cluster.restart(0)
            wait_for(lambda: len(piped.read_text()) > len(before), "a look after the restart")
            wait_for(lambda: "nothing new" not in frame() and "partition" in frame(), "no error any more")
            for process in (one, other):
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
                wait_for(lambda ends=process: ends.poll() is not None or frame() is None, "its end")
                assert process.returncode == 130
    assert all(json.loads(line) == {"partitions": []} for line in piped.read_text().splitlines())
    assert all(line.startswith("kpsplit: ") for line in said.read_text().splitlines())
    os.close(screen)
    os.close(terminal)
