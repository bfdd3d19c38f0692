"""How long a partition stays fenced when its operator dies behind CUT, beside many producers on slow brokers.

    python benchmarks/takeover.py [--producers 50] [--max-pause 30] [--running 0.05]

On an embedded cluster of three brokers an operator is killed right after it has appended its markers. From
then on all brokers are suspended and woken in turn, so that they run for ``--running`` seconds of each half
second, as in the mix "slow" of the chaos runs. Every producer holds its records until somebody has rolled the
attempt back. Printed: from the sight of the fence until the first of them, and each of them, has a record
delivered that it accepted in the fence; what one transaction took meanwhile; how many claims were announced.
The promise (protocol, section 5.3): max-pause, 5 s, and one transaction.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Admin, PhysicalPartition, Producer, StepDone
from kpsplit.devcluster import DevCluster
from kpsplit.errors import RecordError
from kpsplit.splitter.records.control import Partitioner, claim_key, decode_claim
from kpsplit.splitter.records.keys import CONTROL_TOPIC, control_partition

TOPIC, SCRATCH = "orders", "scratch"
PARENT = PhysicalPartition(TOPIC, 0)
PROCESSES, LIMIT, TURN = 5, 300.0, 0.5


def write(bootstrap: str, name: str, count: int) -> None:
    """Be one process of producers: print who has delivered what was accepted when, until killed."""
    producers = [Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) for _ in range(count)]

    def report(number: int, accepted: float) -> None:
        print(f"{name}-{number} {accepted} {time.monotonic()}", flush=True)

    while True:
        for number, producer in enumerate(producers):
            now = time.monotonic()
            producer.produce(
                TOPIC, b"v", f"{name}-{number}", on_delivery=lambda e, _, n=number, a=now: e or report(n, a)
            )
            producer.poll(0)
        for _ in range(20):
            for producer in producers:
                producer.poll(0)
            time.sleep(0.05)


def operate(bootstrap: str, max_pause: float) -> None:
    """Be an operator that is killed right after CUT."""

    def observe(step: StepDone) -> None:
        if step.name == "Fence":
            print(time.monotonic(), flush=True)
        if step.name == "AppendMarkers":
            os.kill(os.getpid(), signal.SIGKILL)

    with Admin({"bootstrap.servers": bootstrap}, 120.0) as operations:
        plan = operations.plan_split(PARENT, 4, even=True)
        operations.run(plan, max_pause_ms=int(max_pause * 1000), observer=observe, force=True)


class Slow:
    """Lets the brokers run for a part of the time, and measures transactions of its own."""

    def __init__(self, cluster: DevCluster, running: float) -> None:
        self._cluster, self._running = cluster, running
        self._over = threading.Event()
        self.transactions: list[float] = []
        self._threads = [threading.Thread(target=f) for f in (self._slow, self._commit)]

    def __enter__(self) -> Slow:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End: the brokers run again."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _slow(self) -> None:
        while not self._over.is_set():
            for broker in range(3):
                self._cluster.pause(broker)
            self._over.wait(TURN - self._running)
            for broker in range(3):
                self._cluster.resume(broker)
            self._over.wait(self._running)

    def _commit(self) -> None:
        """Take an id and commit one record, again and again: what a claim and its record are made of."""
        while not self._over.is_set():
            producer = PlainProducer(
                {"bootstrap.servers": self._cluster.bootstrap, "transactional.id": "measured"}
            )
            began = time.monotonic()
            try:
                producer.init_transactions(60)
                producer.begin_transaction()
                producer.produce(SCRATCH, b"v")
                producer.commit_transaction(60)
            except KafkaException as error:
                print(f"a measured transaction failed: {error}", flush=True)
            else:
                self.transactions.append(time.monotonic() - began)


class Writers:
    """All processes of producers; when each producer had what it accepted behind the fence delivered."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.fenced_at: float | None = None
        self.delivered: dict[str, float] = {}
        self.seen: set[str] = set()
        for process in processes:
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            name, accepted, at = line.split()
            self.seen.add(name)
            if self.fenced_at is not None and float(accepted) > self.fenced_at + 1.0:
                self.delivered.setdefault(name, float(at) - self.fenced_at)


def announced(bootstrap: str) -> int:
    """Return how many claims of the fenced revision are announced in the control topic."""
    place = TopicPartition(CONTROL_TOPIC, control_partition(PARENT), 0)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    reader.assign([place])
    revisions = []
    while (message := reader.poll(30)) is not None and message.error() is None:
        if message.key() == claim_key(PARENT) and message.value() is not None:
            try:
                revisions.append(decode_claim(message.value()).revision)
            except RecordError:
                continue
    reader.close()
    return revisions.count(2)


def measure(cluster: DevCluster, args: argparse.Namespace, stack: ExitStack) -> None:
    """Run and print."""
    bootstrap = cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 3), NewTopic(SCRATCH, 1, 3)]).values():
        future.result(30)
    with Admin({"bootstrap.servers": bootstrap}, 120.0) as operations:
        operations.initialise()
        operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=4)
    each = args.producers // PROCESSES
    me = [sys.executable, __file__, "--bootstrap", bootstrap, "--max-pause", str(args.max_pause)]
    processes = []
    for number in range(PROCESSES):
        command = [*me, "--producers", str(each), "--writer", f"w{number}"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(processes[-1].wait)
        stack.callback(processes[-1].kill)
    writers = Writers(processes)
    while len(writers.seen) < each * PROCESSES:
        time.sleep(0.5)
    print(f"{len(writers.seen)} producers write", flush=True)
    operator = subprocess.run([*me, "--operator"], stdout=subprocess.PIPE, text=True, check=False)
    writers.fenced_at = float(operator.stdout.split()[0])
    with Slow(cluster, args.running) as slow:
        while len(writers.delivered) < each * PROCESSES and time.monotonic() < writers.fenced_at + LIMIT:
            time.sleep(0.1)
    found = sorted(writers.delivered.values())
    print(f"transactions: {', '.join(f'{t:.1f}' for t in slow.transactions)} s")
    print(f"max-pause {args.max_pause:.0f} s; {len(found)} of {each * PROCESSES} producers delivered:")
    if found:
        half = found[len(found) // 2]
        print(f"the first after {found[0]:.1f} s, half of them {half:.1f} s, the last {found[-1]:.1f} s")
    print(f"{announced(bootstrap)} claims of the fenced partition were announced")


def main() -> int:
    """Run on a cluster of its own, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--producers", type=int, default=50)
    parser.add_argument("--max-pause", type=float, default=30.0, help="seconds")
    parser.add_argument("--running", type=float, default=0.05, help="of each half second")
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--writer", help=argparse.SUPPRESS)
    parser.add_argument("--operator", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.writer:
        write(args.bootstrap, args.writer, args.producers)
    elif args.operator:
        operate(args.bootstrap, args.max_pause)
    else:
        with ExitStack() as stack, DevCluster(brokers=3) as cluster:
            measure(cluster, args, stack)
    return 0


if __name__ == "__main__":
    sys.exit(main())
