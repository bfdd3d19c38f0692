"""One simulated cluster with its processes: one logical partition, producers, operators, a consumer group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import Stamp
from kpsplit.testing.history import SendOutcome
from tests.sim.logs import PARENT, Brokers, ControlLog, ProducersTopic, RefusedError
from tests.sim.members import Coordinator, OffsetLog, SimMember
from tests.sim.operators import Operator
from tests.sim.oracle import FOREIGN, Oracle, Sent
from tests.sim.processes import Timeline
from tests.sim.producers import ENROLMENT, SimLookup, SimProducer

KEYS = sorted((b"a", b"b", b"c", b"d", b"e", b"f"), key=key_hash)
"""Spread over the key space."""
RATES = (1.0, 0.98, 1.02, 0.99)
"""Of the clocks of processes: they may differ, by less than ``LEASE_MARGIN`` allows for."""
PRODUCERS, MEMBERS = 2, 2


class World:
    """Everything there is. ``late``: what is in the network and may arrive at any time, or never."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.brokers = Brokers()
        self.control = ControlLog(PartitionState.unsplit(PARENT, "id-of-t"), ENROLMENT)
        self.producers_topic = ProducersTopic()
        self.offsets = OffsetLog()
        self.coordinator = Coordinator()
        self.late: list[tuple[str, Callable[[], object]]] = []
        self.lookups: list[SimLookup] = []
        self.operators: list[Operator] = []
        self.oracle = Oracle(self)
        self.numbers = 0
        self.instances = 0
        self.attempts = 0
        self.counts: dict[str, int] = {}
        self.producers = [self.new_producer(f"p{i}") for i in range(PRODUCERS)]
        self.members = [SimMember(self, f"m{i}") for i in range(MEMBERS)]
        self.joined = MEMBERS
        for slot in self.coordinator.slots:
            self.coordinator.assign([slot], self.members[slot.index % MEMBERS].name)

    def warm_up(self) -> None:
        """Let the first producers register and get a lease, and the first members begin to read."""
        for producer in self.producers:
            self.send(producer, KEYS[0])
            producer.turn()
            producer.turn()
        for member in self.members:
            member.heartbeat()
            for slot in self.coordinator.slots:
                member.start(slot)
                member.start(slot)

    def new_producer(self, name: str) -> SimProducer:
        """Start a producer process."""
        self.instances += 1
        rate = RATES[self.instances % len(RATES)]
        return SimProducer(self, name, self.instances, rate)

    def new_operator(self, kind: str, work: Callable[[Operator], Any]) -> Operator:
        """Start an operator process."""
        self.attempts += 1
        operator = Operator(self, f"{kind}{self.attempts}", RATES[self.attempts % len(RATES)], work)
        self.operators.append(operator)
        return operator

    def send(self, producer: SimProducer, key: bytes | None) -> bytes:
        """Let an application send a record."""
        self.numbers += 1
        id_ = f"{producer.name}.{self.numbers}".encode()
        self.oracle.sent(Sent(id_, f"{producer.name}#{producer.instance}", key, self.numbers))
        producer.produce(id_, key)
        return id_

    def send_foreign(self, key: bytes | None) -> int | None:
        """Let a writer that does not use kpsplit send a record to the parent: in turn its own, and a copy."""
        self.numbers += 1
        id_ = f"x.{self.numbers}".encode()
        send = Sent(id_, FOREIGN, key, self.numbers)
        self.oracle.sent(send)
        try:
            stamp = self._copied_stamp() if self.numbers % 2 else None
            send.offset = self.brokers.append(PARENT, id_, key, self.timeline.now, stamp)
        except RefusedError:
            send.outcome = SendOutcome.FAILED
            return None
        send.outcome = SendOutcome.OK
        return send.offset

    def _copied_stamp(self) -> Stamp | None:
        """Return the stamp of the newest record of a sub-topic; of another topic where there is none yet."""
        entries = (e for p, log in self.brokers.logs.items() if p != PARENT for e in log.entries if e.stamp)
        newest = max(entries, key=lambda e: e.at, default=None)
        return Stamp(9, 9, self.numbers, 9) if newest is None else newest.stamp

    def count(self, what: str) -> None:
        """Count something worth knowing about a run."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # What the product's topic look-up asks an admin client for.

    def describe_topics(self, _topics: object, request_timeout: float = 0.0) -> dict[str, Future[Any]]:
        """Return the description of the one topic that applications name."""
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(partitions=[0]))
        return {PARENT.topic: answer}


class SimOperationLog:
    """Stands for ``OperationLog`` in the product's takeover: an operator process is the connection."""

    def __new__(cls, connection: Operator, parent: object, queue: object = None) -> Operator:  # type: ignore[misc]
        """Return the ports of the process that takes over."""
        return connection
