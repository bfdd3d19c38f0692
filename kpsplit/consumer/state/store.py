"""The state store: one local RocksDB per process, shared by its workers, restored from changelogs."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from confluent_kafka import Message

from kpsplit.consumer.state.assignment import standbys
from kpsplit.consumer.state.committing import ChangelogCommit, Part, PlainWriter
from kpsplit.consumer.state.follower import Follower
from kpsplit.consumer.state.owned import OwnedState, SlotGoneError
from kpsplit.consumer.state.slots import Slot, SlotId, changelog_topic
from kpsplit.consumer.state.storage import Storage
from kpsplit.consumer.state.views import BYTES, SlotView
from kpsplit.consumer.state.work import Work, current_work
from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.slots import slot_index

MAX_PENDING_BYTES = 64 << 20
KEEP_SECONDS = 7 * 86_400.0

_live: weakref.WeakSet[StateStore] = weakref.WeakSet()


class StateStore:
    """The state of the slots that this process owns (design, section 10). Thread safe.

    A handler reads and writes the state of its record's slot. Writes become durable with the commit that
    covers the record: they go to the group's changelog, and behind it to the local store. When a slot moves,
    its new owner reads from the changelog only what it does not hold already. ``docs/state.md`` says what is
    promised.

    Implements ``hooks.StateHooks`` for the engine.

    Args:
        directory: for this process alone; made if it is missing.
        config: the application's client configuration; the connection is taken from it, and ``group.id``.
        group: the consumer group, if ``config`` does not name it.
        standbys: how many other members keep a warm copy of each slot.
        max_pending_bytes: of writes that wait for a commit; above it ``wants_commit`` says so.
        keep_seconds: how long the local state of slots that do not come back is kept.

    Raises:
        ConflictError: another process uses the directory.
        ConfigurationError: no group, or the directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        group: str | None = None,
        standbys: int = 0,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._group = group or str(config.get("group.id") or "")
        if not self._group:
            raise ConfigurationError("state belongs to a consumer group", hint="set group.id")
        if standbys < 0:
            raise ConfigurationError(f"standbys is {standbys}", hint="give 0 or more")
        connection = Connection.of_application(config)
        self._standbys = standbys
        self._max_pending_bytes = max_pending_bytes
        self._lock = Lock()
        self._owned: dict[SlotId, OwnedState] = {}
        self._divisions: dict[tuple[str | None, int | None], int] = {}
        self._warm: frozenset[SlotId] = frozenset()
        self._unusable: KpsplitError | None = None
        self._storage = Storage(Path(directory), self._group)
        self._storage.forget_older(int((time.time() - keep_seconds) * 1000))
        self._writer = PlainWriter(connection)
        self._follower = Follower(self._storage, connection, self._group)
        _live.add(self)

    def __enter__(self) -> StateStore:
        """Return the store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # -- for handlers ------------------------------------------------------------------------------

    def slot(self, slot: Slot | SlotId) -> SlotView[bytes, bytes]:
        """Return the state of a slot, keys and values as bytes; ``typed`` on it gives other types."""
        return SlotView(_id(slot), self._find, BYTES, BYTES)

    def for_record(self, message: Message) -> SlotView[bytes, bytes]:
        """Return the state of the slot of a record that was handed out by this process's consumer.

        Raises:
            SlotGoneError: the record's slot is not owned by this process.
            UsageError: it has no key, its partition has several slots, and no unit of work says which.
        """
        work = current_work()
        if work is not None:
            return self.slot(work.slot)
        slot = self._slot_of(message)
        self._belonging(slot)
        return self.slot(slot)

    def work(self, slot: Slot | SlotId) -> Work:
        """Return a unit of work for one call of a handler on records of a slot; see Work."""
        return Work(self._find(_id(slot)))

    def flush(self, deadline: Deadline) -> None:
        """Write all that waits to the changelogs, outside of any commit of positions.

        Raises:
            ConflictError: a commit is under way. KpsplitError: it is not acknowledged; it waits on.
        """
        self.before_commit(list(self._owned)).flush(deadline)

    # -- for the engine: hooks.StateHooks ------------------------------------------------------------

    def taken(self, slots: Iterable[Slot | SlotId]) -> None:
        """Begin to restore slots that were assigned; those that are owned already stay as they are."""
        with self._lock:
            for slot in map(_id, slots):
                if slot not in self._owned:
                    self._divisions[slot.topic, slot.partition] = slot.slots
                    self._restore(slot)

    def ready(self, slot: Slot | SlotId) -> bool:
        """Tell whether a slot is restored.

        Raises:
            KpsplitError: it cannot be.
        """
        owned = self._owned.get(_id(slot))
        if owned is not None and owned.error is not None:
            raise owned.error
        return owned is not None and owned.marker is not None

    def before_commit(
        self, slots: Iterable[Slot | SlotId], works: Collection[object] | None = None
    ) -> ChangelogCommit:
        """Take what waits of slots into a commit.

        Raises:
            ConflictError: a commit of one of them is under way. SlotGoneError: one is not owned.
        """
        owned = [self._belonging(_id(slot)) for slot in slots]
        return self._commit([one.usable() for one in owned if not one.restoring], works)

    def rewind(self, slots: Iterable[Slot | SlotId]) -> None:
        """Drop what waits of slots, and restore them to what the changelog says."""
        for slot in map(_id, slots):
            owned = self._owned.get(slot)
            if owned is not None:
                self._rewind(owned)

    def released(self, slots: Iterable[Slot | SlotId]) -> None:
        """Own slots no more: what waits is dropped; what is stored stays, for when they come back."""
        with self._lock:
            for slot in map(_id, slots):
                owned = self._owned.pop(slot, None)
                if owned is None:
                    continue
                owned.leave()
                if slot in self._warm:
                    self._follower.follow(slot, None)
                else:
                    self._follower.leave(slot)

    def assigned(self, members: Mapping[str, Iterable[Slot | SlotId]], me: str) -> None:
        """Follow the slots of which this member is to keep a warm copy, by the group's whole assignment."""
        owners = {_id(slot): member for member, slots in members.items() for slot in slots}
        placed = standbys(owners, [*members, me], self._standbys)
        mine = frozenset(slot for slot, keepers in placed.items() if me in keepers)
        with self._lock:
            for slot in mine - self._warm:
                if slot not in self._owned:
                    self._follower.follow(slot, None)
            for slot in self._warm - mine:
                if slot not in self._owned:
                    self._follower.leave(slot)
            self._warm = mine

    def wants_commit(self) -> bool:
        """Tell whether more than ``max_pending_bytes`` wait."""
        return self._pending_bytes() > self._max_pending_bytes

    # -- the rest ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what the store does: progress per slot, warm copies, counters since it was opened."""
        owned = list(self._owned.values())
        return {
            "slots": {str(o.slot): _progress(o) for o in owned},
            "standbys": {str(slot): position for slot, position in self._follower.warm().items()},
            "pending_bytes": self._pending_bytes(),
            "counts": dict(self._follower.counts),
            "last_error": None if self._follower.last_error is None else str(self._follower.last_error),
        }

    def close(self) -> None:
        """Let go of the directory. What waits for a commit is dropped, as the commit never came."""
        with self._lock:
            if self._unusable is not None:
                return
            self._unusable = UsageError("the state store is closed")
            for owned in self._owned.values():
                owned.leave()
            self._owned.clear()
        self._follower.close()
        self._storage.close()

    def _find(self, slot: SlotId) -> OwnedState:
        return self._belonging(slot).usable()

    def _belonging(self, slot: SlotId) -> OwnedState:
        owned = self._owned.get(slot)
        if owned is None:
            if self._unusable is not None:
                raise self._unusable
            raise SlotGoneError(f"{slot} is not owned by this process", hint="use the slot of the record")
        return owned

    def _slot_of(self, message: Message) -> SlotId:
        topic, partition, key = message.topic(), message.partition(), message.key()
        slots = self._divisions.get((topic, partition))
        if topic is None or partition is None or slots is None:
            raise SlotGoneError(f"no slot of {topic}/{partition} is owned by this process")
        if slots == 1:
            return SlotId(topic, partition, 0, 1)
        if key is None:
            raise UsageError(
                "a record without a key does not tell its slot", hint="use store.slot(), or a unit of work"
            )
        return SlotId(topic, partition, slot_index(key_hash(key), slots), slots)

    def _restore(self, slot: SlotId) -> None:
        if self._unusable is not None:
            raise self._unusable
        owned = self._owned[slot] = OwnedState(slot, self._storage)
        self._follower.follow(slot, owned)

    def _rewind(self, owned: OwnedState) -> None:
        with self._lock:
            owned.leave()
            if self._owned.get(owned.slot) is owned:
                self._restore(owned.slot)

    def _commit(self, owned: list[OwnedState], works: Collection[object] | None) -> ChangelogCommit:
        wanted = None if works is None else frozenset(works)
        commit = ChangelogCommit(self._writer, self._rewind)
        try:
            for one in owned:
                commit.add(Part(one, changelog_topic(self._group, one.slot.topic), one.cut(wanted)))
        except KpsplitError:
            commit.aborted()
            raise
        return commit

    def _pending_bytes(self) -> int:
        return sum(owned.pending_bytes for owned in list(self._owned.values()))

    def _forked(self) -> None:
        self._lock = Lock()
        self._owned = {}
        self._unusable = KpsplitError(
            "this StateStore was opened before fork() and cannot be used in the child",
            hint="a state store serves the threads of one process",
        )


def _id(slot: Slot | SlotId) -> SlotId:
    return slot if isinstance(slot, SlotId) else SlotId.of(slot)


def _progress(owned: OwnedState) -> dict[str, Any]:
    return {
        "ready": owned.marker is not None and owned.error is None,
        "position": owned.position,
        "target": owned.target,
        "restored": owned.restored,
        "pending_bytes": owned.pending_bytes,
        "error": None if owned.error is None else str(owned.error),
    }


def _after_fork_in_child() -> None:
    for store in list(_live):
        store._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
