"""What the tests of state share: stores, waiting for them, and a member in a process of its own.

As a program it does what it is told on stdin, so that a test can kill it: ``put KEY VALUE``, ``flush`` (a
commit without a transaction, up to where positions would be committed), ``transact`` (a whole transaction),
``produce`` (a transaction whose records are acknowledged, and that is never ended).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import Producer

from kpsplit import SlotId, StateStore
from kpsplit.clock import Deadline
from kpsplit.demo.endpoints import die_with_parent
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import changelog_topic

GROUP = "state-tests"
SECONDS = 180.0


def open_store(bootstrap: str, directory: Path, standbys: int = 0) -> StateStore:
    """A store of the tests' group."""
    return StateStore(directory, {"bootstrap.servers": bootstrap, "group.id": GROUP}, standbys=standbys)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = Deadline(SECONDS)
    while not condition():
        deadline.check(what)
        time.sleep(0.02)


def take(store: StateStore, slots: Iterable[SlotId]) -> None:
    """Take slots and wait until they are restored."""
    wanted = list(slots)
    store.taken(wanted)
    until(lambda: all(store.ready(slot) for slot in wanted), f"{wanted} to be restored")


def restored(store: StateStore) -> int:
    """How many changelog records the store has read for slots that it owns."""
    return int(store.stats()["counts"].get("restored", 0))


def contents(store: StateStore, slot: SlotId) -> dict[bytes, bytes]:
    """The whole state of a slot."""
    return dict(store.slot(slot).items())


def changelog_ends(bootstrap: str, group: str, slots: Iterable[SlotId]) -> dict[str, int]:
    """Return where brokers say that slots' changelogs end; what a copy says of them may be older."""
    places = {str(slot): PhysicalPartition(changelog_topic(group, slot.topic), slot.number) for slot in slots}
    found = ClusterAdmin(Connection({"bootstrap.servers": bootstrap})).end_offsets(set(places.values()))
    return {slot: found[place].offset for slot, place in places.items()}


def transactional_producer(bootstrap: str, name: str) -> Producer:
    """A producer that is ready for transactions."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    return producer


def transact(store: StateStore, slots: Iterable[SlotId], producer: Producer) -> None:
    """Commit what waits in a transaction."""
    commit = store.before_commit(slots)
    producer.begin_transaction()
    commit.write(producer, Deadline(SECONDS))
    producer.commit_transaction(SECONDS)
    commit.committed()


class Member:
    """A member in a process of its own that owns one slot."""

    def __init__(self, bootstrap: str, directory: Path, slot: SlotId) -> None:
        place = [slot.topic, str(slot.partition), str(slot.index), str(slot.slots)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, bootstrap, str(directory), *place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def tell(self, command: str) -> None:
        """Give a command and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self._answer()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"


def main(bootstrap: str, directory: str, topic: str, partition: str, index: str, slots: str) -> None:
    """Serve commands until stdin ends."""
    slot = SlotId(topic, int(partition), int(index), int(slots))
    store = open_store(bootstrap, Path(directory))
    producer = transactional_producer(bootstrap, f"member-{slot.number}-{topic}")
    take(store, [slot])
    print("done", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "put":
            store.slot(slot).put(arguments[0].encode(), arguments[1].encode())
        elif command == "flush":
            store.before_commit([slot]).flush(Deadline(SECONDS))
        elif command == "transact":
            transact(store, [slot], producer)
        else:
            producer.begin_transaction()
            store.before_commit([slot]).write(producer, Deadline(SECONDS))
            producer.flush(SECONDS)
        print("done", flush=True)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
