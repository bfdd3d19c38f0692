"""A unit of work: the writes of one call of a handler, all or nothing."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType

from kpsplit.consumer.commit.covering import Place
from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.slots import SlotId
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

    def __init__(self, owned: OwnedState, place: Place | None = None) -> None:
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
            UsageError: the unit has ended; a task or thread that it left behind cannot write any more.
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


class Attempt(Work):
    """A unit that ``run()`` publishes itself, at the moment when the record counts as processed."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; the writes are nobody's yet."""
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
