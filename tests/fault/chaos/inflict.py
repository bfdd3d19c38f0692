"""Does the faults of a schedule, and undoes each before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Protocol

from confluent_kafka import KafkaException

from kpsplit.clock import Deadline, monotonic
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.errors import KpsplitError
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.testing import Send
from tests.fault.chaos.brokers import Brokers
from tests.fault.chaos.faults import MOMENT, Fault, Kind
from tests.fault.chaos.processes import Processes
from tests.fault.chaos.proxy import FAIR, Network, Weather
from tests.fault.chaos.retention import Retention
from tests.fault.chaos.strangers import ENROLMENT, RETIREMENT, SideTopic, Strangers
from tests.fault.chaos.verdict import EVERYBODY, Column, Hurt, Strike, column_of

REPLICAS = 3
HEAL_SECONDS = 300.0
STEP_SECONDS = 25.0
"""How long to wait for an operation to come to the step at which a fault is to strike."""
BETWEEN_MOVES = 1.0
STOPPED_SECONDS, RUNNING_SECONDS = 0.45, 0.05
DEAD_PRODUCERS = 10_000
MOST_PARTITIONS = 6
FOREIGN_RECORDS = 300
DELAYS = (0.02, 0.4)
THROTTLED_TO = 4000
"""Bytes per second, broker and client: less than a writer sends."""


class Stoppable(Protocol):
    """A process that can be suspended."""

    name: str

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class Inflictor:
    """Does faults. ``strikes`` and ``hurts`` record what was done. For one thread."""

    def __init__(
        self,
        cluster: DevCluster,
        brokers: Brokers,
        network: Network,
        processes: Processes,
        retention: Retention,
        strangers: Strangers,
        seed: int,
    ) -> None:
        self.strikes: list[Strike] = []
        self.hurts: list[Hurt] = []
        self._cluster = cluster
        self._brokers = brokers
        self._network = network
        self._processes = processes
        self._retention = retention
        self._strangers = strangers
        self._random = Random(seed)
        self._sides = 0
        self._does: dict[Kind, Callable[[Fault], None]] = {
            Kind.BROKER_KILLED: lambda f: self._kill_broker(f, f.target % REPLICAS),
            Kind.BROKER_STOPPED: lambda f: self._stop_brokers(f, [f.target % REPLICAS]),
            Kind.TWO_BROKERS_STOPPED: lambda f: self._stop_brokers(f, [f.target % 3, (f.target + 1) % 3]),
            Kind.CONTROLLER_KILLED: lambda f: self._kill_broker(f, self._controller()),
            Kind.CONTROLLER_STOPPED: lambda f: self._stop_brokers(f, [self._controller()]),
            Kind.LEADERS_MOVED: self._move_leaders,
            Kind.BROKERS_SLOWED: self._slow_brokers,
            Kind.OPERATOR_KILLED: self._kill_operator,
            Kind.OPERATOR_STOPPED: self._stop_operator,
            Kind.WRITER_KILLED: self._kill_writer,
            Kind.WRITER_STOPPED: self._stop_writer,
            Kind.MEMBER_KILLED: self._kill_member,
            Kind.MEMBER_STOPPED: self._stop_member,
            Kind.SUSPENSIONS: self._suspend_again_and_again,
            Kind.CUT_OFF: lambda f: self._disturb(f, Weather(hold_requests=True, hold_responses=True)),
            Kind.REQUESTS_HELD: lambda f: self._disturb(f, Weather(hold_requests=True)),
            Kind.RESPONSES_HELD: lambda f: self._disturb(f, Weather(hold_responses=True)),
            Kind.DELAYED: lambda f: self._disturb(f, Weather(delay=self._random.uniform(*DELAYS))),
            Kind.RESPONSES_LOST: lambda f: self._disturb(f, Weather(lose_responses=True)),
            Kind.THROTTLED: self._throttle,
            Kind.DRAINED_REMOVED: self._remove_read,
            Kind.UNREAD_REMOVED: self._remove_unread,
            Kind.TRANSACTION_OPEN: self._hold_transaction,
            Kind.REGISTRATIONS_STOPPED: lambda f: self._stop_brokers(
                f, [self._brokers.leader_of(PRODUCERS_TOPIC, HEAL_SECONDS)]
            ),
            Kind.DEAD_PRODUCERS: self._register_dead,
            Kind.PARTITIONS_ADDED: self._add_partition,
            Kind.FOREIGN_RECORDS: self._write_foreign,
            Kind.ENROLMENT_KILLED: lambda f: self._kill_beside(f, ENROLMENT, SideTopic.kill_enrolment),
            Kind.RETIREMENT_KILLED: lambda f: self._kill_beside(f, RETIREMENT, SideTopic.kill_retirement),
        }

    @property
    def foreign(self) -> list[Send]:
        """Records of programs that know nothing of kpsplit."""
        return self._strangers.sends

    def do(self, fault: Fault) -> None:
        """Do a fault, undo it, and wait until everything is there again.

        Raises:
            DeadlineExceededError: the cluster did not recover.
        """
        self._does[fault.kind](fault)
        self._processes.mend()

    def _disturb(self, fault: Fault, weather: Weather) -> None:
        """Disturb the network of the processes that connect through the proxies."""
        self._await_step(fault)
        since = monotonic()
        self._strike(fault.kind)
        self._network.weather = weather
        time.sleep(fault.hold)
        self._network.weather = FAIR
        until = monotonic()
        hurt = self._processes.proxied_members()
        self.hurts += [Hurt(name, fault.kind, since, until) for name in hurt]

    def _throttle(self, fault: Fault) -> None:
        with self._hurting(fault):
            self._brokers.throttle(THROTTLED_TO, HEAL_SECONDS)
            time.sleep(fault.hold)
            self._brokers.throttle(None, HEAL_SECONDS)

    def _strike(self, kind: Kind) -> None:
        """Note where the operation under way stands."""
        operator = self._processes.operator
        operation = operator.current if operator is not None else None
        column = Column.REST if operation is None else column_of(operation.last_step)
        self.strikes.append(Strike(kind, column, operation))

    @contextmanager
    def _hurting(self, fault: Fault, member: str = EVERYBODY) -> Iterator[None]:
        since = monotonic()
        self._strike(fault.kind)
        try:
            yield
        finally:
            self.hurts.append(Hurt(member, fault.kind, since, monotonic()))

    def _controller(self) -> int:
        return self._brokers.active_controller(HEAL_SECONDS)

    def _kill_broker(self, fault: Fault, broker: int) -> None:
        self._await_step(fault)
        with self._hurting(fault):
            self._cluster.kill(broker)
            time.sleep(fault.hold)
            self._cluster.restart(broker, HEAL_SECONDS)
            self._brokers.await_in_sync(REPLICAS, HEAL_SECONDS)

    def _stop_brokers(self, fault: Fault, brokers: list[int]) -> None:
        self._await_step(fault)
        with self._hurting(fault):
            for broker in brokers:
                self._cluster.pause(broker)
            time.sleep(fault.hold)
            for broker in brokers:
                self._cluster.resume(broker)
            self._cluster.wait_ready(HEAL_SECONDS)
            self._brokers.await_in_sync(REPLICAS, HEAL_SECONDS)

    def _slow_brokers(self, fault: Fault) -> None:
        """Let the brokers run for a tenth of the time; each wait for one of them takes that much longer."""
        with self._hurting(fault):
            deadline = Deadline(fault.hold)
            while not deadline.expired():
                for broker in range(REPLICAS):
                    self._cluster.pause(broker)
                deadline.pause(STOPPED_SECONDS)
                for broker in range(REPLICAS):
                    self._cluster.resume(broker)
                deadline.pause(RUNNING_SECONDS)
            self._cluster.wait_ready(HEAL_SECONDS)
            self._brokers.await_in_sync(REPLICAS, HEAL_SECONDS)

    def _move_leaders(self, fault: Fault) -> None:
        with self._hurting(fault):
            deadline = Deadline(fault.hold)
            while not deadline.expired():
                self._brokers.shuffle_leaders(self._random)
                deadline.pause(BETWEEN_MOVES)
            self._brokers.await_in_sync(REPLICAS, HEAL_SECONDS)

    def _kill_operator(self, fault: Fault) -> None:
        """Have the operator die after a step, or kill it where it stands if that step does not come."""
        operator = self._processes.operator
        if operator is None:
            return
        operator.tell(f"kill {fault.step}")
        self._until(lambda: not operator.alive)
        operator.kill()
        self._strike(fault.kind)
        time.sleep(fault.hold)

    def _stop_operator(self, fault: Fault) -> None:
        operator = self._processes.operator
        if operator is None:
            return
        operator.tell(f"stop {fault.step}")
        self._until(operator.stopped_or_ended)
        operator.tell("disarm")
        operator.suspend()
        self._strike(fault.kind)
        time.sleep(fault.hold)
        operator.resume()

    def _kill_writer(self, fault: Fault) -> None:
        writers = self._processes.writers
        self._strike(fault.kind)
        writers[fault.target % len(writers)].kill()
        time.sleep(fault.hold)

    def _stop_writer(self, fault: Fault) -> None:
        writers = self._processes.writers
        self._await_step(fault)
        self._strike(fault.kind)
        self._suspend(writers[fault.target % len(writers)], fault.hold)

    def _kill_member(self, fault: Fault) -> None:
        members = self._processes.members
        member = members[fault.target % len(members)]
        with self._hurting(fault, member.name):
            member.kill()
            time.sleep(fault.hold)

    def _stop_member(self, fault: Fault) -> None:
        members = self._processes.members
        member = members[fault.target % len(members)]
        self._await_step(fault)
        with self._hurting(fault, member.name):
            self._suspend(member, fault.hold)

    def _remove_read(self, fault: Fault) -> None:
        self._await_step(fault)
        self._strike(fault.kind)
        self._retention.remove_read(fault.target)
        time.sleep(fault.hold)

    def _remove_unread(self, fault: Fault) -> None:
        """Remove while the members are suspended, so that there is something that they have not read."""
        members = list(self._processes.members)
        for member in members:
            member.suspend()
        try:
            self._await_step(fault)
            with self._hurting(fault):
                time.sleep(fault.hold)
                self._retention.remove_unread(fault.target)
        finally:
            for member in members:
                member.resume()

    def _hold_transaction(self, fault: Fault) -> None:
        self._await_step(fault)
        with self._hurting(fault), self._strangers.open_transaction():
            time.sleep(fault.hold)

    def _register_dead(self, fault: Fault) -> None:
        self._strike(fault.kind)
        self._strangers.register_dead(DEAD_PRODUCERS)
        time.sleep(fault.hold)

    def _add_partition(self, fault: Fault) -> None:
        """Add a partition; operators that are started from now on work on it too."""
        if self._processes.job.partitions >= MOST_PARTITIONS:
            return
        with self._hurting(fault):
            self._processes.grow(self._strangers.add_partition(self._processes.job.partitions))
            time.sleep(fault.hold)

    def _write_foreign(self, fault: Fault) -> None:
        self._await_step(fault)
        self._strike(fault.kind)
        self._strangers.write_foreign(FOREIGN_RECORDS, self._processes.job.partitions)
        time.sleep(fault.hold)

    def _kill_beside(
        self, fault: Fault, steps: Sequence[str], kill: Callable[[SideTopic, str], None]
    ) -> None:
        """Kill an operator of another topic; what goes wrong there is a trouble of the run."""
        self._strike(fault.kind)
        self._sides += 1
        side = self._strangers.side_topic(f"{self._processes.job.topic}-side-{self._sides}")
        try:
            kill(side, steps[fault.target % len(steps)])
        except (AssertionError, KpsplitError, KafkaException) as error:
            self._processes.troubles.append(f"{fault.kind}: {error}")

    def _suspend_again_and_again(self, fault: Fault) -> None:
        """Suspend one after the other for a moment, without looking at what the operator does."""
        for _ in range(fault.times):
            hold = min(fault.hold, self._random.uniform(*MOMENT))
            target = self._random.randrange(1 << 16)
            if self._random.random() < 0.5:
                self._stop_writer(Fault(Kind.WRITER_STOPPED, hold, 0.0, target))
            else:
                self._stop_member(Fault(Kind.MEMBER_STOPPED, hold, 0.0, target))

    def _suspend(self, process: Stoppable, seconds: float) -> None:
        process.suspend()
        time.sleep(seconds)
        process.resume()

    def _await_step(self, fault: Fault) -> None:
        """Wait until an operation has done a step."""
        if fault.step is not None:
            self._until(lambda: self._last_step() == fault.step)

    def _last_step(self) -> str | None:
        operator = self._processes.operator
        return operator.current.last_step if operator is not None and operator.current is not None else None

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that may not come."""
        deadline = Deadline(STEP_SECONDS)
        while not condition() and not deadline.expired():
            deadline.pause(0.005)
