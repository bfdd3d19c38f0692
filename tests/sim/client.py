"""A simulated librdkafka producer: queues per partition, acknowledgements that come, come late or never."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Message

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.stamp import Stamp
from tests.sim.logs import RefusedError

if TYPE_CHECKING:
    from tests.sim.world import World

_SEALED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
_GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
_TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)


@dataclass(slots=True)
class InFlight:
    """A record inside the client. ``offset``: where the broker wrote it, None while it did not."""

    place: PhysicalPartition
    id: bytes
    key: bytes | None
    report: Callable[[Any, Any], None]
    stamp: Stamp | None
    offset: int | None = None


class Client:
    """See the module. Order is kept per partition, as with idempotence."""

    def __init__(self, world: World) -> None:
        self._world = world
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
        place = PhysicalPartition(topic, partition)
        pairs = dict(headers) if headers else {}
        stamp = Stamp.decode(pairs["kps"]) if "kps" in pairs else None
        self.queues.setdefault(place, deque()).append(InFlight(place, value, key, report, stamp))

    def poll(self, _: float) -> int:
        """Tell every report that has come."""
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

    def acknowledge(self, place: PhysicalPartition) -> str | None:
        """The acknowledgement of the first record comes."""
        queue = self.queues.get(place)
        if not queue or queue[0].offset is None:
            return None
        item = self._over(place, None)
        return f"{place} acknowledges {_named(item)} at {item.offset}"

    def fail(self, place: PhysicalPartition, how: str) -> str | None:
        """The first record times out: its acknowledgement was lost, it was never sent, or comes late.

        ``how`` = ``rejected``: the acknowledgement was lost, and the retry meets a seal.
        """
        queue = self.queues.get(place)
        if not queue:
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

    def left_behind(self) -> None:
        """The process is gone: what was in the network may still arrive, in order."""
        for queue in self.queues.values():
            sent = deque([i for i in queue if i.offset is None][:2])
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
        offset=-1 if item.offset is None else item.offset,
        key=item.key,
        value=item.id,
        timestamp=(1, 1),
        error=error,
    )


def _named(item: InFlight) -> str:
    return item.id.decode()
