"""Producers: the real send states and the real duties of the library's thread, over a simulated librdkafka.

The client has a queue per partition; acknowledgements come, come late or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import KafkaError, Message

from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.producer.background import TopicTask
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.fence_task import FenceTask
from kpsplit.producer.lease import ControlFeed, LeaseTask, Registration
from kpsplit.producer.lookup import Search
from kpsplit.producer.messages import PlainProducer
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.sending import PassThroughSender, StampedSender, make_produce
from kpsplit.producer.state import ProducerState, SendState, TopicRoute, certificates
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner, Settings, encode_enrolment
from kpsplit.splitter.records.data import Stamp, note_own
from kpsplit.splitter.records.keys import enrolment_key
from kpsplit.splitter.records.producers import Entry, decode_entry
from kpsplit.testing.history import SendOutcome
from tests.sim.logs import PARENT, RefusedError
from tests.sim.operators import LEASE_SECONDS
from tests.sim.processes import ProcessClock

if TYPE_CHECKING:
    from tests.sim.world import World


# -- librdkafka ------------------------------------------------------------------------------------


_SEALED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
_GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
_TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)


@dataclass(slots=True)
class InFlight:
    """A record inside the client. ``offset``: where the broker wrote it, None while it did not.

    ``implied``: the acknowledgement of a later record said that it is written, and not where.
    """

    place: PhysicalPartition
    id: bytes
    key: bytes | None
    report: Callable[[Any, Any], None]
    stamp: Stamp | None
    offset: int | None = None
    implied: bool = False
    taken_at: float = 0.0


class Client:
    """A librdkafka producer. Order is kept per partition, as with idempotence; reports may change theirs."""

    def __init__(self, world: World, clock: ProcessClock) -> None:
        self._world = world
        self._clock = clock
        self.queues: dict[PhysicalPartition, deque[InFlight]] = {}
        self._reports: deque[tuple[InFlight, KafkaError | None]] = deque()

    def __len__(self) -> int:
        """Return how many records have no report yet, as librdkafka's len() does."""
        return sum(map(len, self.queues.values())) + len(self._reports)

    def send(
        self, topic: str, value: bytes, key: bytes | None, partition: int, report: Any, _: Any, __: int,
        headers: Any,
    ) -> None:  # fmt: skip
        """Take a record, as produce() by position."""
        place = PhysicalPartition(topic, max(partition, 0))  # its own partitioner has no choice
        pairs = dict(headers) if headers else {}
        stamp = Stamp.decode(pairs["kps"]) if "kps" in pairs else None
        self.queues.setdefault(place, deque()).append(
            InFlight(place, value, key, report, stamp, taken_at=self._clock.now())
        )

    def poll(self, _: float) -> int:
        """Call back for every report that has come."""
        count = 0
        while self._reports:
            item, error = self._reports.popleft()
            item.report(error, _message(item, error))
            count += 1
        return count

    # -- what the brokers and the network do -------------------------------------------------------

    def places(self) -> list[PhysicalPartition]:
        """Return where records are on their way to."""
        return [place for place, queue in self.queues.items() if queue]

    def write(self, place: PhysicalPartition) -> str | None:
        """The broker writes the next record, or refuses it."""
        queue = self.queues.get(place) or deque()
        item = next((i for i in queue if i.offset is None), None)
        if item is None:
            return None
        brokers = self._world.brokers
        try:
            item.offset = brokers.append(place, item.id, item.key, self._world.timeline.now, item.stamp)
        except RefusedError as refused:
            if item is not queue[0]:
                return None
            self._over(place, _GONE if refused.gone else _SEALED)
            return f"{place} rejects {_named(item)}"
        return f"{place} writes {_named(item)} at {item.offset}"

    def acknowledge(self, place: PhysicalPartition, *, latest: bool = False) -> str | None:
        """The acknowledgement of the first record comes, or ``latest``: of the last one that is written.

        The client then knows that those before it are written as well, and reports them later.
        """
        queue = self.queues.get(place)
        if not queue or queue[0].offset is None:
            return None
        written = sum(i.offset is not None and not i.implied for i in queue) if latest else 0
        if written < 2:
            item = self._over(place, None)
            return f"{place} acknowledges {_named(item)} {_where(item)}"
        passed = [queue.popleft() for _ in range(sum(i.offset is not None for i in queue) - 1)]
        item = self._over(place, None)
        for one in passed:
            one.implied = True
        queue.extendleft(reversed(passed))
        return f"{place} acknowledges {_named(item)} at {item.offset}, and with it {len(passed)} before it"

    def fail(self, place: PhysicalPartition, how: str) -> str | None:
        """The first record times out: its acknowledgement was lost, it was never sent, or comes late.

        ``how`` = ``rejected``: the acknowledgement was lost, and the retry meets a seal.
        """
        queue = self.queues.get(place)
        if not queue or queue[0].implied:
            return None
        item, brokers = queue[0], self._world.brokers
        if how == "rejected":
            gone = place.topic not in brokers.topics
            if item.offset is None or not (gone or place.topic in brokers.sealed):
                return None
            self._over(place, _GONE if gone else _SEALED)
            return f"{place} rejects {_named(item)}, which it wrote at {item.offset}"
        self._over(place, _TIMED_OUT)
        self._world.oracle.given_up.add(item.id)
        if item.offset is None and how == "late":
            self._world.late.append((f"record {_named(item)}", self._late(item)))
        return f"{place}: {_named(item)} times out{'' if item.offset is None else ', but was written'}"

    def expire(self) -> None:
        """Give up what was taken longer ago than the message timeout; it may arrive all the same."""
        for place in self.places():
            queue, before = self.queues[place], self._clock.now() - MESSAGE_TIMEOUT
            while queue and queue[0].taken_at <= before:
                self.fail(place, "late") or self.acknowledge(place)

    def die(self) -> None:
        """The process is gone: what was in the network may still arrive, in order."""
        for queue in self.queues.values():
            sent = deque([i for i in queue if i.offset is None][:2])
            self._world.oracle.overlooked |= {i.id for i in queue if i.stamp is None}
            for item in list(sent):
                self._world.late.append((f"a record of the dead {_named(item)}", self._next_late(sent)))

    def _late(self, item: InFlight) -> Callable[[], None]:
        brokers, timeline = self._world.brokers, self._world.timeline

        def land() -> None:
            try:
                brokers.append(item.place, item.id, item.key, timeline.now, item.stamp)
            except RefusedError:
                return

        return land

    def _next_late(self, sent: deque[InFlight]) -> Callable[[], None]:
        def land() -> None:
            self._late(sent.popleft())()

        return land

    def _over(self, place: PhysicalPartition, error: KafkaError | None) -> InFlight:
        item = self.queues[place].popleft()
        self._reports.append((item, error))
        return item


def _message(item: InFlight, error: KafkaError | None) -> Message:
    return Message(
        topic=item.place.topic,
        partition=item.place.partition,
        offset=-1 if item.offset is None or item.implied else item.offset,
        key=item.key,
        value=item.id,
        timestamp=(1, 1),
        error=error,
    )


def _named(item: InFlight) -> str:
    return item.id.decode()


def _where(item: InFlight) -> str:
    return "without an offset" if item.implied else f"at {item.offset}"


MESSAGE_TIMEOUT = 40.0
ENROLMENT = Enrolment(PARENT.topic, "id-of-t", Partitioner.CONSISTENT_RANDOM, settled=True, slots=2)
DUTIES = (
    "watch_time", "take_reports", "answer", "part", "renew", "route_new_topics", "acknowledge", "release",
    "look_up",
)  # fmt: skip
"""What the library's thread does in one turn, after it followed the control topic, in the product's order."""


class SimTail:
    """The control topic as one process has read it.

    ``length``: how many of its records; ``prompt``: questions for its end are answered at once.
    """

    def __init__(self, world: World) -> None:
        self._control = world.control
        self._timeline = world.timeline
        self.length = 0
        self.view = ControlView()
        self.view.settings = Settings(int(LEASE_SECONDS * 1000))
        self.view.initialised = True
        self.view.enrolments[PARENT.topic] = ENROLMENT
        self.view.take_state(self._control.states[0])
        self.changed: set[PhysicalPartition | str] = set()
        self.request: SimEndRequest | None = None
        self.prompt = False

    def read(self, length: int) -> None:
        """Read on to where that many records were read."""
        if length > self.length:
            self.length = length
            enrolment = self._control.enrolments[length]
            if enrolment != self.view.recorded(PARENT.topic):
                self.view.fold(enrolment_key(PARENT.topic), encode_enrolment(enrolment))
                self.changed.add(PARENT.topic)
            self.view.take_state(self._control.states[length])
            self.changed.add(PARENT)

    def progress(self) -> int:
        """Return how far the topic was read."""
        return self.length

    def reached(self, ends: dict[int, int]) -> bool:
        """Return whether everything before an end was read."""
        return self.length >= ends[0]

    def ask_end(self) -> SimEndRequest:
        """Ask for the end."""
        self.request = SimEndRequest(self._timeline.monotonic())
        if self.prompt:
            self.request.ends = {0: self._control.stable()}
        return self.request


class SimEndRequest:
    """A question for the control topic's end, answered when the simulation says so."""

    def __init__(self, asked: float) -> None:
        self.asked = asked
        self.ends: dict[int, int] | None = None
        self.lost = False

    def done(self) -> bool:
        """Return whether the answer is there."""
        return self.lost or self.ends is not None

    def result(self) -> dict[int, int]:
        """Return the answer."""
        if self.ends is None:
            raise UnreachableError("no answer")
        return self.ends


class SimRegistrationWriter:
    """Writes to the producers topic; what it could not tell the outcome of may still land, in order.

    ``cut_off``: every write is lost.
    """

    def __init__(self, world: World) -> None:
        self._topic = world.producers_topic
        self.fault = ""
        self.cut_off = False
        self.late: list[Entry] = []

    def write_all(
        self, topic: str, records: Iterable[tuple[bytes, bytes | None]], deadline: Deadline
    ) -> list[int]:
        """Write records; all or none of them arrive."""
        decoded = [decode_entry(key, value) for key, value in records]
        fault, self.fault = "lost" if self.cut_off else self.fault, ""
        if not fault and self._topic.frozen:
            fault = "late"
        if fault == "late":
            self.late += decoded
        elif fault != "lost":
            self.land()
            for record in decoded:
                self._topic.append(record)
        if fault:
            raise UnknownOutcomeError("registration: no acknowledgement")
        return [self._topic.length]

    def land(self) -> bool:
        """Let what is on its way arrive."""
        if not self.late or self._topic.frozen:
            return False
        for record in self.late:
            self._topic.append(record)
        self.late.clear()
        return True


class SimLookup:
    """Stands for ``Lookup``: the log is searched when the simulation lets it."""

    world: World

    def __init__(self, connection: World, search: Search) -> None:
        self._world, self.search = connection, search
        connection.lookups.append(self)
        self.searched = False

    def done(self) -> bool:
        """Return whether the log was searched."""
        return self.searched

    def check(self) -> None:
        """Nothing ever goes wrong here."""

    def look(self) -> None:
        """Search the log as it is now, and as far as it is there still."""
        self.searched = True
        search, place = self.search, self.search.segment.source
        if place.topic not in self._world.brokers.topics:
            search.gone()
            return
        log = self._world.brokers.logs[place]
        search.begins_at(log.start)
        for entry in log.from_offset(search.next, 1 << 30):
            if entry.offset < (search.segment.end or 0):
                note_own(
                    search.found,
                    entry.offset,
                    entry.stamp,
                    search.home,
                    search.segment.opened_epoch,
                    search.instance,
                    search.wanted,
                )


class SimProducer:
    """One producer process: the application, the library's thread and librdkafka."""

    def __init__(self, world: World, name: str, instance: int, rate: float) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.clock = ProcessClock(world.timeline, rate)
        self.asleep = False
        self.closed = False
        self.client = Client(world, self.clock)
        self.reported: list[tuple[bytes, SendOutcome, int | None]] = []
        """Delivery reports since the oracle last looked: the record and, if known, its logical offset."""
        settings = ProducerSettings(
            "consistent_random",
            name,
            None,
            self._callback,
            False,
            1 << 20,
            1 << 30,
            MESSAGE_TIMEOUT,
            False,
            auto_create=False,
        )
        plain = PlainProducer(self.client.send, self.client.poll, self.client.__len__, lambda _: 0)
        shared = self.shared = ProducerState(settings, instance, plain)
        stamped, passing = StampedSender(shared), PassThroughSender(shared)
        held = HeldRecords(shared, stamped, passing, lambda: None)
        feed = self.feed = ControlFeed(cast(Any, world), shared)
        self.tail = SimTail(world)
        feed.tail = cast(Any, self.tail)
        feed.admin._client = cast(Any, world)
        self.registration: Registration = feed.registration
        self.writer = SimRegistrationWriter(world)
        self.registration._writer = cast(Any, self.writer)
        self.lease = LeaseTask(feed)
        self.fences = FenceTask(feed, held, lambda: False)
        self.topics = TopicTask(feed, held, passing, self.fences.watch)
        self._produce = make_produce(shared, self.client.send, stamped, passing, held.produce)
        self._duties = {
            name: getattr(owner, name)
            for owner in (self.lease, self.topics, self.fences)
            for name in DUTIES
            if hasattr(owner, name)
        }
        self._duties["watch_time"] = self._watch_time

    # -- the application ---------------------------------------------------------------------------

    def produce(self, id_: bytes, key: bytes | None) -> None:
        """Send one record."""
        self._run()
        self._produce(PARENT.topic, id_, key)

    def poll(self) -> int:
        """Take what reports have come; return how many reports and callbacks there were."""
        self._run()
        return self.client.poll(0) + self.shared.callbacks.run()

    def close(self) -> None:
        """End in good order, as ``Producer.close`` does when nothing is left."""
        self._run()
        self.shared.end()
        with suppress(KpsplitError):
            self.registration.certify(certificates(self.shared), cast(Any, None))
        self.shared.clear_routes()
        self.closed = True

    def overlooked(self, attempt_id: str) -> list[bytes]:
        """Return its records without a stamp that an operation could not wait for (protocol, section 11).

        It did not answer, and had no reason to: it has no lease, or it registers the topic only now.
        """
        topic, own = PARENT.topic, self.registration.record
        registers = topic in self.shared.unrouted or isinstance(self.shared.routes.get(topic), TopicRoute)
        has_lease = self.shared.lease_until > self.clock.now()
        if own.ready.get(str(PARENT)) == attempt_id or (has_lease and not registers):
            return []
        return [item.id for queue in self.client.queues.values() for item in queue if item.stamp is None]

    def idle(self) -> bool:
        """Return whether every record has its report."""
        return not len(self.client) and not self.shared.unresolved()

    def _callback(self, error: Any, message: Any) -> None:
        outcome = SendOutcome.OK if error is None else SendOutcome.FAILED
        self.reported.append((message.value(), outcome, None if error is not None else message.offset()))

    # -- the library's thread ----------------------------------------------------------------------

    def see(self, length: int) -> None:
        """Follow the control topic so far, and apply what is new."""
        self._run()
        self.tail.read(length)
        self._adopt()

    def duty(self, name: str, fault: str = "") -> None:
        """Do one duty; what goes wrong in it is tried again later, as in the product."""
        self._run()
        self.writer.fault = fault
        with suppress(KpsplitError):
            self._duties[name]()
        self.writer.fault = ""

    def turn(self, fault: str = "", *, prompt: bool = True) -> None:
        """Do everything that is to be done, in the product's order."""
        self.tail.prompt = prompt
        self.see(self.world.control.stable())
        for name in DUTIES:
            self.duty(name, fault)
        self.tail.prompt = False

    def _watch_time(self) -> None:
        self.lease.watch_time()
        self.fences.fail_late()

    def _adopt(self) -> None:
        if self.tail.length != self.lease.adopted:
            self.fences.adopt(self.tail.view, self.tail.changed)
            self.topics.adopt(self.tail.view)
            self.tail.changed.clear()
            self.lease.adopted = self.tail.length

    def _run(self) -> None:
        self.world.timeline.shown = self.clock
        self.client.expire()

    # -- for traces --------------------------------------------------------------------------------

    @property
    def fence(self) -> SendState | None:
        """The fence of the one logical partition, None before the topic is routed."""
        route = self.shared.routes.get(PARENT.topic)
        return route.send_states[0] if isinstance(route, TopicRoute) else None

    @property
    def state(self) -> PartitionState:
        """What it knows of the partition."""
        return self.tail.view.latest_state(PARENT) or self.world.control.states[0]
