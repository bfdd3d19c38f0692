"""Records, batches and a reader without brokers, for tests of what ``run()`` is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import Batch, RecordSink
from kpsplit.consumer.run.lanes import LaneScheduler
from kpsplit.kafka.logical_message import is_identity, relabelled, wrapped
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange, key_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.reading import Cursor

PARENT = PhysicalPartition("orders", 3)
UNSPLIT = Lineage.unsplit(PARENT)
FIRST = UNSPLIT.segments[0]
WHOLE_SLOT = OwnedSlot(PARENT, 0, 1)
PATIENCE = 120.0


class Lanes(LaneScheduler):
    """Takes a batch in one step."""

    def offer(self, batch: Batch) -> int:
        self.prepare(batch.parent)
        return self.add(batch, self.divide(batch))


def keys_in(range_: KeyRange, count: int) -> list[bytes]:
    """Keys whose hashes lie in a range."""
    numbers = (b"k%d" % i for i in range(1_000_000))
    found = (key for key in numbers if key_hash(key) in range_)
    return [next(found) for _ in range(count)]


def record(segment: Segment, offset: int, key: bytes | None, value: bytes = b"v") -> Message:
    """A record as the reader hands it out."""
    source = segment.source
    raw = Message(topic=source.topic, partition=source.partition, offset=offset, key=key, value=value)
    return raw if is_identity(segment, PARENT) else wrapped([raw], relabelled(segment, PARENT))[0]


def batch(
    keys: Sequence[bytes | None],
    start: int = 0,
    slots: tuple[OwnedSlot, ...] = (WHOLE_SLOT,),
    segment: Segment = FIRST,
    value: bytes = b"v",
) -> Batch:
    """What was read of a segment from ``start`` on: one record per key."""
    messages = [record(segment, start + i, key, value) for i, key in enumerate(keys)]
    return Batch(PARENT, segment, slots, start, start + len(keys), messages, 0)


def start(sink: RecordSink, *slots: OwnedSlot) -> None:
    """Slots arrive, of which nothing was processed."""
    for slot in slots or (WHOLE_SLOT,):
        sink.taken(slot, Cursor(slot.range, {}))


def eventually(what: Callable[[], Any], why: str) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + PATIENCE
    while not (value := what()):
        assert time.monotonic() < end, f"waited for {why}"
        time.sleep(0.002)
    return value


class Worked:
    """What handlers did: thread safe; two records of one key at once are an error."""

    def __init__(self) -> None:
        self.offsets: dict[bytes, list[int]] = {}
        self.count = 0
        self.at_once = 0
        self.most_at_once = 0
        self.clashes: list[bytes] = []
        self._lock = threading.Lock()
        self._busy: set[bytes] = set()

    def begin(self, message: Any) -> None:
        with self._lock:
            if message.key() in self._busy:
                self.clashes.append(message.key())
            self._busy.add(message.key())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)

    def end(self, message: Any) -> None:
        with self._lock:
            self._busy.discard(message.key())
            self.at_once -= 1
            self.count += 1
            self.offsets.setdefault(message.key(), []).append(message.offset())

    def in_order(self) -> bool:
        return not self.clashes and all(found == sorted(found) for found in self.offsets.values())
