"""A member that runs and is cut off from its group's coordinator alone.

The broker that coordinates the group leads nothing else that the member reads or follows, so its brokers go
on answering. It has to stop before another member is given its slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin, Partitioner
from kpsplit.clock import Deadline, monotonic
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.storage import PortReservation
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import reassign
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.rights import GROUPS_TOPIC
from tests.fault.chaos.proxy import Network, add_listener

pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.timeout(400)]

SECONDS = 150.0
SLOTS = 4
KEYS = [b"key-%d" % number for number in range(24)]
CLASSIC = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6000,
}
REMOTE = {"group.protocol": "consumer"}
REMOTE_SESSION_MS = 26_000
"""With this protocol a member takes its session to last 20 s at least."""


@dataclass
class Reading:
    """What one member was handed out: when, of which key, which number."""

    consumer: Consumer
    seen: list[tuple[float, bytes, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Reading:
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.consumer.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append((monotonic(), message.key() or b"", int(message.value() or b"")))

    def keys(self, since: float = 0.0) -> set[bytes]:
        return {key for at, key, _ in list(self.seen) if at >= since}


def wait(what: str, done: Callable[[], bool]) -> None:
    limit = Deadline(SECONDS)
    while not done():
        limit.check(what)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture(scope="module")
def proxied(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevCluster, str]]:
    """A cluster and the addresses of the proxies before its brokers. All groups have one coordinator."""
    folder = tmp_path_factory.mktemp("cut-off") / "cluster"
    properties = {
        "group.consumer.session.timeout.ms": str(REMOTE_SESSION_MS),
        "offsets.topic.num.partitions": "1",
    }
    with PortReservation() as ports, DevCluster(3, folder, properties) as running:
        yield running, add_listener(running, folder, ports, network)


@pytest.fixture(scope="module")
def bootstrap(proxied: tuple[DevCluster, str]) -> str:
    return proxied[0].bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture(scope="module")
def topic(bootstrap: str, create_topic: Callable[[str], str]) -> str:
    """Enrolled in slots; the coordinator of groups has nothing of it, nor of kpsplit's own topics."""
    name = create_topic("orders")
    with Admin({"bootstrap.servers": bootstrap}) as operations:
        operations.initialise(lease_ms=1000)
        operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
    return name


def coordinator(admin: AdminClient) -> int:
    return admin.list_topics(GROUPS_TOPIC, timeout=10).topics[GROUPS_TOPIC].partitions[0].leader


def lead_nothing_else(admin: AdminClient, bootstrap: str, broker: int) -> None:
    """Take everything but the groups away from a broker."""
    others = [other for other in range(3) if other != broker]
    topics = admin.list_topics(timeout=10).topics
    places = [PhysicalPartition(t, p) for t in topics if t != GROUPS_TOPIC for p in topics[t].partitions]
    lists = {place: others[:: 1 if number % 2 else -1] for number, place in enumerate(places)}
    reassign(Connection({"bootstrap.servers": bootstrap}), lists, Deadline(SECONDS))

    def moved() -> bool:
        now = admin.list_topics(timeout=10).topics
        return all(
            part.leader in others and broker not in part.replicas
            for name in now
            if name != GROUPS_TOPIC
            for part in now[name].partitions.values()
        )

    wait("the leaders to move", moved)


@pytest.mark.parametrize(
    "settings",
    [pytest.param(CLASSIC, id="classic"), pytest.param(REMOTE, id="consumer")],
)
def test_a_member_cut_off_from_its_coordinator_stops_before_another_has_its_slots(
    settings: dict[str, str | int],
    network: Network,
    proxied: tuple[DevCluster, str],
    admin: AdminClient,
    topic: str,
    bootstrap: str,
) -> None:
    group = f"cut-off-{settings['group.protocol']}"
    number = 0

    def member(servers: str) -> Consumer:
        config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer(config | settings | {"auto.commit.interval.ms": 500})
        consumer.subscribe([topic])
        return consumer

    with ExitStack() as stack:
        producer = stack.enter_context(Producer({"bootstrap.servers": bootstrap}))
        written = threading.Event()

        def write() -> None:
            nonlocal number
            while not written.wait(0.02):
                for key in KEYS:
                    producer.produce(topic, b"%d" % number, key)
                number += 1
                producer.poll(0)

        writer = threading.Thread(target=write)
        writer.start()
        stack.callback(writer.join)
        stack.callback(written.set)
        other = stack.enter_context(Reading(member(bootstrap)))
        wait("the first member to read", lambda: other.keys() == set(KEYS))
        broker = coordinator(admin)
        lead_nothing_else(admin, bootstrap, broker)
        apart = stack.enter_context(Reading(member(proxied[1])))
        wait("the members to share the keys", lambda: len(apart.keys()) >= len(KEYS) // 4)
        time.sleep(2.0)  # both work; what the other one handed out of these keys was before the hand-over
        keys, cut = apart.keys(monotonic() - 1.0), monotonic()
        assert keys and not keys & other.keys(cut - 1.0)

        network.cut = frozenset({int(proxied[1].split(",")[broker].rpartition(":")[2])})
        stack.callback(lambda: setattr(network, "cut", frozenset()))
        wait("the other member to have the slots", lambda: keys <= other.keys(cut))
        taken = min(at for at, key, _ in other.seen if key in keys and at >= cut)
        last = max(at for at, *_ in apart.seen)
        print(f"taken over after {taken - cut:.1f} s; the last record {last - cut:.1f} s after the cut")
        time.sleep(3.0)
        late = [(at - taken, key, n) for at, key, n in apart.seen if at > taken]
        assert not late, f"{len(late)} records after another member had the slots"
