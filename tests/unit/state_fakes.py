"""A state store without brokers and disk: real units of work and real waiting writes above dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kpsplit.consumer.commit.writes import CommitCoverage, RecordPlace
from kpsplit.consumer.state.slot_state import OwnedState, SlotGoneError, WorkAttempt, current_work
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker
from kpsplit.errors import KpsplitError
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition

Contents = dict[bytes, bytes]


class Disk:
    """What the changelog and the local store have, as one."""

    def __init__(self) -> None:
        self.contents: dict[SlotId, Contents] = {}
        self.broken = False

    def get(self, slot: SlotId, key: bytes) -> bytes | None:
        return self.contents.get(slot, {}).get(key)

    def items(self, slot: SlotId, lo: bytes, hi: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self.contents.get(slot, {}).items()))

    def apply(self, slot: SlotId, writes: Mapping[bytes, bytes | None], marker: RestoreMarker) -> None:
        if self.broken:
            raise KpsplitError("the disk is full")
        self.contents.setdefault(slot, {}).update({k: v for k, v in writes.items() if v is not None})


class Commit:
    """Implements ``StateCommit``."""

    def __init__(self, store: Store, parts: list[tuple[OwnedState, dict[bytes, bytes | None]]]) -> None:
        self.parts = parts
        self._store = store

    def write(self, producer: Any, deadline: Any) -> None:
        self._store.told.append("write")

    def flush(self, deadline: Any) -> None:
        self._store.told.append("flush")
        if self._store.flush_error is not None:
            self.aborted()
            raise self._store.flush_error
        self.committed()

    def committed(self) -> None:
        self._store.told.append("committed")
        for owned, writes in self.parts:
            try:
                owned.committed(writes, 1, 0)
            except KpsplitError:
                self._store.rewind(owned)

    def aborted(self) -> None:
        self._store.told.append("aborted")
        for owned, _ in self.parts:
            owned.aborted()


class Store:
    """Implements ``StateHooks``. ``told``: what the engine called; ``withheld``: what is not restored yet."""

    standbys = 0
    warm_seconds = 0.0

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.disk = Disk()
        self.owned: dict[SlotId, OwnedState] = {}
        self.withheld: set[SlotId] = set()
        self.errors: dict[SlotId, KpsplitError] = {}
        self.full = False
        self.flush_error: KpsplitError | None = None
        self.members: dict[str, list[SlotId]] = {}
        self.may_join = False
        """The copies are warm."""
        self.waits_for: list[set[int] | None] = []
        """Of which slots of others the engine asked whether their copies are warm."""

    def bind(self, group: str, connection: object) -> None: ...

    def unbind(self) -> None: ...

    def user_changed(self, before: str | None, username: str, password: str) -> None: ...

    def taken(self, slots: Iterable[OwnedSlot]) -> None:
        for slot in map(SlotId.of, slots):
            self.told.append(("taken", slot.index))
            self._restore(slot)

    def _restore(self, slot: SlotId) -> None:
        self.owned[slot] = OwnedState(slot, self.disk)  # type: ignore[arg-type]

    def ready(self, slot: OwnedSlot) -> bool:
        one = SlotId.of(slot)
        if one in self.errors:
            raise self.errors[one]
        if one in self.owned and one not in self.withheld:
            self.owned[one].marker = self.owned[one].marker or RestoreMarker("id", 0, 0)
            return True
        return False

    def rewind(self, owned: OwnedState) -> None:
        """Restore a slot anew, as the real store does when its disk cannot follow."""
        owned.leave()
        self._restore(owned.slot)
        self.withheld.add(owned.slot)

    def attempt(self, slot: OwnedSlot, place: RecordPlace) -> WorkAttempt:
        owned = self.owned.get(SlotId.of(slot))
        if owned is None:
            raise SlotGoneError("not owned")
        return WorkAttempt(owned.usable(), place)

    def waits(self, slot: OwnedSlot) -> bool:
        owned = self.owned.get(SlotId.of(slot))
        return owned is not None and bool(owned.pending)

    def before_commit(
        self, slots: Iterable[OwnedSlot], covers: Mapping[PhysicalPartition, CommitCoverage] | None = None
    ) -> Commit:
        parts = []
        for slot in slots:
            owned = self.owned[SlotId.of(slot)]
            if owned.marker is not None:
                parts.append((owned, owned.cut(covers[slot.parent].holds if covers else None)))
        return Commit(self, parts)

    def released(self, slots: Iterable[OwnedSlot]) -> None:
        for slot in map(SlotId.of, slots):
            self.told.append(("released", slot.index))
            self.owned.pop(slot).leave()

    def joins(self, others: Iterable[OwnedSlot] | None, waited: float) -> bool:
        self.waits_for.append(None if others is None else {SlotId.of(slot).index for slot in others})
        return self.may_join or waited >= self.warm_seconds or self.waits_for[-1] == set()

    def assigned(self, members: Mapping[str, Iterable[OwnedSlot]], me: str) -> None:
        self.members = {name: sorted(map(SlotId.of, slots)) for name, slots in members.items()}

    def wants_commit(self) -> bool:
        return self.full

    # the test

    def saved(self) -> dict[bytes, int]:
        """The committed counts of all keys."""
        return {
            key: int(value) for contents in self.disk.contents.values() for key, value in contents.items()
        }


def count(owned: OwnedState, key: bytes, place: RecordPlace | None = None) -> None:
    """Count one more for a key: in the unit of work of this thread, or at once."""
    work = current_work()
    before = None if work is None else work.written().get(key)
    after = b"%d" % (int(before or owned.get(key) or 0) + 1)
    if work is None:
        owned.add({key: after}, place)
    else:
        work.write(key, after)
