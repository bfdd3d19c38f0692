"""Members that are suspended with records in their buffers, and wake up: what they hand out then."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Self

import pytest

from kpsplit import Producer
from tests.broker import waking_child
from tests.broker.consuming import Log, Member, shared, wait_for
from tests.broker.group_config import set_group_config
from tests.broker.operating import operating

pytestmark = pytest.mark.broker

COUNT = 400
PATIENCE = 100.0
SHORT_SESSION_MS = 6000
REMOTE = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None}


class Sleeper:
    """The child: ``values`` are those of the records that it was handed out, in order."""

    def __init__(self, bootstrap: str, group: str, topic: str, how: str, **settings: Any) -> None:
        self.values: list[str] = []
        self.events: list[str] = []
        self.stats: list[dict[str, Any]] = []
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


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("how", "begin"), [("poll", 5), ("run", 2)])
def test_a_member_suspended_until_another_has_its_slots_hands_out_nothing_of_them_when_it_wakes(
    bootstrap, make_topic, how, begin, protocol
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    with operating(bootstrap) as operations:
        shared(operations, topic, slots=2)
    first = send(bootstrap, topic, "first")
    # Its session is short, because it is suspended for longer.
    settings: dict[str, Any] = {"session_timeout_ms": SHORT_SESSION_MS}
    if protocol == "consumer":
        settings = REMOTE
        set_group_config(bootstrap, group, consumer_session_timeout_ms=SHORT_SESSION_MS)
    with Sleeper(bootstrap, group, topic, how, **settings) as sleeper:
        sleeper.order(f"take {begin}") if how == "poll" else None
        wait_for(lambda: len(sleeper.values) == begin, "the first records", PATIENCE)
        before = sleeper.filled()
        sleeper.signal(signal.SIGSTOP)
        stays = Member(bootstrap, group, [topic], log, "stays", **(REMOTE if protocol == "consumer" else {}))
        stays.start()
        wait_for(lambda: log.distinct() == COUNT, "the other to have all slots", PATIENCE)
        sleeper.order("go")
        sleeper.signal(signal.SIGCONT)
        wait_for(lambda: sleeper.events, "the one that slept to hear of its loss", PATIENCE)
        later: set[str] = set()

        def works_again() -> bool:
            later.update(send(bootstrap, topic, f"later-{len(later)}"))
            return bool(later & set(sleeper.values))

        wait_for(works_again, "it to work again", PATIENCE)
        wait_for(lambda: later <= {*sleeper.values, *log.values()}, "all", PATIENCE)
        told = sleeper.end()
        stays.stop()
    assert before == begin
    assert not first & set(sleeper.values[before:])
    assert told["held_after_sleep"]
    assert sleeper.events == ["lost"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_suspended_for_less_than_its_session_goes_on_with_what_it_had(
    bootstrap, make_topic, protocol
):
    topic = make_topic()
    with operating(bootstrap) as operations:
        shared(operations, topic, slots=2)
    values = send(bootstrap, topic, "first")
    settings = REMOTE if protocol == "consumer" else {}
    with Sleeper(bootstrap, f"g-{topic}", topic, "poll", **settings) as sleeper:
        sleeper.order("take 5")
        wait_for(lambda: len(sleeper.values) == 5, "the first records", PATIENCE)
        sleeper.filled()
        sleeper.signal(signal.SIGSTOP)
        time.sleep(3)  # so long it sleeps: more than what it may without asking, less than its session
        sleeper.order("go")
        sleeper.signal(signal.SIGCONT)
        wait_for(lambda: len(sleeper.values) == COUNT, "all records", PATIENCE)
        told = sleeper.end()
    assert set(sleeper.values) == values
    assert told["held_after_sleep"]
    assert not told["held"]
    assert sleeper.events == []
