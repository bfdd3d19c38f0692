"""Producers: the real dispatcher and the real duties of the library's thread, over a simulated client."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from kpsplit.errors import KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.producer import accounts
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.control_feed import ControlFeed
from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.fence_duty import FenceTask
from kpsplit.producer.general_path import GeneralPath
from kpsplit.producer.hot_path import make_produce
from kpsplit.producer.lease_duty import LeaseTask
from kpsplit.producer.lookup import Search
from kpsplit.producer.registration import Registration
from kpsplit.producer.routes import Fence, TopicRoute
from kpsplit.producer.topic_duty import TopicTask
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.control import Enrolment, Partitioner, Settings
from kpsplit.splitter.records.producers import Entry, decode_entry
from kpsplit.splitter.records.stamp import note_own
from tests.sim.client import Client
from tests.sim.clock import ProcessClock
from tests.sim.logs import PARENT
from tests.sim.operators import LEASE_SECONDS

if TYPE_CHECKING:
    from tests.sim.world import World

MESSAGE_TIMEOUT = 40.0
ENROLMENT = Enrolment(PARENT.topic, "id-of-t", Partitioner.CONSISTENT_RANDOM, settled=True, slots=2)
DUTIES = (
    "watch_time", "answer", "renew", "route_new_topics", "take_reports", "acknowledge", "release", "look_up",
)  # fmt: skip
"""What the library's thread does in one turn behind following the control topic, in the product's order."""


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
        self.view.states[PARENT] = self._control.states[0]
        self.request: SimEndRequest | None = None
        self.prompt = False

    def read(self, length: int) -> None:
        """Read on to where that many records were read."""
        if length > self.length:
            self.length = length
            self.view.states[PARENT] = self._control.states[length]

    def progress(self) -> int:
        """Return how far the topic was read."""
        return self.length

    def reached(self, ends: dict[int, int]) -> bool:
        """Tell whether everything before an end was read."""
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
        """Tell whether the answer is there."""
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
        """Tell whether the log was searched."""
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
                note_own(search.found, entry.offset, entry.stamp, search.home, search.instance, search.wanted)


class SimProducer:
    """One producer process: the application, the library's thread and librdkafka."""

    def __init__(self, world: World, name: str, instance: int, rate: float) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.clock = ProcessClock(world.timeline, rate)
        self.asleep = False
        self.closed = False
        self.client = Client(world)
        self.told: list[tuple[bytes, int | None]] = []
        """Delivery reports since the oracle last looked: the record, its logical offset or None."""
        settings = ProducerSettings(
            "consistent_random", name, None, self._callback, False, 1 << 20, 1 << 30, MESSAGE_TIMEOUT, False
        )
        dispatcher = self.dispatcher = Dispatcher(settings, instance, self.client.send)
        feed = self.feed = ControlFeed(cast(Any, world), dispatcher)
        self.tail = SimTail(world)
        feed.tail = cast(Any, self.tail)
        feed.admin._client = cast(Any, world)
        self.registration: Registration = feed.registration
        self.writer = SimRegistrationWriter(world)
        self.registration._writer = cast(Any, self.writer)
        queued = self.client.__len__
        self.lease = LeaseTask(feed)
        self.fences = FenceTask(feed, self.lease, self.client.poll, queued, lambda: False)
        self.topics = TopicTask(feed, self.lease, self.fences, queued, lambda _: 0, lambda _: None)
        general = GeneralPath(dispatcher, queued, lambda: None)
        self._produce = make_produce(dispatcher, self.client.send, self._callback, general.produce)
        self._duties = {
            name: getattr(owner, name)
            for owner in (self.lease, self.topics, self.fences)
            for name in DUTIES
            if hasattr(owner, name)
        }
        self._duties["acknowledge"] = self.fences.acknowledge

    # -- the application ---------------------------------------------------------------------------

    def produce(self, id_: bytes, key: bytes | None) -> None:
        """Send one record."""
        self._run()
        self._produce(PARENT.topic, id_, key)

    def poll(self) -> int:
        """Take what reports have come; return how many reports and callbacks there were."""
        self._run()
        return self.client.poll(0) + self.dispatcher.callbacks.run()

    def close(self) -> None:
        """End in good order, as ``Producer.close`` does when nothing is left."""
        self._run()
        self.dispatcher.end()
        with suppress(KpsplitError):
            self.registration.certify(accounts.certificates(self.dispatcher), cast(Any, None))
        self.dispatcher.clear_routes()
        self.closed = True

    def idle(self) -> bool:
        """Tell whether every record has its report."""
        return not len(self.client) and not self.dispatcher.unresolved()

    def _callback(self, error: Any, message: Any) -> None:
        self.told.append((message.value(), None if error is not None else message.offset()))

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

    def _adopt(self) -> None:
        if self.tail.length != self.lease.adopted:
            self.fences.adopt(self.tail.view)
            self.topics.adopt(self.tail.view)
            self.lease.adopted = self.tail.length

    def _run(self) -> None:
        self.world.timeline.shown = self.clock

    # -- for traces --------------------------------------------------------------------------------

    @property
    def fence(self) -> Fence | None:
        """The fence of the one logical partition, None before the topic is routed."""
        route = self.dispatcher.routes.get(PARENT.topic)
        return route.fences[0] if isinstance(route, TopicRoute) else None

    @property
    def state(self) -> PartitionState:
        """What it knows of the partition."""
        return self.tail.view.states[PARENT]
