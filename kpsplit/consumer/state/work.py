"""A unit of work: the writes of one call of a handler, all or nothing."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType

from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.slots import SlotId

_current: ContextVar[Work | None] = ContextVar("kpsplit-state-work", default=None)


class Work:
    """Around a handler's call: its writes are seen by others, and by commits, when it ends without an error.

    An error drops them, so a call that is tried again does not find its own half. Used as a context manager
    in the thread (or asyncio task) that runs the handler; one unit is one call. Afterwards it is only a name
    by which a commit can be told to take the writes of this unit.
    """

    def __init__(self, owned: OwnedState) -> None:
        self.owned = owned
        self.writes: dict[bytes, bytes | None] = {}
        self._token: Token[Work | None] | None = None

    @property
    def slot(self) -> SlotId:
        """The slot of the record that the handler works on."""
        return self.owned.slot

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
        if self._token is not None:
            _current.reset(self._token)
        if kind is None and self.writes:
            self.owned.add(self.writes, self)
        self.writes = {}


def current_work() -> Work | None:
    """Return the unit of work of this thread or task."""
    return _current.get()
