"""The state of a slot that this process owns: what waits for the next commit, above what is in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.state.marker import RestoreMarker
from kpsplit.consumer.state.pending import Covers, Pending, Writes
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import Storage
from kpsplit.errors import ConflictError, KpsplitError


class SlotGoneError(ConflictError):
    """The slot is not owned by this process (any more), or its state was rewound; nothing was written."""


class OwnedState:
    """One slot's state during one time of owning it. Thread safe.

    Attributes:
        slot: which slot.
        marker: None until the slot is restored.
        error: why it could not be restored.
        gone: released or rewound; every later use is refused.
        restored: changelog records that were read to restore it.
        target: restored when the changelog was read up to this offset; None: not known yet.
        position: up to where it was read.
    """

    def __init__(self, slot: SlotId, storage: Storage) -> None:
        self.slot = slot
        self.marker: RestoreMarker | None = None
        self.error: KpsplitError | None = None
        self.gone = False
        self.restored = 0
        self.position = 0
        self.target: int | None = None
        self._storage = storage
        self._pending = Pending()
        self._lock = Lock()

    @property
    def restoring(self) -> bool:
        """Return whether nothing can have been written yet."""
        return self.marker is None

    @property
    def pending_bytes(self) -> int:
        """How much waits for the next commit."""
        return self._pending.bytes

    @property
    def waits(self) -> bool:
        """Whether anything waits for the next commit."""
        return bool(self._pending)

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
            written, value = self._pending.find(key)
        return value if written else self._storage.get(self.slot, key)

    def items(
        self, lo: bytes, hi: bytes | None, own: Mapping[bytes, bytes | None]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return values with keys in [lo, hi) in order, as they are now, ``own`` writes above all."""
        with self._lock:
            above = self._pending.within(lo, hi)
            below = self._storage.items(self.slot, lo, hi)
        above.update({k: v for k, v in own.items() if lo <= k and (hi is None or k < hi)})
        return _merged(sorted(above.items()), below)

    def add(self, writes: Writes, place: RecordPlace | None = None) -> None:
        """Take writes for the commit that covers the record at a place; None: for the next commit.

        Raises:
            SlotGoneError: the slot is not owned any more; they are dropped.
        """
        with self._lock:
            self.usable()
            self._pending.add(writes, place)

    def cut(self, covers: Covers | None) -> dict[bytes, bytes | None]:
        """Return what a commit takes, see ``Pending.cut``."""
        with self._lock:
            self.usable()
            return self._pending.cut(covers)

    def committed(self, writes: Writes, position: int, now_ms: int) -> None:
        """The changelog has the writes that were cut, before ``position``: now the local store has them too.

        Raises:
            KpsplitError: the local store cannot be written; the slot is to be restored again.
        """
        with self._lock:
            if self.gone or self.marker is None:
                return  # the local copy goes on where its marker says
            marker = RestoreMarker(self.marker.topic_id, position, now_ms)
            self._storage.apply(self.slot, writes, marker)
            self.marker = marker
            self._pending.committed()

    def settled(self) -> None:
        """A commit that had nothing of this slot to write succeeded."""
        with self._lock:
            self._pending.committed()

    def aborted(self) -> None:
        """The commit came to nothing: what was cut waits again."""
        with self._lock:
            self._pending.aborted()

    def leave(self) -> None:
        """The slot is not owned any more, or is to be restored anew: what waits is dropped."""
        with self._lock:
            self.gone = True
            self._pending.clear()


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
    while lower is not None:
        yield lower
        lower = next(below, None)
