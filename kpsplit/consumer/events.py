"""What the engine reports to the application, in the application's own thread: callbacks and errors."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.slots.assigned import AssignedOffset
from kpsplit.errors import (
    AuthorizationError,
    FencedError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.splitter.group_slots import Mode, Subscribed
from kpsplit.splitter.lineage import PhysicalPartition

Rebalanced = Callable[[Any, list[TopicPartition]], object]


class Callback:
    """A callback of the application that waits for its thread. ``done``: it has returned or ``raised``."""

    __slots__ = ("_call", "done", "raised")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.done = self.raised = False

    def run(self) -> None:
        self.raised = True
        try:
            self._call()
            self.raised = False
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
        self.fatal: KpsplitError | None = None
        """What every call for records raises from now on: nothing is handed out any more."""

    def __bool__(self) -> bool:
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
        return threading.get_ident() in self._running

    @property
    def running(self) -> bool:
        """Return whether some thread is inside a callback: until it has returned nothing is handed out."""
        return bool(self._running)

    def error(self) -> Message | None:
        return self._errors.popleft() if self._errors else None


class RebalanceCallbacks:
    """on_assign, on_revoke and on_lost, and what the application knows and said by them.

    What on_assign gave is of the whole logical partition, whichever of its slots were there. So it holds for
    slots that arrive later too, for which on_assign is not called, where the group has no commit of them: in
    the place of ``auto.offset.reset``, which might pass over records that were never read. (A commit is
    progress since then, and never goes back.) A program that is asked again gives anew.

    Owned by the engine's thread.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self.on_assign: Callable[[list[Any]], object] | None = None
        self.on_revoke: Callable[[list[Any]], object] | None = None
        self.on_lost: Callable[[list[Any]], object] | None = None
        self._announced: set[PhysicalPartition] = set()
        self._given: dict[PhysicalPartition, AssignedOffset] = {}
        self.by_slot: set[PhysicalPartition] = set()
        """Of these on_assign is called for every slot that arrives: the program keeps bookmarks."""

    def use(self, owner: object, *callbacks: Rebalanced | None) -> None:
        """Call on_assign, on_revoke and on_lost from now on, with their Consumer, which is not kept alive."""
        reference = weakref.ref(owner)

        def bound(callback: Rebalanced | None) -> Callable[[list[Any]], object] | None:
            def call(partitions: list[TopicPartition]) -> object:
                consumer = reference()
                return None if consumer is None or callback is None else callback(consumer, partitions)

            return None if callback is None else call

        self.on_assign, self.on_revoke, self.on_lost = map(bound, callbacks)

    def give(self, starts: Mapping[PhysicalPartition, AssignedOffset | None]) -> None:
        """Keep what on_assign gave; None leaves a partition to the group's commits."""
        self._ask_again(starts)
        self._given.update({parent: start for parent, start in starts.items() if start is not None})

    def given_start(self, parent: PhysicalPartition) -> AssignedOffset | None:
        """Return where slots begin that arrive now and were never committed, if on_assign has said so."""
        return self._given.get(parent) if parent in self._announced else None

    def announce(self, parents: AbstractSet[PhysicalPartition]) -> Callback | None:
        """Have on_assign called for those of some partitions of which the application does not know yet."""
        return self._announce(parents - (self._announced - self.by_slot))

    def announce_again(self, parents: AbstractSet[PhysicalPartition]) -> Callback | None:
        """Have on_assign called once more after it has raised, where the program keeps bookmarks.

        What it would have given lies before or after the group's commit: only the program knows. Any other
        begins where the group stands, as with the original.
        """
        return self._announce(parents) if self.by_slot else None

    def _announce(self, new: AbstractSet[PhysicalPartition]) -> Callback | None:
        self._announced |= new
        self._ask_again(new)
        on_assign = self.on_assign
        return None if on_assign is None or not new else self._events.call(lambda: on_assign(parts(new)))

    def revoke(
        self, leaving: AbstractSet[PhysicalPartition], staying: AbstractSet[PhysicalPartition]
    ) -> Callback | None:
        """Have on_revoke called, then on_assign for the partitions of which other slots are ``staying``."""
        known = self.forget(leaving)
        again = known & staying
        self._announced |= again
        on_revoke, on_assign = self.on_revoke, self.on_assign
        if on_revoke is None or not known:
            return None
        if on_assign is not None:
            self._ask_again(again)

        def call() -> None:
            on_revoke(parts(known))
            if on_assign is not None and again:
                on_assign(parts(again))

        return self._events.call(call)

    def lose(self, gone: AbstractSet[PhysicalPartition]) -> Callable[[], object]:
        """Forget partitions of lost slots at once; return what has on_lost called for them."""
        known, listener = self.forget(gone), self.on_lost or self.on_revoke
        if listener is None or not known:
            return lambda: None
        return lambda: self._events.call(lambda: listener(parts(known)))

    def forget(self, gone: AbstractSet[PhysicalPartition]) -> set[PhysicalPartition]:
        """Return those that on_assign has named; it names them again if a slot of them comes back."""
        known = gone & self._announced
        self._announced -= known
        return set(known)

    def _ask_again(self, parents: Iterable[PhysicalPartition]) -> None:
        for parent in parents:
            self._given.pop(parent, None)


def parts(parents: Iterable[PhysicalPartition]) -> list[TopicPartition]:
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


_UNSUPPORTED = KafkaError(KafkaError.UNSUPPORTED_ASSIGNOR).str()
"""librdkafka reports it as a fatal error without a code of its own."""


def explained(error: KafkaError, settings: ConsumerSettings, topics: Sequence[Subscribed]) -> KafkaError:
    """Return an error of the group consumer in terms of the application's topics and settings."""
    code, text = error.code(), error.str()
    if code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return KafkaError(
            code,
            "the other members of the group do not use the setting of this one, "
            f"partition.assignment.strategy={settings.strategy}; give all members the same "
            "partition.assignment.strategy and group.protocol",
        )
    if settings.assignor and _UNSUPPORTED in text:
        return KafkaError(
            KafkaError.UNSUPPORTED_ASSIGNOR,
            f"the brokers have no assignor group.remote.assignor={settings.assignor}; nothing was assigned; "
            "give the name of one of theirs (their setting group.consumer.assignors: uniform and range "
            "unless changed), or none",
            fatal=error.fatal(),
        )
    for topic in topics:
        slots = topic.group_topic
        if topic.mode is Mode.SLOTS and slots in text:
            hint = f"ask for the right to describe and read {slots}, or run: kpsplit enroll {topic.topic}"
            return KafkaError(code, f"{text}; the slots of topic {topic.topic} cannot be seen: {hint}")
    return error
