"""The thread that reads changelogs: it restores slots that were taken, and keeps warm copies of others.

It owns one consumer. While a slot is being restored the warm copies wait. A slot has one writer at a time:
this thread until it is restored, then the thread that commits. Which member keeps a warm copy of which
slot is pure and deterministic.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from threading import Event, Thread

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.state.changelog import Changelogs, check_record, is_end_record
from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import ChangelogFacts, RestoreMarker, Storage, start_from
from kpsplit.errors import (
    FutureVersionError,
    KpsplitError,
    RecordError,
)
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, translate
from kpsplit.kafka.logical_message import headers_of

Place = tuple[str, int]
"""A partition of a changelog."""


def standbys(
    owners: Mapping[SlotId, str], members: Iterable[str], copies: int
) -> dict[SlotId, tuple[str, ...]]:
    """Return which members keep a warm copy of each slot: never its owner, ``copies`` of the others.

    Every member computes the same from the group's assignment alone, without knowing what was before: each
    slot has an order of all members of its own (by a hash of both names), and takes the first in it. When a
    member comes or goes, only copies that it takes or had are moved.

    Args:
        owners: the owner of each slot.
        members: of the group, by a name that lasts (``group.instance.id``, else the member id).
        copies: of each slot besides its owner's; fewer if there are not so many members.
    """
    everyone = sorted(set(members))
    placed = {}
    for slot, owner in owners.items():
        ranked = sorted(everyone, key=lambda member: _rank(member, slot))
        placed[slot] = tuple(member for member in ranked if member != owner)[: max(copies, 0)]
    return placed


def _rank(member: str, slot: SlotId) -> bytes:
    return hashlib.blake2b(f"{member}\0{slot}".encode(), digest_size=8).digest()


@dataclass(slots=True)
class Copy:
    """A slot that is followed: restored for its owner, or kept warm. The follower's thread owns it.

    Attributes:
        slot: which slot.
        owned: the state that waits for it; None: a warm copy.
        place: its changelog partition.
        marker: what is stored.
        target: restored when ``position`` has reached it: then it has all that there was at ``asked_ms``.
        ends_written: at ``target`` stands a record of ours that only shows the end; it counts as read.
        position: every changelog record before it was read; ``waiting`` is not stored yet.
        at_end: the end of the log was seen since the marker was stored.
        end: the high watermark that the client heard of last; None: of none yet.
    """

    slot: SlotId
    owned: OwnedState | None
    place: Place
    marker: RestoreMarker
    target: int
    asked_ms: int
    ends_written: bool = False
    position: int = field(init=False)
    at_end: bool = False
    end: int | None = None
    waiting: dict[bytes, bytes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.position = 0
        self.passed(self.marker.position)

    @property
    def restored(self) -> bool:
        """Return whether everything is here that was in the changelog when the slot was taken."""
        return self.position >= self.target

    @property
    def lag(self) -> int | None:
        """Return how many records it lacks at most; None: not known yet."""
        return None if self.end is None else max(0, self.target - self.position, self.end - self.position)

    def take(self, key: bytes, value: bytes | None, offset: int) -> None:
        self.waiting[key] = value
        self.passed(offset + 1)

    def passed(self, position: int) -> None:
        """Everything before that offset was read."""
        self.position = max(self.position, position)
        if self.ends_written and self.position == self.target:
            self.position += 1

    def saw_end(self, position: int) -> None:
        self.passed(position)
        self.at_end = True

    def worth_storing(self, now_ms: int, every_ms: int) -> bool:
        """Return whether the stored marker is out of date, by offset or by time."""
        return self.position != self.marker.position or (
            self.at_end and now_ms - self.marker.as_of_ms >= every_ms
        )

    def next_marker(self, now_ms: int) -> RestoreMarker:
        """Return the marker that counts what was read; its time is moved on as far as it is complete."""
        as_of = self.marker.as_of_ms
        if self.restored:
            as_of = max(as_of, self.asked_ms)
        if self.at_end:
            as_of = max(as_of, now_ms)
        return replace(self.marker, position=self.position, as_of_ms=as_of)


log = logging.getLogger(__name__)

READ_SECONDS = 0.05
IDLE_SECONDS = 0.5
HEAR_SECONDS = 0.25
RETRY_SECONDS = 0.5
OPEN_SECONDS = 20.0
BATCH = 1000
BUFFER_KBYTES = 16_384
NOTE_TIME_MS = 60_000
"""How often the stored time of a warm copy to which nothing comes is moved on."""


class Follower:
    """Reads changelogs into the local store. ``follow`` and ``leave`` may be called from any thread.

    Attributes:
        counts: records restored, records followed, garbage, and ``wiped-<reason>`` per slot wiped.
        last_error: what went wrong last, None if nothing did.
    """

    def __init__(self, storage: Storage, connection: Connection, group: str) -> None:
        self.counts: Counter[str] = Counter()
        self.last_error: KpsplitError | None = None
        self._storage = storage
        self._changelogs = Changelogs(connection, group)
        self._consumer = connection.open_reader(
            "state", auto_offset_reset="error", queued_max_messages_kbytes=BUFFER_KBYTES
        )
        self._orders: deque[tuple[SlotId, OwnedState | None, bool]] = deque()
        self._opening: dict[SlotId, OwnedState | None] = {}
        self._open_at = 0.0
        self._copies: dict[Place, Copy] = {}
        self._paused: set[Place] = set()
        self._ends_at = self._hear_at = 0.0
        self._wake = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="kpsplit-state", daemon=True)
        self._thread.start()

    def follow(self, slot: SlotId, owned: OwnedState | None) -> None:
        """Restore a slot for its owner, or (None) keep a warm copy of it."""
        self._orders.append((slot, owned, True))
        self._wake.set()

    def leave(self, slot: SlotId) -> None:
        """Stop following a slot; what was stored of it stays."""
        self._orders.append((slot, None, False))
        self._wake.set()

    def following(self) -> set[SlotId]:
        """Return the slots that are followed, or will be; not one that was given up because of an error."""
        orders = list(self._orders)  # first: a slot goes from there to what is opened, and on to the copies
        found = {*list(self._opening), *(copy.slot for copy in list(self._copies.values()))}
        for slot, _, wanted in orders:
            (found.add if wanted else found.discard)(slot)
        return found

    def lags(self) -> dict[SlotId, int | None]:
        """Return what is followed, and how many records each copy lacks; None: not known yet."""
        lags: dict[SlotId, int | None] = dict.fromkeys(self.following())
        copies = list(self._copies.values())
        return {**lags, **{copy.slot: copy.lag for copy in copies if copy.slot in lags}}

    def warm(self) -> dict[SlotId, int]:
        """Return the warm copies that have reached the end of their changelog once, with their positions."""
        copies = list(self._copies.values())
        return {c.slot: c.position for c in copies if c.owned is None and c.restored}

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._consumer.close()
            self._changelogs.close()

    def _step(self) -> None:
        try:
            self._obey()
            self._open()
            self._read()
            self._note_time()
        except KpsplitError as error:
            self._note(error)
            self._wake.wait(RETRY_SECONDS)
        except Exception as error:  # the thread must live: owners wait for it
            log.exception("kpsplit: internal error in the state store")
            self._fail_everything(KpsplitError(f"internal error: {type(error).__name__}: {error}"))

    def _obey(self) -> None:
        self._wake.clear()
        left = set()
        while self._orders:
            slot, owned, wanted = self._orders[0]
            self._opening.pop(slot, None)
            if wanted:
                self._opening[slot] = owned
                self._open_at = 0.0
            self._orders.popleft()  # now that it is seen elsewhere: see ``following``
            left.add(slot)
        self._drop(left)  # last: if it raises, whoever waits for the slots hears of it

    def _open(self) -> None:
        """Find out where the slots that are new begin; those that owners wait for first."""
        if not self._opening or monotonic() < self._open_at:
            return
        for group in _groups(self._opening):
            if self._orders or self._stopping.is_set():
                return
            try:
                self._open_group(group)
            except KpsplitError as error:
                if error.retriable:
                    self._note(error)
                    self._open_at = monotonic() + RETRY_SECONDS
                    continue
                for slot in group:
                    self._fail(self._opening.pop(slot, None), error)

    def _open_group(self, group: list[SlotId]) -> None:
        now = _now_ms()
        owned = any(self._opening[slot] is not None for slot in group)
        facts = self._changelogs.facts(group, Deadline(OPEN_SECONDS), owned=owned)
        begun = []
        for slot in group:  # forgotten after what may fail: the exception reaches what waits for the slot
            copy = self._begin(slot, self._opening[slot], facts[slot], now)
            if self._is_whole(copy):
                del self._opening[slot]
            else:
                begun.append(copy)
        self._assign(begun)
        for copy in begun:
            del self._opening[copy.slot]

    def _begin(self, slot: SlotId, owned: OwnedState | None, facts: ChangelogFacts, now: int) -> Copy:
        stored = self._storage.marker(slot)
        marker, wiped = start_from(stored, facts, now)
        if marker is not stored:
            self._storage.wipe(slot, marker)
        if wiped:
            self.counts[f"wiped-{wiped}"] += 1
            log.warning("kpsplit: state of %s is restored from the start: %s", slot, wiped)
        return Copy(slot, owned, self._place(slot), marker, facts.high, now, facts.ends_written)

    def _place(self, slot: SlotId) -> Place:
        return self._changelogs.name(slot), slot.number

    def _is_whole(self, copy: Copy) -> bool:
        """Return whether an owner has nothing to wait for: then it has the slot."""
        if (owned := copy.owned) is None:
            return False
        owned.position, owned.target = copy.position, copy.target
        if copy.restored:
            marker = copy.next_marker(copy.asked_ms)
            self._storage.apply(copy.slot, {}, marker)
            owned.marker = marker  # from here on it is the owner's to write
        return copy.restored

    def _assign(self, copies: Collection[Copy]) -> None:
        """Read slots, all with one call: the client answers each call when its other threads have acted."""
        if copies:
            self._copies |= {copy.place: copy for copy in copies}
            self._consumer.incremental_assign([TopicPartition(*c.place, c.position) for c in copies])
            self._let_owners_first()

    def _drop(self, slots: Collection[SlotId]) -> None:
        places = {self._place(slot) for slot in slots} & self._copies.keys()
        gone = {place for place in places if self._copies[place].slot in slots}  # not another division's
        if gone:
            for place in gone:
                del self._copies[place]
            self._paused -= gone
            self._consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            self._let_owners_first()

    def _let_owners_first(self) -> None:
        """Warm copies are not read while a slot is restored."""
        waits = any(copy.owned is not None for copy in self._copies.values())
        wanted = {c.place for c in self._copies.values() if c.owned is None} if waits else set()
        if wanted - self._paused:
            self._consumer.pause([TopicPartition(*place) for place in wanted - self._paused])
        if self._paused - wanted:
            self._consumer.resume([TopicPartition(*place) for place in self._paused - wanted])
        self._paused = wanted

    def _read(self) -> None:
        if not self._copies:
            self._wake.wait(RETRY_SECONDS if self._opening else IDLE_SECONDS)
            return
        first = self._consumer.poll(READ_SECONDS)
        if first is not None:
            for message in [first, *self._consumer.consume(BATCH - 1, 0)]:
                self._take(message)
        self._store()
        self._hear_ends()

    def _hear_ends(self) -> None:
        """Note the high watermarks in the latest answers to fetches of warm copies; no broker is asked."""
        if monotonic() < self._hear_at:  # in this thread: to ask while another closes ends the process
            return
        self._hear_at = monotonic() + HEAR_SECONDS
        for copy in self._copies.values():
            if copy.owned is None:
                with suppress(KafkaException):  # the client does not know the partition yet
                    heard = self._consumer.get_watermark_offsets(TopicPartition(*copy.place), cached=True)
                    copy.end = heard[1] if heard and heard[1] >= 0 else copy.end

    def _note_time(self) -> None:
        """Find out which warm copies to which nothing comes are complete still, while no owner waits.

        The client reports the end of a log once. A copy whose time stands still would be thrown away after
        a restart, as one that may have missed tombstones.
        """
        now = _now_ms()
        waits = self._opening or any(copy.owned is not None for copy in self._copies.values())
        old = [copy for copy in self._copies.values() if now - copy.marker.as_of_ms >= NOTE_TIME_MS]
        if waits or not old or monotonic() < self._ends_at:
            return
        self._ends_at = monotonic() + NOTE_TIME_MS / 1000
        ends = self._changelogs.ends([copy.place for copy in old])
        for copy in old:
            if copy.position >= ends.get(copy.place, inf):
                copy.saw_end(copy.position)

    def _take(self, message: Message) -> None:
        copy = self._copies.get((message.topic() or "", message.partition() or 0))
        if copy is None:
            return  # of a partition that was left a moment ago
        error = message.error()
        if error is not None:
            self._take_error(copy, error, message.offset() or 0)
            return
        key, offset, headers = message.key(), message.offset() or 0, headers_of(message)
        if is_end_record(key, headers):
            copy.passed(offset + 1)
            return
        try:
            check_record(copy.slot, key, headers)
        except KpsplitError as refusal:
            if isinstance(refusal, RecordError) and not isinstance(refusal, FutureVersionError):
                self.counts["garbage"] += 1
                copy.passed(offset + 1)
            else:
                self._give_up(copy, refusal)
        else:
            self.counts["followed" if copy.owned is None else "restored"] += 1
            copy.take(key or b"", message.value(), offset)
            if copy.owned is not None:
                copy.owned.restored += 1

    def _take_error(self, copy: Copy, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            copy.saw_end(offset)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._opening[copy.slot] = copy.owned  # the log changed under us: look again where to begin
            self._drop([copy.slot])
        elif error.code() not in TRANSIENT_READS:
            self._give_up(copy, translate(error, f"read the changelog of {copy.slot}"))

    def _store(self) -> None:
        now = _now_ms()
        unwritten: KpsplitError | None = None
        done: list[tuple[Copy, OwnedState]] = []
        for copy in list(self._copies.values()):
            try:
                self._write(copy, now)
            except KpsplitError as error:
                if copy.owned is not None:
                    self._give_up(copy, error)  # its owner reports it, and has it restored again
                else:
                    unwritten = error
                continue
            if copy.owned is not None:
                copy.owned.position = copy.position
                if copy.restored:
                    done.append((copy, copy.owned))
        self._drop([copy.slot for copy, _ in done])
        for copy, owned in done:
            owned.marker = copy.marker  # from here on it is the owner's to write
        if unwritten is not None:
            raise unwritten

    def _write(self, copy: Copy, now: int) -> None:
        if copy.worth_storing(now, NOTE_TIME_MS):
            marker = copy.next_marker(now)
            self._storage.apply(copy.slot, copy.waiting, marker)
            copy.marker, copy.waiting, copy.at_end = marker, {}, False

    def _give_up(self, copy: Copy, error: KpsplitError) -> None:
        self._drop([copy.slot])
        self._fail(copy.owned, error)

    def _fail(self, owned: OwnedState | None, error: KpsplitError) -> None:
        self._note(error)
        if owned is not None:
            owned.error = error

    def _fail_everything(self, error: KpsplitError) -> None:
        """Tell every owner that waits. What raised may raise again: nothing here depends on it."""
        waiting = [*self._opening.values(), *(copy.owned for copy in self._copies.values())]
        self._opening.clear()
        self._copies.clear()
        self._paused.clear()
        for owned in waiting:
            self._fail(owned, error)
        with suppress(KafkaException):
            self._consumer.unassign()

    def _note(self, error: KpsplitError) -> None:
        if self.last_error is None or self.last_error.message != error.message:
            log.warning("kpsplit: state store: %s", error)
        self.last_error = error


def _groups(opening: Mapping[SlotId, OwnedState | None]) -> list[list[SlotId]]:
    """Return the slots that can be asked about at once, those that owners wait for first."""
    groups: dict[tuple[bool, str, int], list[SlotId]] = {}
    for slot, owned in opening.items():
        groups.setdefault((owned is None, slot.topic, slot.slots), []).append(slot)
    return [groups[name] for name in sorted(groups)]


def _now_ms() -> int:
    return int(time.time() * 1000)
