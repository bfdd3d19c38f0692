"""An engine in its own thread among parts that a test leads by hand: coordinator, log, ledger.

The buffer, the events, the slots and the engine's thread are the real ones; the application is the test.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions

from kpsplit.consumer.application_requests import ApplicationRequests
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.config import split_config
from kpsplit.consumer.engine import Clients, Engine
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.batch import Backpressured, Batch
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.membership import State
from kpsplit.consumer.metadata import Metadata as Views
from kpsplit.consumer.polling import Poller
from kpsplit.consumer.slots.assigned import SlotStart
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.group_slots import Mode, OwnedSlot, subscribed
from kpsplit.splitter.key_range import key_hash, slot_number
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import slots_topic
from tests.unit import lane_samples

TOPIC = "orders"
PARENT = PhysicalPartition(TOPIC, 0)
SLOTS = 4


def slot(index: int) -> OwnedSlot:
    """One of the four slots of orders/0."""
    return OwnedSlot(PARENT, index, SLOTS)


class Coordinator:
    """What stands behind the group consumer: rebalances are served in its poll()."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.generation = 0
        self.looks = 0
        self.left = 0
        self.member = "me"
        self.closed = False
        self.unknown: dict[str, object] = {}
        """Why the client does not know topics."""
        self.answers_in = 0.0
        """So many seconds a question about a topic takes."""
        self.asked = self.broken = False
        """A question about a topic is under way; the client was closed meanwhile."""
        self._callbacks: dict[str, Callable[..., Any]] = {}
        self.due: deque[tuple[str, list[TopicPartition]]] = deque()
        self._assigned: set[int] = set()

    # the client

    def subscribe(self, topics: list[str], **callbacks: Callable[..., Any]) -> None:
        if not topics:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))  # as librdkafka does
        self.topics, self._callbacks = topics, callbacks

    def unsubscribe(self) -> None:
        self.topics = []
        self.left += 1
        if self._assigned:
            self.take(*sorted(self._assigned))

    def poll(self, seconds: float) -> Message | None:
        if self.due:
            name, parts = self.due.popleft()
            self._callbacks[name](self, parts)
        return None

    def incremental_assign(self, parts: list[TopicPartition]) -> None:
        self._assigned |= {p.partition for p in parts}

    def incremental_unassign(self, parts: list[TopicPartition]) -> None:
        self._assigned -= {p.partition for p in parts}

    def pause(self, parts: list[TopicPartition]) -> None:
        pass

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        self.looks += topic is None
        if topic is not None:
            self.asked = True
            time.sleep(min(self.answers_in, timeout))
            self.asked = False
            if self.answers_in > timeout:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        known = {topic: SimpleNamespace(error=self.unknown.get(topic))} if topic else {}
        return SimpleNamespace(topics=known)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous, "its answer would come out of poll()"
        return offsets

    def consumer_group_metadata(self) -> int:
        return self.generation

    def memberid(self) -> str:
        return self.member

    def close(self) -> None:
        self.closed, self.broken = True, self.asked

    # the test

    def give(self, *indexes: int) -> None:
        """Assign slots."""
        self.due.append(("on_assign", _parts(indexes)))

    def give_partitions(self, *parts: TopicPartition) -> None:
        """Assign partitions of topics that are not enrolled."""
        self.due.append(("on_assign", list(parts)))

    def take(self, *indexes: int) -> None:
        """Revoke slots."""
        self.due.append(("on_revoke", _parts(indexes)))

    def lose(self, *indexes: int) -> None:
        """Tell that slots are lost."""
        self.due.append(("on_lost", _parts(indexes)))

    def held(self) -> set[int]:
        """The slots that the member has not let go."""
        return set(self._assigned)

    def members(self) -> Members:
        """What the group tells of itself: everything that the member holds is its own."""
        place, me = slots_topic(TOPIC), Owner(self.memberid(), "", "")
        return Members(True, True, {PhysicalPartition(place, number): me for number in self.held()})


def _parts(indexes: tuple[int, ...]) -> list[TopicPartition]:
    return [TopicPartition(slots_topic(TOPIC), slot_number(0, i, SLOTS)) for i in indexes]


class Metadata:
    """An enrolled topic with four slots, never split."""

    def __init__(self) -> None:
        self.ready, self.trouble, self.position = True, None, 1
        self.view = ControlView()
        self.view.enrolments[TOPIC] = Enrolment(TOPIC, "id", Partitioner.CONSISTENT_RANDOM, True, SLOTS)
        self.is_fresh = True
        self.topics = Topics()
        self.failure: Exception | None = None

    def admin(self) -> Any:
        return self.topics

    def fresh(self) -> bool:
        return self.is_fresh

    def subscribed(self, topic: str) -> Any:
        return subscribed(topic, self.view.enrolments.get(topic))

    def may_subscribe(self, topics: Any) -> bool:
        return Views.may_subscribe(self, topics)  # type: ignore[arg-type]

    def returning(self, topic: str, mode: Mode) -> bool:
        return Views.returning(self, topic, mode)  # type: ignore[arg-type]

    def state(self, parent: PhysicalPartition, *, left: bool = False) -> PartitionState:
        plain = self.subscribed(parent.topic).mode.plain and not left
        return PartitionState.unsplit(parent, "" if plain else "id")

    def turn(self) -> None:
        if self.failure is not None:
            raise self.failure

    def want_refresh(self, request_id: int = 0) -> None:
        pass

    def refreshed(self, request_id: int = 0) -> bool:
        return True

    def close(self) -> None:
        pass


class Reader:
    """Reads what the test writes."""

    wants_refresh = 0
    strays = 0
    paused = False

    def __init__(self) -> None:
        self.owned: dict[OwnedSlot, Cursor] = {}
        self.due: deque[Batch] = deque()
        self.written = 0
        self.updated: list[tuple[str, bool]] = []
        """The topic ids of the views that were given, and whether something was read then."""

    def write(self, *messages: Message) -> None:
        """Records arrive; they belong to every slot that is owned when they are read."""
        segment = PartitionState.unsplit(PARENT, "id").lineage.get(0)
        start, self.written = self.written, self.written + len(messages)
        self.due.append(Batch(PARENT, segment, (), start, self.written, list(messages), 10))

    def update(self, state: PartitionState) -> None:
        self.updated.append((state.topic_id, bool(self.owned)))

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        self.owned[slot] = cursor

    def disown(self, slots: list[OwnedSlot]) -> None:
        for one in slots:
            self.owned.pop(one, None)

    def start_over(self, cursors: dict[OwnedSlot, Cursor]) -> None:
        self.owned = dict(cursors)

    def pause(self, parents: list[PhysicalPartition]) -> None:
        self.paused = True

    def resume(self, parents: list[PhysicalPartition]) -> None:
        self.paused = False

    def hold_back(self, backpressured: Backpressured) -> None:
        pass

    def step(self, seconds: float, room: int) -> list[Batch]:
        if not self.due or not self.owned or self.paused:
            time.sleep(0.001)
            return []
        batch = self.due.popleft()
        batch.slots = tuple(sorted(self.owned))
        return [batch]

    def close(self) -> None:
        pass


class GroupOffsets:
    """Slots start at 0. ``commits``: what was committed; gates hold answers up, ``failures`` are raised.

    ``seconds``: how long a commit takes. ``moved``: which ranges each commit called moved.
    """

    garbage = 0

    def __init__(self) -> None:
        self.commits: list[dict[Any, int]] = []
        self.moved: list[set[Any]] = []
        self.generations: list[object] = []
        self.starts_gate, self.commit_gate = threading.Event(), threading.Event()
        self.starts_gate.set()
        self.commit_gate.set()
        self.failures: deque[Exception] = deque()
        self.members: Callable[[], Members] | None = None
        self.asked = 0
        self.wanted: list[Any] = []
        self.seconds = 0.0
        self.begun = 0
        self.has_commits = True
        self.connected = False

    def connect(self, seconds: float) -> None:
        self.connected = True

    def starts(self, wanted: list[Any], me: str | None) -> list[SlotStart]:
        self.asked += 1
        self.wanted.extend(wanted)
        self.starts_gate.wait(2 * lane_samples.PATIENCE)  # longer than who waits for it
        given = [None if self.has_commits else w.given for w in wanted]
        return [
            SlotStart(
                (own.narrowed(w.range) if isinstance(own, Cursor) else Cursor(w.range, {0: 0}),),
                committed=True,
            )
            for w, own in zip(wanted, given, strict=True)
        ]

    def commit(
        self, processed: list[Any], member: Any, metadata: object, seconds: float, load: Any = None
    ) -> None:
        self.begun += 1
        self.commit_gate.wait(2 * lane_samples.PATIENCE)  # longer than who waits for it
        time.sleep(self.seconds)
        self.generations.append(metadata)
        if load is not None:
            load.write(None, None)
        if self.failures:
            raise self.failures.popleft()
        self.moved.append({range_ for p in processed for range_ in p.moved})
        self.commits.append({c.range: c.positions[0] for p in processed for c in p.cursors})

    def outdated(self, shared: list[Any], member: Any) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        pass


class Topics:
    """The admin client's answers: how many partitions each topic has.

    ``refusal``: with what the brokers answer whoever adds partitions.
    """

    def __init__(self, **counts: int) -> None:
        self.counts = dict(counts)
        self.refusal: KafkaError | None = None
        self.added: list[tuple[str, int]] = []

    def describe_topics(self, asked: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        return {name: self._described(name) for name in asked.topic_names}

    def _described(self, name: str) -> Future[Any]:
        if name not in self.counts:
            return answered(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return answered(None, SimpleNamespace(partitions=[None] * self.counts[name]))

    def create_partitions(
        self, wanted: list[NewPartitions], request_timeout: float
    ) -> dict[str, Future[Any]]:
        (new,) = wanted
        if self.refusal is None:
            self.added.append((new.topic, new.new_total_count))
            self.counts[new.topic] = new.new_total_count
        return {new.topic: answered(self.refusal)}


def answered(error: KafkaError | None, result: Any = None) -> Future[Any]:
    """An answer that is there."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(KafkaException(error))
    return future


class QueryClient:
    def close(self) -> None:
        pass


class World:
    """Everything together. The test polls; ``told`` are its callbacks, in order."""

    def __init__(self, reader: Reader | None = None, **settings: Any) -> None:
        config = {"bootstrap.servers": "localhost:1", "group.id": "g", "auto.commit.interval.ms": 3_600_000}
        extra = {n if n == "on_commit" else n.replace("_", "."): value for n, value in settings.items()}
        _, chosen = split_config({**config, **extra})
        self.coordinator, self.metadata, self.group_offsets = Coordinator(), Metadata(), GroupOffsets()
        self.reader = reader or Reader()
        self.metadata.topics = self.topics = Topics(**{TOPIC: 1, slots_topic(TOPIC): SLOTS})
        self.group_offsets.members = self.coordinator.members
        self.buffer = FetchBuffer()
        self.events = Events(self.buffer.ask_attention)
        self.pulse = [0]
        group = GroupConsumer({}, incremental=True, make=lambda *_: self.coordinator)
        clients = Clients(
            group,
            self.reader,  # type: ignore[arg-type]
            QueryClient(),  # type: ignore[arg-type]
            BrokerExecutor("errands", self.group_offsets),  # type: ignore[arg-type]
            BrokerExecutor("members", self.group_offsets),  # type: ignore[arg-type]
        )
        self.settings = chosen
        self.slots = AssignedSlots(
            self.metadata,  # type: ignore[arg-type]
            clients.reader,
            self.buffer,
            StateBinding(),
            auto_store=chosen.auto_store,
        )
        self.engine = Engine(chosen, clients, self.slots, self.events, lambda: self.pulse[0])
        self.buffer.fetch = self.engine.pull
        self.calls = ApplicationRequests(
            self.slots, self.engine.committer, self.engine.membership, self.engine.subscribing, self.buffer
        )
        self.told: list[tuple[str, list[int]]] = []
        self.inside: dict[str, Callable[[], None]] = {}
        self.engine.start()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.group_offsets.starts_gate.set()
        self.group_offsets.commit_gate.set()
        self.close()

    def subscribe(self) -> None:
        """Subscribe with callbacks."""

        def subscribe() -> None:
            membership = self.engine.membership
            membership.callbacks.on_assign = lambda parts: self._tell("assign", parts)
            membership.callbacks.on_revoke = lambda parts: self._tell("revoke", parts)
            membership.callbacks.on_lost = lambda parts: self._tell("lost", parts)
            self.engine.subscribing.subscribe([TOPIC])

        self.engine.ask(subscribe).result(lane_samples.PATIENCE)
        self.until(lambda: self.coordinator.topics, "the subscription")

    def _tell(self, name: str, parts: list[TopicPartition]) -> None:
        self.told.append((name, [p.partition for p in parts]))
        self.inside.get(name, lambda: None)()

    def poll(self) -> Message | None:
        """Poll as an application does, without waiting."""
        self.pulse[0] += 1
        if self.events or self.buffer.attention:
            error = self.events.attend(self.buffer.attended)
            if error is not None:
                return error
        try:
            return self.buffer.take()
        except IndexError:
            self.buffer.wait(0)
            return None

    def polls(self, condition: Callable[[], Any], why: str) -> list[Message]:
        """Poll until a condition holds; return what came."""
        found: list[Message] = []
        self.until(condition, why, lambda: self._polls_into(found))
        return found

    def take(self, count: int) -> list[Message]:
        """Poll until so many records came; the last of them is being worked on then."""
        found: list[Message] = []
        self.until(lambda: len(found) >= count, "records", lambda: self._polls_into(found))
        return found

    def _polls_into(self, found: list[Message]) -> bool:
        message = self.poll()
        if message is not None:
            found.append(message)
        return message is not None

    def fetch(self) -> bool:
        """Have records read, though the application has not asked for more; tell whether some wait."""
        self.engine.pull(0)
        return self.slots.sink.waiting_bytes() > 0

    def fetches(self, condition: Callable[[], Any], why: str) -> None:
        """Have records read until a condition holds."""
        self.until(lambda: [self.fetch()] and condition(), why)

    def until(
        self, condition: Callable[[], Any], why: str, meanwhile: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until a condition holds; pause only where ``meanwhile`` finds nothing to do."""
        end = time.monotonic() + lane_samples.PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited for {why}; {self.stats()}"
            if not meanwhile():
                time.sleep(0.001)

    @property
    def state(self) -> State:
        return self.engine.membership.state

    def count(self, name: str) -> int:
        """One of the engine's counts."""
        return self.engine.counts()[name]

    def stats(self) -> Any:
        return self.engine.ask(self.engine.statistics).result(lane_samples.PATIENCE)

    def close(self) -> None:
        """Close as an application does."""
        self.buffer.wait(0)
        self.engine.close()
        end = time.monotonic() + lane_samples.PATIENCE
        while not self.engine.ended(0.005):
            assert time.monotonic() < end, "the engine did not end"
            self.events.serve()


KEYS = [key for key in (b"key-%d" % i for i in range(20_000)) if key_hash(key) in slot(0).range]


def record(number: int) -> Message:
    """A record of orders/0 whose key is in the first slot."""
    return Message(topic=TOPIC, partition=0, offset=number, key=KEYS[number], value=b"%d" % number)


def poller_of(world: World) -> Poller:
    """What an application has that polls."""
    poller = Poller(world.buffer, world.events)
    poller.reads_here = world.engine.reads_here
    return poller
