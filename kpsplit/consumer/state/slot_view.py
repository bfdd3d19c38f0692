"""What a handler sees of a slot's state: get, put, delete, and walks over keys in order, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.state.changelog import MAX_RECORD_BYTES
from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.slots import SlotId, successor
from kpsplit.errors import UsageError

_current: ContextVar[Work | None] = ContextVar("kpsplit-state-work", default=None)


class Work:
    """Around what an application does with one record: all writes count when it ends, or none.

    An error drops them, so a call that is tried again does not find its own half. Used as a context manager
    in the thread (or asyncio task) that does the work; one unit is one try.

    Args:
        owned: the slot's state.
        place: the record's; None: the writes go with the next commit, whatever it covers.
    """

    def __init__(self, owned: OwnedState, place: RecordPlace | None = None) -> None:
        self.owned = owned
        self._place = place
        self._writes: dict[bytes, bytes | None] = {}
        self._token: Token[Work | None] | None = None
        self._over = False

    @property
    def slot(self) -> SlotId:
        """The slot of the record that is worked on."""
        return self.owned.slot

    def written(self) -> dict[bytes, bytes | None]:
        """Return what the unit has written so far."""
        return self._writes

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write a value, or (None) delete it.

        Raises:
            UsageError: the unit has ended; a task or thread that outlives it cannot write any more.
        """
        if self._over:
            raise UsageError(
                "state was written when the handler had returned already",
                hint="await what the handler starts before it returns",
            )
        self._writes[key] = value

    def __enter__(self) -> Work:
        """Begin: what this thread or task writes from now on belongs to the unit."""
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; publish the writes if there was no error.

        Raises:
            SlotGoneError: the slot was released meanwhile: the writes are dropped.
        """
        self._end()
        if kind is None:
            self._publish()

    def _end(self) -> None:
        self._over = True
        if self._token is not None:
            _current.reset(self._token)

    def _publish(self) -> None:
        writes, self._writes = self._writes, {}
        outer = current_work()
        if outer is not None and outer.owned is self.owned:
            for key, value in writes.items():  # inside the unit of a handler: all of that, or nothing
                outer.write(key, value)
        elif outer is not None and writes:
            raise UsageError(
                f"inside a unit of work on {outer.slot} the state of {self.slot} cannot be written",
                hint="a record of that slot is handled by its owner: send one there",
            )
        elif writes:
            self.owned.add(writes, self._place)


class WorkAttempt(Work):
    """A unit that ``run()`` publishes itself, at the moment when the record counts as processed."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; the writes are invisible until ``publish``."""
        self._end()

    def publish(self) -> None:
        """Let others see the writes, and the commit that covers the record take them.

        Raises:
            SlotGoneError: the slot was released meanwhile: the writes are dropped.
        """
        self._publish()


def current_work() -> Work | None:
    """Return the unit of work of this thread or task."""
    return _current.get()


K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """How a type becomes bytes and back. The order of keys is that of their bytes."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


BYTES: Serde[bytes] = Serde(bytes, bytes)
"""Bytes as they are."""
TEXT: Serde[str] = Serde(lambda text: text.encode("utf-8"), lambda data: data.decode("utf-8"))
"""Text as UTF-8: in the order of its code points."""
JSON: Serde[Any] = Serde(lambda value: json.dumps(value).encode("utf-8"), json.loads)
"""What ``json`` can write. For values: as keys they have no useful order."""
UNSIGNED: Serde[int] = Serde(
    lambda number: number.to_bytes(8, "big"), lambda data: int.from_bytes(data, "big")
)
"""Whole numbers from 0 to 2^64 - 1, in their order."""


class SlotView(Generic[K, V]):
    """The state of one slot. Thread safe: any number of workers may use it.

    Each call is atomic by itself; get and put together are not, unless one worker at a time works on the key,
    as lanes see to for keys that come from the record's key. Every call raises SlotGoneError when the slot is
    not owned any more, ConflictError while it is restored. One that was made inside a unit of work belongs
    to it in other threads as well, which do not inherit the unit.
    """

    def __init__(
        self,
        slot: SlotId,
        find: Callable[[SlotId], OwnedState],
        keys: Serde[K],
        values: Serde[V],
        place: RecordPlace | None = None,
        work: Work | None = None,
    ) -> None:
        self.slot = slot
        self._find = find
        self._keys = keys
        self._values = values
        self._place = place
        self._unit = work

    def typed(self, keys: Serde[K2], values: Serde[V2]) -> SlotView[K2, V2]:
        """Return the same state with other types of keys and values."""
        return SlotView(self.slot, self._find, keys, values, self._place, self._unit)

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the latest value of a key: this unit of work's own, else the last that was finished."""
        owned = self._find(self.slot)
        data = self._keys.encode(key)
        own = self._own_writes(owned)
        found = own[data] if data in own else owned.get(data)
        return default if found is None else self._values.decode(found)

    def put(self, key: K, value: V) -> None:
        """Set a value. It is durable when the commit that covers the record is done.

        Raises:
            UsageError: key and value are too large; a unit of work writes to the slot of another record.
        """
        data, encoded = self._keys.encode(key), self._values.encode(value)
        if len(data) + len(encoded) > MAX_RECORD_BYTES:
            raise UsageError(
                f"key and value have {len(data) + len(encoded)} bytes, over the limit of {MAX_RECORD_BYTES}",
                hint="divide the value among several keys",
            )
        self._write(data, encoded)

    def delete(self, key: K) -> None:
        """Remove a value; nothing happens if there is none."""
        self._write(self._keys.encode(key), None)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[K, V]]:
        """Return the keys that begin with ``prefix`` and their values, in order, as they are at the call."""
        return self._walk(prefix, successor(prefix))

    def range(self, lo: K, hi: K | None = None) -> Iterator[tuple[K, V]]:
        """Return the keys in [lo, hi) and their values, in order, as they are at the call; None: no end."""
        return self._walk(self._keys.encode(lo), None if hi is None else self._keys.encode(hi))

    def _walk(self, lo: bytes, hi: bytes | None) -> Iterator[tuple[K, V]]:
        owned = self._find(self.slot)
        found = owned.items(lo, hi, self._own_writes(owned))
        return ((self._keys.decode(key), self._values.decode(value)) for key, value in found)

    def _write(self, key: bytes, value: bytes | None) -> None:
        owned = self._find(self.slot)
        work = current_work() or self._unit
        if work is None:
            owned.add({key: value}, self._place)
        elif work.owned is owned:
            work.write(key, value)
        elif work.slot == self.slot:
            work.owned.usable()  # it was lost, and came back: that is refused
        else:
            raise UsageError(
                f"the handler works on a record of {work.slot} and may not write the state of {self.slot}",
                hint="a record of that slot is handled by its owner: send one there",
            )

    def _own_writes(self, owned: OwnedState) -> Mapping[bytes, bytes | None]:
        """Return what the unit of work has written to the slot: this task's, or the one of this view."""
        work = current_work() or self._unit
        return work.written() if work is not None and work.owned is owned else {}
