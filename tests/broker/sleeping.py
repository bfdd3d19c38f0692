"""What the tests of suspended members share: the member in a process of its own, and records for it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any, Self

from kpsplit import Producer
from tests.broker import waking_child
from tests.broker.consuming import wait_for

COUNT = 400
PATIENCE = 180.0
SHORT_SESSION_MS = 15_000
"""Of a member that is suspended for longer. Before and after that it must not lose its slots: so it is longer
than a busy machine keeps anybody from the processor."""
REMOTE = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None}


class Sleeper:
    """The child: ``values`` are those of the records that it was handed out, in order.

    ``commits``: how each commit came out, ``done`` or the error's name.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, how: str, **settings: Any) -> None:
        self.values: list[str] = []
        self.events: list[str] = []
        self.stats: list[dict[str, Any]] = []
        self.commits: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, waking_child.__file__, bootstrap, group, topic, how, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            told = json.loads(line)
            if "value" in told:
                self.values.append(told["value"])
            elif "stats" in told:
                self.stats.append(told["stats"])
            elif "commit" in told:
                self.commits.append(told["commit"])
            else:
                self.events.append(told["event"])

    def order(self, command: str) -> None:
        """Give it a command; it does not wait for the child."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def filled(self) -> int:
        """Wait until records are in its buffer; return how many it was handed out by then."""

        def waiting() -> int:
            known = len(self.stats)
            self.order("stats")
            wait_for(lambda: len(self.stats) > known, "the statistics", PATIENCE)
            return int(self.stats[-1]["waiting_bytes"])

        wait_for(waiting, "records in the buffer", PATIENCE)
        return len(self.values)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self) -> dict[str, Any]:
        """Have it close; return its last statistics."""
        self.signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0
        self._reader.join(PATIENCE)
        return self.stats[-1]


def send(bootstrap: str, topic: str, name: str) -> set[str]:
    """Write some records of 40 keys; return their values."""
    values = {f"{name}-{n}" for n in range(COUNT)}
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for n, value in enumerate(sorted(values)):
            producer.produce(topic, value.encode(), b"key-%d" % (n % 40))
        assert producer.flush(60) == 0
    return values
