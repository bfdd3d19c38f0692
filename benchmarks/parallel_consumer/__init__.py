"""Confluent's Parallel Consumer as the peer of ``run()``: its jars, and its process (``Peer.java``).

The jars are fetched once, with Ivy as Kafka's own, and verified against the list beside this file.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.harness import Run
from kpsplit.devcluster.jars import WantedJars, cache_folder, ensure, find_java, read_list
from kpsplit.errors import KpsplitError

VERSION = "0.5.3.3"
END_SECONDS = 10.0
_HERE = Path(__file__).parent
_NAME = f"parallel-consumer-{VERSION}"
_REASON = re.compile(r"\w(Error|Exception)\b|: error: ")


class ParallelConsumer:
    """A JVM that makes one run after the other."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def answer(self, request: str = "") -> str:
        """Return its next line, after a request if there is one.

        Raises:
            KpsplitError: it has ended. With the first error that it reported.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise KpsplitError("the process has no pipes")
        if request:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        if line := self._process.stdout.readline().strip():
            return line
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if _REASON.search(line)]
        raise KpsplitError(f"the Parallel Consumer ended: {said[0] if said else 'it gave no reason'}")

    def run(self, workers: int, handler_ms: int, settle: float, seconds: float, records: int) -> Run:
        """Return what a record takes, by the wall and of the JVM's processors, once everything has settled.

        Raises:
            KpsplitError: it failed, or so many records were not enough.
        """
        group = f"bench-peer-{time.time_ns()}"
        asked = (group, workers, handler_ms, int(settle * 1000), int(seconds * 1000))
        done, wall, cpu, all_done = map(int, self.answer(" ".join(map(str, asked))).split())
        if all_done >= records or not done:
            raise KpsplitError(f"the Parallel Consumer processed {all_done} of {records} records")
        return Run(wall / done / 1e9, cpu / done / 1e9)


@contextmanager
def parallel_consumer(bootstrap: str, topic: str) -> Iterator[ParallelConsumer]:
    """Yield a peer that reads a topic.

    Raises:
        KpsplitError: there is no Java, its jars cannot be fetched, or the runtime has no compiler.
    """
    java = find_java()
    expected = read_list(_HERE / f"{_NAME}.sha256")
    named = f"Parallel Consumer {VERSION}", _HERE / "ivy.xml", ("this comparison", "spark")
    folder = ensure(WantedJars(*named, expected), cache_folder() / _NAME, java)
    class_path = os.pathsep.join(str(folder / name) for name in expected)
    command = [str(java.path), "-cp", class_path, str(_HERE / "Peer.java"), bootstrap, topic]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            peer = ParallelConsumer(process, errors)
            peer.answer()
            yield peer
            process.communicate(timeout=END_SECONDS)
        finally:
            process.kill()
