"""How long a key waits whose slot moves to a member that joins: without state, with it, with warm copies.

    python -m benchmarks.state_handover [--megabytes 1024] [--rounds 3] [--only warm]

On an embedded cluster of three brokers a member owns all slots of a topic, with so much state. Another joins
while records are written: in turn without a state store, with one, and with ``warm_seconds``. Members are
processes of their own, so that one that restores takes no time from the other. Printed, for the keys that
moved: the median and the greatest time between a key's last record at the old owner and its first at the new
one; how many changelog records the newcomer restored; and how long it took from its start to the end of the
move. The aim: with ``warm_seconds`` no key waits longer than without state plus 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import kpsplit
from benchmarks.harness import PARTITIONS, SLOTS, VALUE, create_topics, enrol
from kpsplit.demo.endpoints import die_with_parent
from kpsplit.devcluster import DevCluster

KINDS = {"none": "without state", "cold": "with state", "warm": "with state and warm_seconds"}
WARM_SECONDS = 1800.0
FILL = b"fill-"
VALUES, VALUE_BYTES = 1024, 1024
"""What a record that fills the state writes: 1 MiB."""
KEYS = [b"key-%d" % number for number in range(400)]
PORTION, REST = 40, 0.01
"""Records that the writer sends before it rests, and for how many seconds: a key about ten times a second."""
STEADY_SECONDS, LOOK_SECONDS = 3.0, 0.2
LIMIT_SECONDS = 1800.0
AIM_SECONDS = 0.5


@dataclass(frozen=True)
class Move:
    """What one hand-over showed: seconds that keys waited, records restored, seconds until it was over."""

    waits: list[float]
    restored: int
    seconds: float


class Member:
    """What runs in a member's process."""

    def __init__(self, bootstrap: str, topic: str, group: str, directory: str, warm_seconds: float) -> None:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
        }
        self.store = kpsplit.StateStore(directory, warm_seconds=warm_seconds) if directory else None
        self.consumer = kpsplit.Consumer(config, state=self.store)
        self.consumer.subscribe([topic])
        self.filled = 0
        self.seen: dict[str, tuple[float, float]] = {}
        """By key: when its first record came, and its last."""

    def handle(self, message: Any) -> None:
        """Write state for a record: much, or a counter."""
        key = message.key()
        if key.startswith(FILL):
            self.filled += 1
            if self.store is not None:
                state = self.store.for_record(message)
                for number in range(VALUES):
                    state.put(b"%s-%d" % (key, number), os.urandom(VALUE_BYTES))
            return
        now = time.monotonic()
        first, _ = self.seen.get(key.decode(), (now, now))
        self.seen[key.decode()] = first, now
        if self.store is not None:
            self.store.for_record(message).put(key, b"%d" % message.offset())

    def works_on(self, slots: int) -> bool:
        """Return whether it reads so many slots, and nothing waits for a commit."""
        stages = self.consumer.stats()["slots"].values()
        waits = self.store is not None and self.store.stats()["pending_bytes"] > VALUES * VALUE_BYTES
        return len(stages) == slots and set(stages) == {"reading"} and not waits

    def run(self, slots: int, fills: int) -> None:
        """Work until SIGTERM; print when slots and state are there, and at the end what has come."""
        over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: over.set())
        told, look_at = False, 0.0
        while not over.is_set():
            for message in self.consumer.consume(100, 0.01):
                if message.error() is None:
                    with suppress(kpsplit.SlotGoneError):
                        self.handle(message)
            if not told and self.filled >= fills and time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                if told := self.works_on(slots):
                    print(json.dumps({"ready": time.monotonic()}), flush=True)
        counts = {} if self.store is None else self.store.stats()["counts"]
        print(json.dumps({"seen": self.seen, "restored": counts.get("restored", 0)}), flush=True)
        self.consumer.close()
        if self.store is not None:
            self.store.close()


class Process:
    """A member, seen from outside."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.state_handover", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(json.loads(line))

    def ready(self) -> float:
        """Wait until it has its slots and state; return when that was."""
        end = time.monotonic() + LIMIT_SECONDS
        while not self._lines:
            if time.monotonic() > end or self._process.poll() is not None:
                raise SystemExit("a member did not get its slots")
            time.sleep(0.05)
        return float(self._lines[0]["ready"])

    def stop(self) -> None:
        """Have it end."""
        self._process.terminate()

    def ended(self) -> dict[str, Any]:
        """Wait for its end; return what it has seen."""
        self._process.wait(LIMIT_SECONDS)
        self._reader.join()
        return self._lines[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def written(bootstrap: str, topic: str) -> Iterator[None]:
    """Have records of all keys written meanwhile."""
    over = threading.Event()

    def write() -> None:
        number = 0
        with kpsplit.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1}) as producer:
            while not over.is_set():
                for _ in range(PORTION):
                    producer.produce(topic, VALUE, KEYS[number % len(KEYS)])
                    number += 1
                producer.poll(0)
                time.sleep(REST)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hand_over(bootstrap: str, kind: str, megabytes: int) -> Move:
    """Have a member join a group of one with so much state."""
    topic = group = f"bench-state-{time.time_ns()}"
    create_topics(bootstrap, [topic])
    enrol(bootstrap, [topic])
    with kpsplit.Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(megabytes):
            producer.produce(topic, b"", b"%s%d" % (FILL, number))
    slots = PARTITIONS * SLOTS
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kpsplit-bench-"))

        def member(name: str, slots: int, fills: int, warm_seconds: float) -> Process:
            directory = "" if kind == "none" else str(Path(folder) / name)
            place = ["--bootstrap", bootstrap, "--topic", topic, "--group", group]
            sizes = ["--slots", str(slots), "--fills", str(fills), "--warm-seconds", str(warm_seconds)]
            process = Process(["--member", directory, *place, *sizes])
            stack.callback(process.kill)
            return process

        owner = member("owner", slots, megabytes, 0)
        owner.ready()
        stack.enter_context(written(bootstrap, topic))
        time.sleep(STEADY_SECONDS)
        began = time.monotonic()
        newcomer = member("newcomer", slots // 2, 0, WARM_SECONDS if kind == "warm" else 0)
        moved = newcomer.ready()
        time.sleep(STEADY_SECONDS)
        for process in (newcomer, owner):  # at once: nothing goes back before both have told what they saw
            process.stop()
        new, old = newcomer.ended(), owner.ended()
    waits = [first - old["seen"][key][1] for key, (first, _) in new["seen"].items()]
    return Move(waits, new["restored"], moved - began)


def measure(args: argparse.Namespace) -> None:
    """Run all kinds in turn, and print."""
    kinds = [kind for kind in KINDS if args.only in kind]
    found: dict[str, list[Move]] = {kind: [] for kind in kinds}
    with DevCluster(brokers=3) as cluster:
        for _ in range(args.rounds):
            for kind in kinds:
                move = hand_over(cluster.bootstrap, kind, args.megabytes)
                found[kind].append(move)
                waited = f"waited {median(move.waits):.2f} s, at most {max(move.waits):.2f} s"
                print(f"{KINDS[kind]:28} {len(move.waits)} keys moved, {waited};", end=" ")
                print(f"{move.restored} records restored; over after {move.seconds:.1f} s", flush=True)
    if {"none", "warm"} <= found.keys():
        longest = {kind: median(max(move.waits) for move in moves) for kind, moves in found.items()}
        verdict = "met" if longest["warm"] <= longest["none"] + AIM_SECONDS else "missed"
        print(f"aim: {longest['warm']:.2f} s at most {longest['none'] + AIM_SECONDS:.2f} s: {verdict}")


def main() -> int:
    """Run on a cluster of its own, or be one of the members."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="of state; records of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help=f"one of {', '.join(KINDS)}")
    for name in ("--member", "--bootstrap", "--topic", "--group"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--slots", "--fills"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--warm-seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.member is None:
        measure(args)
    else:
        die_with_parent()
        member = Member(args.bootstrap, args.topic, args.group, args.member, args.warm_seconds)
        member.run(args.slots, args.fills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
