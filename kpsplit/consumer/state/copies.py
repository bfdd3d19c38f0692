"""One slot's local state while it is read from the changelog: how far it is, and what waits to be stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kpsplit.consumer.state.marker import Marker, Start
from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.slots import SlotId


@dataclass(slots=True)
class Copy:
    """A slot that is followed: restored for its owner, or kept warm. The follower's thread owns it.

    Attributes:
        slot: which slot.
        owned: who waits for it; None: a warm copy.
        topic: its changelog.
        marker: what is stored.
        position: every changelog record before it was read; ``waiting`` is not stored yet.
        target: restored when ``position`` has reached it: then it has all that there was at ``asked_ms``.
        at_end: the end of the log was seen since the marker was stored.
    """

    slot: SlotId
    owned: OwnedState | None
    topic: str
    marker: Marker
    position: int
    target: int
    asked_ms: int
    at_end: bool = False
    waiting: dict[bytes, bytes | None] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, slot: SlotId, owned: OwnedState | None, topic: str, start: Start, end: int, asked_ms: int
    ) -> Copy:
        """Return the copy that starts there and is complete at ``end``, as asked at ``asked_ms``."""
        return cls(slot, owned, topic, start.marker, start.marker.position, end, asked_ms)

    @property
    def place(self) -> tuple[str, int]:
        """The changelog partition."""
        return self.topic, self.slot.number

    @property
    def restored(self) -> bool:
        """Tell whether everything is here that was in the changelog when the slot was taken."""
        return self.position >= self.target

    def take(self, key: bytes, value: bytes | None, offset: int) -> None:
        """Take a record."""
        self.waiting[key] = value
        self.passed(offset + 1)

    def passed(self, position: int) -> None:
        """Everything before that offset was read."""
        self.position = max(self.position, position)

    def saw_end(self, position: int) -> None:
        """There is nothing behind that offset."""
        self.passed(position)
        self.at_end = True

    def worth_storing(self, now_ms: int, every_ms: int) -> bool:
        """Tell whether the stored marker is behind, or its time is."""
        return self.position != self.marker.position or (
            self.at_end and now_ms - self.marker.as_of_ms >= every_ms
        )

    def next_marker(self, now_ms: int) -> Marker:
        """Return the marker that counts what was read; its time is moved on as far as it is complete."""
        as_of = self.marker.as_of_ms
        if self.restored:
            as_of = max(as_of, self.asked_ms)
        if self.at_end:
            as_of = max(as_of, now_ms)
        return replace(self.marker, position=self.position, as_of_ms=as_of)
