"""The state of one slot that this process owns: what waits for a commit, units of work, handlers' views.

Writes become visible to other workers when the unit of work that made them is finished. Each belongs to the
record at a place, or to none; a commit takes those of the records that it calls processed. Of one key it
takes the latest, and what is older than that is dropped when the commit succeeds: the last writer wins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Generic, TypeVar

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.state.slots import MAX_RECORD_BYTES, Room, SlotId
from kpsplit.consumer.state.storage import RestoreMarker, Storage, Writes, successor
from kpsplit.errors import ConflictError, KpsplitError, UsageError

Covers = Callable[[RecordPlace], bool]
"""Tells whether a commit calls the record at a place processed."""


class SlotGoneError(ConflictError):
    """The slot is not owned by this process (any more), or its state was rewound; nothing was written."""


@dataclass(slots=True)
class _Version:
    sequence: int
    place: RecordPlace | None
    value: bytes | None


class Pending:
    """The uncommitted writes of one slot: read first, cut for a commit, put back after it. No lock.

    Attributes:
        bytes: of keys and values that wait.
        passed_over: the latest commit took nothing of it, although something waited.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.passed_over = False
        self._versions: dict[bytes, list[_Version]] = {}
        self._sequence = 0
        self._cut: dict[bytes, _Version] | None = None
        """What the commit that is under way takes."""

    def __len__(self) -> int:
        """How many keys have writes that wait."""
        return len(self._versions)

    def find(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether the key was written, and its latest value."""
        versions = self._versions.get(key)
        return (True, versions[-1].value) if versions else (False, None)

    def within(self, lo: bytes, hi: bytes | None) -> dict[bytes, bytes | None]:
        """Return the latest writes to keys in [lo, hi), None: without end."""
        return {k: versions[-1].value for k, versions in self._versions.items() if _in_range(k, lo, hi)}

    def add(self, writes: Writes, place: RecordPlace | None = None) -> None:
        """Take writes that belong to the record at a place; None: that belong to no record."""
        self._sequence += 1
        for key, value in writes.items():
            versions = self._versions.setdefault(key, [])
            if versions and versions[-1].place == place:
                # With a new sequence: a commit that has cut the old value does not count this one.
                self.bytes -= _size(key, versions.pop())
            versions.append(version := _Version(self._sequence, place, value))
            self.bytes += _size(key, version)

    def cut(self, covers: Covers | None = None) -> dict[bytes, bytes | None]:
        """Return the writes that a commit takes: all, or those of covered records and of none.

        Raises:
            ConflictError: a commit is under way already.
        """
        if self._cut is not None:
            raise ConflictError("a commit of this slot's state is under way", hint="end that one first")
        taken = {key: _latest(versions, covers) for key, versions in self._versions.items()}
        self._cut = {key: version for key, version in taken.items() if version is not None}
        self.passed_over = bool(taken) and not self._cut
        return {key: version.value for key, version in self._cut.items()}

    def committed(self) -> None:
        """The writes that were cut are in the local store and in the changelog."""
        for key, taken in (self._cut or {}).items():
            versions = self._versions.pop(key, [])
            self.bytes -= sum(_size(key, v) for v in versions if v.sequence <= taken.sequence)
            if kept := [v for v in versions if v.sequence > taken.sequence]:
                self._versions[key] = kept
        self._cut = None

    def aborted(self) -> None:
        """The commit came to nothing: its writes wait again."""
        self._cut = None

    def clear(self) -> None:
        """Forget everything, a commit under way as well."""
        self._versions.clear()
        self._cut = None
        self.bytes = 0
        self.passed_over = False


def room_left(waiting: Collection[Pending], bound: int) -> Room:
    """Return whether more than what waits in all slots together may wait."""
    if sum(pending.bytes for pending in waiting) < bound:
        return Room.LEFT
    return Room.STUCK if all(p.passed_over for p in waiting if p.bytes) else Room.FULL


def _latest(versions: list[_Version], covers: Covers | None) -> _Version | None:
    covered = (v for v in reversed(versions) if covers is None or v.place is None or covers(v.place))
    return next(covered, None)


def _size(key: bytes, version: _Version) -> int:
    return len(key) + len(version.value or b"")


def _in_range(key: bytes, lo: bytes, hi: bytes | None) -> bool:
    return lo <= key and (hi is None or key < hi)


class OwnedState:
    """One slot's state during one time of owning it. Thread safe.

    Attributes:
        slot: which slot.
        marker: None until the slot is restored: nothing can have been written before. Set by the follower's
            thread, from then on by the thread that commits.
        error: why it could not be restored.
        gone: released or rewound; every later use is refused.
        restored: changelog records that were read to restore it.
        target: restored when the changelog was read up to this offset; None: not known yet.
        position: up to where it was read.
        pending: what waits for the next commit, above what is in the store; its size may be read unlocked.
    """

    def __init__(self, slot: SlotId, storage: Storage) -> None:
        self.slot = slot
        self.marker: RestoreMarker | None = None
        self.error: KpsplitError | None = None
        self.gone = False
        self.restored = 0
        self.position = 0
        self.target: int | None = None
        self.pending = Pending()
        self._storage = storage
        self._lock = Lock()

    def usable(self) -> OwnedState:
        """Return this state, restored and owned.

        Raises:
            SlotGoneError: it is not owned any more. ConflictError: it is not restored yet.
            KpsplitError: it could not be restored.
        """
        if self.gone:
            raise SlotGoneError(f"the state of {self.slot} is not this process's any more")
        if self.error is not None:
            raise self.error
        if self.marker is None:
            raise ConflictError(f"the state of {self.slot} is being restored", hint="wait until it is ready")
        return self

    def get(self, key: bytes) -> bytes | None:
        """Return the latest value of a key, None if it has none."""
        with self._lock:
            written, value = self.pending.find(key)
        return value if written else self._storage.get(self.slot, key)

    def items(self, lo: bytes, hi: bytes | None, own: Writes) -> Iterator[tuple[bytes, bytes]]:
        """Return values with keys in [lo, hi) in order, as they are now, ``own`` writes above all."""
        with self._lock:
            above = self.pending.within(lo, hi)
            below = self._storage.items(self.slot, lo, hi)
        # A copy: other threads of the unit of work may write to it.
        above.update({k: v for k, v in dict(own).items() if _in_range(k, lo, hi)})
        return _merged(sorted(above.items()), below)

    def add(self, writes: Writes, place: RecordPlace | None = None) -> None:
        """Take writes for the commit that covers the record at a place; None: for the next commit.

        Raises:
            SlotGoneError: the slot is not owned any more; they are dropped.
        """
        with self._lock:
            self.usable()
            self.pending.add(writes, place)

    def cut(self, covers: Covers | None) -> dict[bytes, bytes | None]:
        """Return what a commit takes, see ``Pending.cut``."""
        with self._lock:
            self.usable()
            return self.pending.cut(covers)

    def committed(self, writes: Writes, position: int, now_ms: int) -> None:
        """The changelog has the writes that were cut, before ``position``: now the local store has them too.

        Raises:
            KpsplitError: the local store cannot be written; the slot is to be restored again.
        """
        with self._lock:
            if self.gone or self.marker is None:
                return  # the local copy goes on where its marker says
            if writes:
                marker = RestoreMarker(self.marker.topic_id, position, now_ms)
                self._storage.apply(self.slot, writes, marker)
                self.marker = marker
            self.pending.committed()

    def aborted(self) -> None:
        """The commit came to nothing: what was cut waits again."""
        with self._lock:
            self.pending.aborted()

    def leave(self) -> None:
        """The slot is not owned any more, or is to be restored anew: what waits is dropped."""
        with self._lock:
            self.gone = True
            self.pending.clear()


def _merged(
    above: list[tuple[bytes, bytes | None]], below: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield two ordered sequences as one; ``above`` wins, None there hides what is below."""
    lower = next(below, None)
    for key, value in above:
        while lower is not None and lower[0] < key:
            yield lower
            lower = next(below, None)
        if lower is not None and lower[0] == key:
            lower = next(below, None)
        if value is not None:
            yield key, value
    if lower is not None:
        yield lower
        yield from below


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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        else:
            work.owned.usable()  # a slot that was lost, and came back, is refused as gone
            raise UsageError(
                f"the handler works on a record of {work.slot} and may not write the state of {self.slot}",
                hint="a record of that slot is handled by its owner: send one there",
            )

    def _own_writes(self, owned: OwnedState) -> Writes:
        """Return what the unit of work has written to the slot: this task's, or the one of this view."""
        work = current_work() or self._unit
        return work.written() if work is not None and work.owned is owned else {}
