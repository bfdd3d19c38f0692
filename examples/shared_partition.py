"""Three consumers share one hot partition while it is split, split again and merged under them.

Starts an embedded cluster, a producer that writes to the single partition of a topic, and three consumer
processes of one group. Meanwhile: a split into 4, a split of one of the phantoms, one consumer killed
(SIGKILL), one suspended until the group has gone on without it and then resumed, a new one joining, and a
merge of everything. Each consumer writes down what it worked on; at the end all of it is judged: was every
record worked on, was the order of each key kept, and which records came twice, and why.

    python examples/shared_partition.py [--bootstrap-server HOST:PORT] [--rate RECORDS_PER_SECOND]

The last line is the verdict; exit code 0 if all is well, 3 if not.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Admin, Consumer, KeyRange, Partitioner, PhysicalPartition, Producer
from kpsplit.devcluster import DevCluster

KEYS = 400
SLOTS = 16
SESSION_MS = 6000
MAX_PAUSE_MS = 10_000
FLUSH_SECONDS = 60
PORTION_SECONDS = 0.25
"""Between portions: given more, librdkafka polls without a pause until these are acknowledged."""


# -- a consumer process ------------------------------------------------------------------------------


def consume(bootstrap: str, group: str, topic: str, journal: Path) -> None:
    """Work on records until SIGTERM, and write each one down: what a real application would do with it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 1000,
            "auto.commit.interval.ms": 2_000,
        }
    )
    going = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: going.set())
    consumer.subscribe([topic])
    with journal.open("ab", buffering=0) as file:
        while not going.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                file.write(b"%d %s %s\n" % (time.monotonic_ns(), message.key(), message.value()))
    consumer.close()


@dataclass
class Member:
    """A consumer process and its journal."""

    name: str
    journal: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, folder: Path, bootstrap: str, group: str, topic: str) -> Member:
        journal = folder / name
        command = [sys.executable, __file__, "--member", str(journal)]
        where = ["--bootstrap-server", bootstrap, "--group", group, "--topic", topic]
        return cls(name, journal, subprocess.Popen([*command, *where]))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def worked_on(self) -> int:
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0


# -- the judge ---------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What became of the records."""

    sent: int
    worked_on: int = 0
    missing: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    redelivered: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        return not (self.missing or self.out_of_order or self.unexplained)

    def __str__(self) -> str:
        twice = " ".join(f"redelivered_{why}={n}" for why, n in sorted(self.redelivered.items()) if n)
        return (
            f"{'PASS' if self.good else 'FAIL'} sent={self.sent} worked_on={self.worked_on} "
            f"missing={self.missing} out_of_order={self.out_of_order} "
            f"unexplained_duplicates={self.unexplained} {twice}".rstrip()
        )


def judge(journals: dict[str, bytes], sent: dict[bytes, int], victims: dict[str, str]) -> Verdict:
    """Look at all journals in the order of time.

    ``sent`` says how many records each key got, numbered from 0; ``victims`` names the members that were
    killed or suspended: only what they had in hand may be worked on twice.
    """
    verdict = Verdict(sum(sent.values()))
    first_by: dict[tuple[bytes, int], str] = {}
    latest: dict[bytes, int] = {}
    for _, member, key, number in sorted(
        entry for name in journals for entry in entries(name, journals[name])
    ):
        verdict.shares[member] += 1
        first = first_by.setdefault((key, number), member)
        before = latest.get(key, -1)
        if number <= before:
            why = victims.get(first) or victims.get(member)
            verdict.unexplained += why is None
            verdict.redelivered[why or "?"] += why is not None
            continue
        verdict.worked_on += 1
        verdict.out_of_order += number != before + 1
        latest[key] = number
    verdict.missing = verdict.sent - len(first_by)
    return verdict


def entries(member: str, journal: bytes) -> Iterator[tuple[int, str, bytes, int]]:
    """Yield time, member, key and number of each record; a torn last line (of a killed one) is left out."""
    whole, _, _torn = journal.rpartition(b"\n")
    for line in whole.splitlines():
        at, key, number = line.split(b" ")
        yield int(at), member, key, int(number)


# -- the play ----------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes numbered records of many keys at a steady rate."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.sent: dict[bytes, int] = {}
        self._config = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        self._topic = topic
        self._rate = rate
        self._ended = threading.Event()

    def run(self) -> None:
        numbers = count()
        with Producer(self._config) as producer:
            while not self._ended.wait(PORTION_SECONDS):
                for number in islice(numbers, int(self._rate * PORTION_SECONDS)):
                    key = b"customer-%d" % (number % KEYS)
                    nth = self.sent.get(key, 0)
                    producer.produce(self._topic, b"%d" % nth, key)
                    self.sent[key] = nth + 1
                producer.poll(0)

    def end(self) -> None:
        """Write no more; what was written is delivered, or the wait for it is given up."""
        self._ended.set()
        self.join(FLUSH_SECONDS)


def await_true(what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"FAIL waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


class Play:
    """What happens to the group, in order. Members are addressed by their names."""

    def __init__(self, bootstrap: str, folder: Path, rate: int) -> None:
        self.topic = f"hot-{time.time_ns()}"
        self.partition = PhysicalPartition(self.topic, 0)
        self.group = f"{self.topic}-workers"
        self.members: dict[str, Member] = {}
        self.victims: dict[str, str] = {}
        self._bootstrap = bootstrap
        self._folder = folder
        self._admin = Admin({"bootstrap.servers": bootstrap})
        self.writer = Writer(bootstrap, self.topic, rate)

    def run(self) -> Verdict:
        self._prepare()
        self.writer.start()
        for name in ("first", "second", "third"):
            self._join(name)
        self._until_all_work("three members share one partition")
        self._split(4)
        self._until_all_work("it is split into 4")
        self._split_a_phantom()
        self._until_all_work("a phantom is split again")
        self._kill("first")
        self._until_all_work("one was killed")
        self._suspend("second")
        self._join("fourth")
        self._until_all_work("one was suspended and came back, one joined")
        self._merge()
        self._until_all_work("everything is merged")
        self.writer.end()
        return self._end()

    def close(self) -> None:
        """End what is still running, whatever happened: the writer too, or it writes on for ever."""
        if self.writer.is_alive():
            self.writer.end()
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        self._admin.close()

    def _prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(self.topic, 1, 3)])[self.topic].result()
        self._admin.initialise()
        self._admin.enrol(self.topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)

    def _join(self, name: str) -> None:
        self.members[name] = Member.start(name, self._folder, self._bootstrap, self.group, self.topic)

    def _until_all_work(self, what: str) -> None:
        """Wait until every living member has worked on something new."""
        living = [m for m in self.members.values() if m.process.poll() is None]
        before = {m.name: m.worked_on() for m in living}
        await_true(what, lambda: all(m.worked_on() > before[m.name] + 100 for m in living))
        say(f"{what}: {', '.join(f'{m.name} {m.worked_on():,}' for m in living)} records")

    def _split(self, ranges: int, of: KeyRange | None = None) -> None:
        self._admin.split(self.partition, ranges, of=of, max_pause_ms=MAX_PAUSE_MS, force=True)

    def _split_a_phantom(self) -> None:
        layout = self._admin.lineage(self.partition).open_segments()
        self._split(2, layout[1].range)

    def _merge(self) -> None:
        self._admin.merge(self.partition, max_pause_ms=MAX_PAUSE_MS, force=True)

    def _kill(self, name: str) -> None:
        member = self.members[name]
        before = member.worked_on()  # something that is not committed yet, or nothing would come again
        await_true(f"{name} to work", lambda: member.worked_on() > before)
        self.victims[name] = "after_the_kill"
        self.members[name].signal(signal.SIGKILL)
        self.members[name].process.wait()

    def _suspend(self, name: str) -> None:
        """Stop a member until the others have taken over what it owned, then let it go on."""
        self.victims[name] = "after_the_suspension"
        self.members[name].signal(signal.SIGSTOP)
        time.sleep(SESSION_MS / 1000 + 2)
        self.members[name].signal(signal.SIGCONT)

    def _end(self) -> Verdict:
        """Let the members finish, end them, and judge."""
        wanted = sum(self.writer.sent.values())
        await_true("everything to be worked on", lambda: self._enough(wanted))
        for member in self.members.values():
            if member.process.poll() is None:
                member.signal(signal.SIGTERM)
        for member in self.members.values():
            member.process.wait(30)
        return self._verdict()

    def _enough(self, wanted: int) -> bool:
        """Tell whether so many records were worked on; to count lines first costs less than to judge."""
        lines = sum(member.worked_on() for member in self.members.values())
        return lines >= wanted and self._verdict().worked_on >= wanted

    def _verdict(self) -> Verdict:
        journals = {m.name: m.journal.read_bytes() for m in self.members.values()}
        return judge(journals, self.writer.sent, self.victims)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


@contextmanager
def brokers(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    say("starting three brokers")
    with DevCluster(brokers=3) as cluster:
        yield cluster.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--rate", type=int, default=1500)
    parser.add_argument("--member", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        consume(options.bootstrap_server, options.group, options.topic, options.member)
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kpsplit-example-")))
        play = Play(stack.enter_context(brokers(options.bootstrap_server)), folder, options.rate)
        stack.callback(play.close)
        verdict = play.run()
    print(verdict)
    return 0 if verdict.good else 3


if __name__ == "__main__":
    sys.exit(main())
