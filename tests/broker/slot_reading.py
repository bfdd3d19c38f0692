"""What the tests of the slot reader share: a writer that follows the layout, and readers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from confluent_kafka import Message, Producer

from kpsplit.admin import Admin
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.consumer.fetch.gaps import EndReached, GapFound, ReadingEvent
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import Place, place_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Layout, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.broker.operating import state_of

ROOM = 1 << 24


class Writer:
    """Writes each key's numbered records to the segment that takes them; waits for every acknowledgement."""

    def __init__(self, bootstrap: str, parent: PhysicalPartition) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
        self.parent = parent
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)

    def write(self, state: PartitionState, rounds: int, keys: int = 40) -> None:
        """Write some records of every key."""
        layout = Layout.of(state.lineage)
        for _ in range(rounds):
            for key in (b"key-%d" % i for i in range(keys)):
                value = b"%d" % len(self.sent[key])
                self.sent[key].append(value)
                self.put(layout.segment_for(key_hash(key)).source, key, value)
        self.flush()

    def put(self, place: PhysicalPartition, key: bytes | None, value: bytes) -> None:
        """Write one record."""
        self._producer.produce(place.topic, value, key, place.partition)

    def flush(self) -> None:
        """Wait for all acknowledgements."""
        assert self._producer.flush(30) == 0


class Member:
    """A slot reader with a view of the control topic, and everything that it handed out."""

    def __init__(
        self, bootstrap: str, view: Callable[[PhysicalPartition], PartitionState], **settings: Any
    ) -> None:
        self.events: list[ReadingEvent] = []
        options = {name: settings.pop(name) for name in ("on_gap", "wrap_all") if name in settings}
        self.reader = SlotReader(
            Connection({"bootstrap.servers": bootstrap}), settings, self.events.append, **options
        )
        self._view = view
        self.lineages: dict[PhysicalPartition, Any] = {}
        self.batches: list[Batch] = []
        self._heard = 0

    @classmethod
    def of(cls, bootstrap: str, operations: Admin, **settings: Any) -> Member:
        """A member that knows what the control topic says."""
        return cls(bootstrap, lambda parent: state_of(operations, parent), **settings)

    def own(self, slot: OwnedSlot, cursor: Cursor | None = None) -> None:
        """Take a slot."""
        self.refresh(slot.parent)
        self.reader.own(slot, cursor or Cursor.at_start(slot.range))

    def refresh(self, parent: PhysicalPartition) -> None:
        """Take the newest view of a partition."""
        state = self._view(parent)
        self.lineages[parent] = state.lineage
        self.reader.update(state)

    def step(self, seconds: float = 0.1, room: int = ROOM) -> list[Batch]:
        """Read once, and look at the control topic if that is asked for."""
        ticket = self.reader.wants_refresh
        if ticket:
            for parent in self.lineages:
                self.refresh(parent)
            self.reader.refreshed(ticket)
        batches = [*self._told(), *self.reader.step(seconds, room)]
        self.batches += batches
        return batches

    def _told(self) -> list[Batch]:
        """Be told of the gaps that were skipped since."""
        new, self._heard = self.events[self._heard :], len(self.events)
        gaps = [e for e in new if isinstance(e, GapFound) and e.error is None]
        return [batch for found in gaps for batch in self.reader.told(found.parent, found.gap)]

    def read_until(self, done: Callable[[], Any], why: str, seconds: float = 180.0) -> None:
        """Read until a condition holds."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"waited {seconds} s for {why}; {self.events}"
            self.step()

    def read(self, count: int) -> None:
        """Read until so many records were handed out in all, and a moment longer for one too many."""
        self.read_until(
            lambda: len(self.messages) >= count, f"{count} records, {len(self.messages)} are there"
        )
        self.step()

    def read_to_end(self) -> None:
        """Read until everything that is there was read."""
        before = len(self.ends)
        self.read_until(lambda: len(self.ends) > before, "the end")

    @property
    def ends(self) -> list[EndReached]:
        """The reports that everything was read."""
        return [event for event in self.events if isinstance(event, EndReached)]

    @property
    def troubles(self) -> list[ReadingEvent]:
        """All other reports."""
        return [event for event in self.events if not isinstance(event, EndReached)]

    @property
    def messages(self) -> list[Message]:
        """Everything that was handed out, in order."""
        return [message for batch in self.batches for message in batch.messages]

    def by_key(self) -> dict[bytes, list[bytes]]:
        """The values of every key, in order."""
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for message in self.messages:
            found[message.key() or b""].append(message.value() or b"")
        return dict(found)

    def places(self, parent: PhysicalPartition) -> list[Place | None]:
        """Where the records of a partition are stored."""
        return [place_of(m, self.lineages[parent]) for m in self.messages]

    def close(self) -> None:
        """End the clients."""
        self.reader.close()


def slots_of(parent: PhysicalPartition, count: int) -> list[OwnedSlot]:
    """All slots of a partition."""
    return [OwnedSlot(parent, index, count) for index in range(count)]
