"""What the consumer's tests share: consumers of one group, what they handed out, and the check of it."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import ElectionType, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.coordinators import java_hash, partition_of_hash
from kpsplit.kafka.kafka_python import reassign
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.rights import GROUPS_TOPIC

FAST = {
    "session.timeout.ms": 60_000,  # nobody kills these: a busy machine must not cost them their slots
    "heartbeat.interval.ms": 500,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 300,
    "topic.metadata.refresh.interval.ms": 2000,
}

REMOTE = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None}
"""What a member needs whose slots the brokers assign (KIP-848)."""


def consumer(bootstrap: str, group: str, **more: Any) -> Consumer:
    """A consumer with short intervals; ``_`` in names stands for ``.``."""
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, **FAST, **dotted(more)})


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their real names; those of callbacks have none of their own."""
    return {
        n if n.endswith("_cb") or n == "on_commit" else n.replace("_", "."): v for n, v in settings.items()
    }


def drain(member: Consumer, count: int, seconds: float = 180.0) -> list[Message]:
    """Poll until so many records came."""
    found: list[Message] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < end, (
            f"{len(found)} of {count} records in {seconds} s; {dict(member.stats())}"
        )
        message = member.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    return found


def values(messages: Iterable[Message]) -> list[bytes]:
    """The values of records."""
    return [m.value() or b"" for m in messages]


def shared(operations: Admin, topic: str, slots: int = 16) -> PhysicalPartition:
    """Enrol a topic with enough slots for a few members; return its first partition."""
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=slots)
    return PhysicalPartition(topic, 0)


class Log:
    """What all members of a group were handed out, in the order of each member."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_key: dict[bytes, list[bytes]] = defaultdict(list)
        self.members: dict[bytes, set[str]] = defaultdict(set)
        self.owners: dict[bytes, list[str]] = defaultdict(list)
        self.count = 0

    def add(self, message: Message, member: str) -> None:
        """A member was handed out a record."""
        with self._lock:
            self.by_key[message.key() or b""].append(message.value() or b"")
            self.members[message.key() or b""].add(member)
            self.owners[message.value() or b""].append(member)
            self.count += 1

    def distinct(self) -> int:
        """How many different records were handed out."""
        with self._lock:
            return len({value for found in self.by_key.values() for value in found})

    def values(self) -> set[str]:
        """What was handed out."""
        with self._lock:
            return {value.decode() for value in self.owners}

    def duplicates(self) -> int:
        """How many times a record was handed out again."""
        with self._lock:
            times = Counter(value for found in self.by_key.values() for value in found)
        return sum(times.values()) - len(times)

    def handed_out_again(self) -> list[list[str]]:
        """Who was handed out each record that was handed out more than once, one after the other."""
        with self._lock:
            return [owners for owners in self.owners.values() if len(owners) > 1]

    def check_order(self, sent: dict[bytes, list[bytes]]) -> None:
        """Every record came, and per key the first handing out of each is in the order of sending."""
        for key, expected in sent.items():
            assert list(dict.fromkeys(self.by_key[key])) == expected, key


class Member(threading.Thread):
    """One member of a group that polls until it is told to stop."""

    def __init__(
        self, bootstrap: str, group: str, topics: list[str], log: Log, name: str, **more: Any
    ) -> None:
        super().__init__(daemon=True, name=name)
        self.consumer = consumer(bootstrap, group, **more)
        self.assigned: list[str] = []
        self.error: BaseException | None = None
        self._topics, self._log, self._over = topics, log, threading.Event()

    def run(self) -> None:
        try:
            self.consumer.subscribe(self._topics)
            while not self._over.is_set():
                message = self.consumer.poll(0.1)
                if message is None:
                    continue
                assert message.error() is None, message.error()
                self._log.add(message, self.name)
            self.consumer.close()
        except BaseException as error:  # noqa: BLE001 - told by stop()
            self.error = error

    def stop(self) -> None:
        """Close the consumer and tell what went wrong."""
        self._over.set()
        self.join(180)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()


def reading(member: Member) -> set[str]:
    """The slots that a member hands out."""
    return {slot for slot, stage in member.consumer.stats()["slots"].items() if stage == "reading"}


def wait_for(condition: Callable[[], Any], why: str, seconds: float = 180.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {why}"
        time.sleep(0.02)


def kept_in(admin: AdminClient, group: str) -> PhysicalPartition:
    """Where a group is kept: the leader of this partition coordinates it."""
    partitions = len(admin.list_topics(GROUPS_TOPIC, timeout=30).topics[GROUPS_TOPIC].partitions)
    return PhysicalPartition(GROUPS_TOPIC, partition_of_hash(java_hash(group), partitions))


def leader_of(admin: AdminClient, place: PhysicalPartition) -> int:
    """The broker that leads a partition, -1 while there is none."""
    topics = admin.list_topics(place.topic, timeout=30).topics
    return int(topics[place.topic].partitions[place.partition].leader)


def move_leader(bootstrap: str, admin: AdminClient, place: PhysicalPartition) -> None:
    """Have another replica lead a partition; its leader epoch rises."""
    replicas = admin.list_topics(place.topic, timeout=30).topics[place.topic].partitions[place.partition]
    first, *others = replicas.replicas
    reassign(Connection({"bootstrap.servers": bootstrap}), {place: [*others, first]}, Deadline(180))

    def moved() -> bool:
        asked = [TopicPartition(place.topic, place.partition)]
        admin.elect_leaders(ElectionType.PREFERRED, asked).result(180)
        return leader_of(admin, place) == others[0]

    wait_for(moved, "another leader")
