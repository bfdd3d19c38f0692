"""What the engine reports to the application, in the application's own thread: callbacks and errors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from kpsplit.errors import (
    AuthorizationError,
    FencedError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.splitter.lineage import PhysicalPartition


class Callback:
    """A callback of the application that waits for its thread. ``done`` once it has returned or raised."""

    __slots__ = ("_call", "done")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.done = False

    def run(self) -> None:
        """Call it."""
        try:
            self._call()
        finally:
            self.done = True


class Events:
    """A queue from the engine's thread to the application's.

    ``attend`` is called with every event: it makes a ``poll()`` that waits look here.
    """

    def __init__(self, attend: Callable[[], None]) -> None:
        self._attend = attend
        self._callbacks: deque[Callback] = deque()
        self._errors: deque[Message] = deque()
        self._running: set[int] = set()
        self.error_cb: Callable[[KafkaError], object] | None = None
        self.trouble: KpsplitError | None = None
        """What goes wrong now, as ``stats()`` shows it."""

    def __bool__(self) -> bool:
        """Return whether something waits."""
        return bool(self._callbacks or self._errors)

    def call(self, call: Callable[[], object]) -> Callback:
        """Have a callback run by the application's next poll(), before any record that is offered later."""
        callback = Callback(call)
        self._callbacks.append(callback)
        self._attend()
        return callback

    def tell(self, error: KafkaError, **place: Any) -> None:
        """Have poll() return an error event; ``place``: topic, partition and offset that it is about."""
        self._errors.append(Message(error=error, **place))
        self._attend()

    def warn(self, error: KafkaError) -> Callback | None:
        """Have ``error_cb`` called, for what is no event of poll(); None where the application has none."""
        error_cb = self.error_cb
        return None if error_cb is None else self.call(lambda: error_cb(error))

    def notice(self, error: KpsplitError) -> bool:
        """Note what goes wrong now; return whether it is another error than before."""
        before, self.trouble = self.trouble, error
        return before is None or before.message != error.message

    def in_application(self, callback: Callable[..., object]) -> Callable[..., None]:
        """Return a callback of a client that has the application's one run in the application's thread."""

        def later(*arguments: object) -> None:
            self.call(lambda: callback(*arguments))

        return later

    def serve(self) -> int:
        """Run the callbacks that wait; application's thread. Return how many ran.

        Raises:
            Exception: what a callback raised; the others wait for the next call.
        """
        served = 0
        me = threading.get_ident()
        self._running.add(me)
        try:
            while self._callbacks:
                self._callbacks.popleft().run()
                served += 1
        finally:
            self._running.discard(me)
        return served

    def attend(self, attended: Callable[[], None]) -> Message | None:
        """Run the callbacks that wait, then take the next error event; application's thread.

        ``attended`` is called when nothing waits or runs any more, whatever a callback raised; also where
        nothing was there to be done: attention may be asked for after the callback that it was asked for.
        """
        try:
            self.serve()
            return self.error()
        finally:
            if not self and not self._running:
                attended()
                if self:  # it came meanwhile, and records that are handed out come after it
                    self._attend()

    def give_back(self, errors: Sequence[Message]) -> None:
        """Have error events returned again, before the others; application's thread."""
        if errors:
            self._errors.extendleft(reversed(errors))
            self._attend()

    def inside_callback(self) -> bool:
        """Return whether this thread is inside a callback."""
        return threading.get_ident() in self._running

    @property
    def running(self) -> bool:
        """Return whether some thread is inside a callback: until it has returned nothing is handed out."""
        return bool(self._running)

    def error(self) -> Message | None:
        """Take the next error event."""
        return self._errors.popleft() if self._errors else None


def parts(parents: Any) -> list[TopicPartition]:
    """Return logical partitions as applications name them."""
    return [TopicPartition(p.topic, p.partition) for p in sorted(set(parents))]


def named(parent: PhysicalPartition | None) -> dict[str, Any]:
    """Return what names a logical partition in an error event."""
    return {} if parent is None else {"topic": parent.topic, "partition": parent.partition}


def kafka_error(error: BaseException) -> KafkaError:
    """Return an error of kpsplit's as one of the client library's."""
    if isinstance(error, KpsplitError):
        return KafkaError(_CODES.get(type(error), KafkaError._FAIL), str(error))
    inner = error.args[0] if error.args else None
    return (
        inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, f"internal error: {error!r}")
    )


_CODES: dict[type[KpsplitError], int] = {
    FencedError: KafkaError.ILLEGAL_GENERATION,
    UnknownOutcomeError: KafkaError._TIMED_OUT,
    UnreachableError: KafkaError._TRANSPORT,
    AuthorizationError: KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
