"""The state store: one local RocksDB per process, shared by its workers, restored from changelogs."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from confluent_kafka import Message

from kpsplit.clock import Deadline
from kpsplit.consumer.commit.payload import place_of
from kpsplit.consumer.commit.writes import CommitCoverage, RecordPlace
from kpsplit.consumer.state.changelog import ChangelogCommit, Part, PlainWriter
from kpsplit.consumer.state.follower import Follower, standbys
from kpsplit.consumer.state.slot_state import (
    BYTES,
    OwnedState,
    SlotGoneError,
    SlotView,
    Work,
    WorkAttempt,
    current_work,
)
from kpsplit.consumer.state.slots import JoinPolicy, SlotId
from kpsplit.consumer.state.storage import Storage
from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import slot_index
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import changelog_topic

MAX_PENDING_BYTES = 64 << 20
KEEP_SECONDS = 7 * 86_400.0
WARM_LAG = 1000

log = logging.getLogger(__name__)

_live: weakref.WeakSet[StateStore] = weakref.WeakSet()


class StateStore:
    """The state of the slots that this process owns (protocol, section 10). Thread safe.

    A handler reads and writes the state of its record's slot. Writes become durable with the commit that
    covers the record: they go to the group's changelog, and after it to the local store. When a slot moves,
    its new owner reads from the changelog only what it does not hold already. ``docs/state.md`` says what is
    promised.

    Implements ``slots.StateHooks`` for the engine.

    Args:
        directory: for this process alone; made if it is missing.
        config: a client configuration, for a store without a Consumer; else the Consumer's connection and
            group are used, and the directory is opened when the Consumer is made.
        group: the consumer group, if ``config`` does not name it.
        standbys: how many other members keep a warm copy of each slot.
        warm_seconds: how long, at most, a member that is about to join its group follows the changelogs of
            the group's slots before. The other members go on with the slots until then. 0: it joins at once.
        warm_lag: a copy is warm when it lacks so many changelog records at most.
        max_pending_bytes: of writes that wait for a commit; above it ``wants_commit`` says so.
        keep_seconds: how long the local state of slots that do not come back is kept.

    Raises:
        ConflictError: another process uses the directory.
        ConfigurationError: no group, or the directory cannot be used. Without ``config`` the Consumer raises
            these two.
    """

    _connection: Connection
    _storage: Storage
    _writer: PlainWriter
    _follower: Follower

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        standbys: int = 0,
        warm_seconds: float = 0.0,
        warm_lag: int = WARM_LAG,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        if standbys < 0:
            raise ConfigurationError(f"standbys is {standbys}", hint="give 0 or more")
        if warm_seconds < 0 or warm_lag < 0:
            raise ConfigurationError(
                f"warm_seconds is {warm_seconds}, warm_lag is {warm_lag}", hint="give 0 or more"
            )
        self._directory = Path(directory)
        self._group = group or str((config or {}).get("group.id") or "")
        self._standbys = standbys
        self._join_policy = JoinPolicy(warm_seconds, warm_lag)
        self._max_pending_bytes = max_pending_bytes
        self._keep_seconds = keep_seconds
        self._lock = Lock()
        self._owned: dict[SlotId, OwnedState] = {}
        self._divisions: dict[tuple[str | None, int | None], int] = {}
        self._warm: frozenset[SlotId] = frozenset()
        self._opened = False
        self._in_use = False
        self._broken: set[SlotId] = set()
        self._unusable: KpsplitError | None = None
        _live.add(self)
        if config is not None:
            self._open(Connection.of_application(config))

    def _open(self, connection: Connection) -> None:
        """Take the directory, and begin to follow changelogs."""
        if not self._group:
            raise ConfigurationError("state belongs to a consumer group", hint="set group.id")
        storage = Storage(self._directory, self._group)
        try:
            storage.forget_older(int((time.time() - self._keep_seconds) * 1000))
            self._follower = Follower(storage, connection, self._group)
        except BaseException:
            storage.close()  # else the directory stays locked, and the next try blames another process
            raise
        self._connection = connection
        self._storage = storage
        self._writer = PlainWriter(connection)
        self._opened = True

    def __enter__(self) -> StateStore:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these from now on, with every client of the store; from any thread.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed.
            UsageError: the store has no connection yet: no configuration, and no Consumer.
        """
        if not self._opened:
            raise UsageError("the state store has no connection yet", hint="give it to a Consumer first")
        self._connection.set_sasl_credentials(username, password)

    # -- for handlers ------------------------------------------------------------------------------

    def slots(self) -> list[SlotId]:
        """Return the slots whose state this process has and keeps up to date: owned, and restored."""
        owned = sorted(self._owned.items(), key=lambda item: str(item[0]))
        return [slot for slot, state in owned if _progress(state)["ready"]]

    def slot(self, slot: OwnedSlot | SlotId) -> SlotView[bytes, bytes]:
        """Return the state of a slot, keys and values as bytes; ``typed`` on it gives other types."""
        return SlotView(SlotId.of(slot), self._find, BYTES, BYTES)

    def for_record(self, message: Message) -> SlotView[bytes, bytes]:
        """Return the state of the slot of a record that was handed out by this process's consumer.

        What is written through it goes along with the commit that covers the record.

        Raises:
            SlotGoneError: the record's slot is not owned by this process, or not any more: its owner will be
                handed out the record again.
            UsageError: the key was deserialised, and no unit of work says which slot it is.
        """
        work = current_work()
        if work is not None:
            return SlotView(work.slot, self._find, BYTES, BYTES, work=work)
        slot, place = self._slot_of(message)
        self._belonging(slot)
        return SlotView(slot, self._find, BYTES, BYTES, place)

    def work(self, what: Message | OwnedSlot | SlotId) -> Work:
        """Return a unit of work on a record, or on a slot; see Work. ``run()`` makes one for each call.

        Raises:
            SlotGoneError, UsageError: as ``for_record``.
        """
        if isinstance(what, Message):
            slot, place = self._slot_of(what)
            return Work(self._find(slot), place)
        return Work(self._find(SlotId.of(what)))

    def flush(self, deadline: Deadline) -> None:
        """Write all that waits to the changelogs, outside of any commit of positions.

        For a store without a Consumer: a Consumer's commits write its state.

        Raises:
            UsageError: a Consumer uses the store. ConflictError: a commit is under way. KpsplitError: it is
                not acknowledged; it waits on.
        """
        if self._in_use:
            raise UsageError("the state is written by the commits of the Consumer", hint="call its commit()")
        self.before_commit(list(self._owned)).flush(deadline)

    # -- for the engine: slots.StateHooks ------------------------------------------------------------

    @property
    def standbys(self) -> int:
        """How many other members keep a warm copy of each slot."""
        return self._standbys

    @property
    def warm_seconds(self) -> float:
        """How long a member may wait for warm copies before it joins its group."""
        return self._join_policy.seconds

    def bind(self, group: str, connection: Connection) -> None:
        """Serve a Consumer of a group from now on; a store without a configuration uses its connection.

        Raises:
            ConfigurationError: the store is another group's, or the directory cannot be used.
            UsageError: another Consumer uses it, or it is closed. ConflictError: another process uses the
                directory.
        """
        if self._unusable is not None:
            raise self._unusable
        if group != (self._group or group):
            raise ConfigurationError(
                f"the state store is of group {self._group!r}, the Consumer of {group!r}",
                hint="give both the same group.id",
            )
        with self._lock:
            if self._in_use:
                raise UsageError(
                    "another Consumer uses the state store",
                    hint="share the Consumer, run() has workers; or give each its own directory",
                )
            if not self._opened:
                self._group = group
                self._open(connection)
            self._in_use = True

    def unbind(self) -> None:
        """The Consumer is closed; another may use the store."""
        self._in_use = False

    def user_changed(self, before: str | None, username: str, password: str) -> None:
        """Use the Consumer's new SASL credentials, unless the store logs in as another user."""
        if self._connection.get("sasl.username") == before:
            self._connection.set_sasl_credentials(username, password)

    def taken(self, slots: Iterable[OwnedSlot | SlotId]) -> None:
        """Begin to restore slots that were assigned; those that are owned already stay as they are."""
        with self._lock:
            for slot in map(SlotId.of, slots):
                if slot not in self._owned:
                    self._divisions[slot.topic, slot.partition] = slot.slots
                    self._restore(slot)

    def ready(self, slot: OwnedSlot | SlotId) -> bool:
        """Return whether a slot is restored; one that lost writes is not until it is taken anew.

        Raises:
            KpsplitError: it cannot be.
        """
        owned = self._owned.get(SlotId.of(slot))
        if owned is not None and owned.error is not None:
            raise owned.error
        return owned is not None and owned.marker is not None and owned.slot not in self._broken

    def attempt(self, slot: OwnedSlot | SlotId, place: RecordPlace) -> WorkAttempt:
        """Return the unit of one try of a handler on the record at a place.

        Raises:
            KpsplitError: the slot is not owned, or not restored.
        """
        return WorkAttempt(self._find(SlotId.of(slot)), place)

    def waits(self, slot: OwnedSlot | SlotId) -> bool:
        """Return whether something of a slot waits for a commit."""
        owned = self._owned.get(SlotId.of(slot))
        return owned is not None and bool(owned.pending)

    def before_commit(
        self,
        slots: Iterable[OwnedSlot | SlotId],
        covers: Mapping[PhysicalPartition, CommitCoverage] | None = None,
    ) -> ChangelogCommit:
        """Take what waits of slots into a commit: what belongs to records that it covers, or to none.

        Raises:
            ConflictError: a commit of one of them is under way. SlotGoneError: one is not owned.
        """
        owned = [self._belonging(SlotId.of(slot)) for slot in slots]
        restored = [one.usable() for one in owned if one.marker is not None]
        commit = ChangelogCommit(self._writer, self._rewind)
        try:
            for one in restored:
                writes = one.cut(None if covers is None else covers[one.slot.parent].holds)
                commit.parts.append(Part(one, changelog_topic(self._group, one.slot.topic), writes))
        except BaseException:  # a slot whose commit never ends could not be committed again
            commit.aborted()
            raise
        return commit

    def released(self, slots: Iterable[OwnedSlot | SlotId]) -> None:
        """Own slots no more: what waits is dropped; what is stored stays, for when they come back."""
        with self._lock:
            for slot in map(SlotId.of, slots):
                self._broken.discard(slot)
                if (owned := self._owned.pop(slot, None)) is not None:
                    owned.leave()
                    if slot in self._warm:
                        self._follower.follow(slot, None)
                    else:
                        self._follower.leave(slot)

    def joins(self, others: Iterable[OwnedSlot | SlotId] | None, waited: float) -> bool:
        """Return whether a member that waits to join joins now; see ``JoinPolicy``.

        It follows the slots of others until then: which of them it will get is not known. When it has joined,
        ``assigned`` leaves those that it keeps no copy of.
        """
        with self._lock:
            if self._unusable is not None:
                raise self._unusable
            # One that was assigned by hand has its owner, and one writer.
            wanted = None if others is None else frozenset(map(SlotId.of, others)) - self._owned.keys()
            for slot in (wanted or frozenset()) - self._warm:
                self._follower.follow(slot, None)
            self._warm |= wanted or frozenset()
            reason = self._join_policy.reason(wanted, self._follower.lags(), waited)
        if reason:
            level = logging.WARNING if waited >= self.warm_seconds else logging.INFO
            log.log(level, "kpsplit: this member joins its group: %s", reason)
        return bool(reason)

    def assigned(self, members: Mapping[str, Iterable[OwnedSlot | SlotId]], me: str) -> None:
        """Follow the slots of which this member is to keep a warm copy, by the group's whole assignment."""
        owners = {SlotId.of(slot): member for member, slots in members.items() for slot in slots}
        placed = standbys(owners, [*members, me], self._standbys)
        mine = frozenset(slot for slot, keepers in placed.items() if me in keepers)
        with self._lock:
            for slot in mine - self._follower.following() - self._owned.keys():
                self._follower.follow(slot, None)
            for slot in self._warm - mine:
                if slot not in self._owned:
                    self._follower.leave(slot)
            self._warm = mine

    def wants_commit(self) -> bool:
        """Return whether more than ``max_pending_bytes`` wait."""
        return self._pending_bytes() > self._max_pending_bytes

    # -- the rest ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what the store does: progress per slot, warm copies, counters since it was opened."""
        owned = list(self._owned.values())
        follower = self._follower if self._opened else None
        error = follower.last_error if follower else None
        lags = follower.lags() if follower else {}
        return {
            "slots": {str(o.slot): _progress(o) for o in owned},
            "standbys": {str(slot): at for slot, at in follower.warm().items()} if follower else {},
            "lags": {str(slot): lag for slot, lag in lags.items() if slot not in self._owned},
            "pending_bytes": self._pending_bytes(),
            "counts": dict(follower.counts) if follower else {},
            "last_error": None if error is None else str(error),
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
        if self._opened:
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

    def _slot_of(self, message: Message) -> tuple[SlotId, RecordPlace]:
        topic, partition, key = message.topic(), message.partition(), message.key()
        slots = self._divisions.get((topic, partition))
        if topic is None or partition is None or slots is None:
            raise SlotGoneError(f"no slot of {topic}/{partition} is owned by this process")
        if key is not None and not isinstance(key, bytes):
            raise UsageError(
                "the slot of a record cannot be found from a deserialised key",
                hint="read with Consumer and deserialise in the application, or use run()",
            )
        place = place_of(message)
        return SlotId(topic, partition, slot_index(place.hash, slots), slots), place

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
                if self._in_use:  # what waited is gone: the Consumer takes the slot anew, from its commit
                    self._broken.add(owned.slot)

    def _pending_bytes(self) -> int:
        return sum(owned.pending.bytes for owned in list(self._owned.values()))

    def _forked(self) -> None:
        self._lock = Lock()
        self._owned = {}
        self._unusable = KpsplitError(
            "this StateStore was opened before fork() and cannot be used in the child",
            hint="a state store serves the threads of one process",
        )


def _progress(owned: OwnedState) -> dict[str, Any]:
    return {
        "ready": owned.marker is not None and owned.error is None,
        "position": owned.position,
        "target": owned.target,
        "restored": owned.restored,
        "pending_bytes": owned.pending.bytes,
        "error": None if owned.error is None else str(owned.error),
    }


def _after_fork_in_child() -> None:
    for store in list(_live):
        store._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
