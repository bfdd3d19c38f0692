"""``poll()`` and ``consume()``: callbacks and error events, then records; in the application's thread."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from kpsplit.clock import Deadline
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.buffer import FetchBuffer, Poll
from kpsplit.errors import KpsplitError

LOOK_SECONDS = 0.05
FOREVER = 10.0**9


class Poller:
    """What an application gets that polls. It does not keep the Consumer, or its application, alive.

    Attributes:
        closed: set by the Consumer.
        reads_here: whether this thread reads at this moment (a signal handler has interrupted it).
        before_end: what a signal handler asked for that interrupted reading: done when reading has ended.
    """

    def __init__(self, buffer: FetchBuffer, events: Events) -> None:
        self.buffer = buffer
        self.events = events
        self.closed = False
        self.reads_here: Callable[[], bool] = lambda: False
        self.before_end: Callable[[], None] | None = None
        self.poll: Poll = buffer.poller(self._poll_slowly)
        """Return the next record or error event, None if there is none in time; run callbacks."""
        self._calls = 0

    def pulse(self) -> int:
        """Return a number that changes whenever the application polls, and while it waits in a poll."""
        return self._calls + self.buffer.handed_out + self.buffer.looks

    def alive(self) -> None:
        """Count as a poll: ``run()`` ends, and still waits for its workers or its last commit."""
        self._calls += 1

    def consume(self, count: int, timeout: float | None) -> list[Message]:
        """Return up to so many records and error events, those that come in time; run callbacks."""
        deadline = Deadline(_forever(timeout))
        found: list[Message] = []
        records, kept = 0, False
        buffer = self.buffer
        mark = buffer.mark()
        try:
            while len(found) < count:
                self._calls += 1
                event = self.attend()
                if event is not None:
                    found.append(event)
                    continue
                taken = buffer.consume(count - len(found))
                found += taken
                records += len(taken)
                if len(found) < count:
                    kept = True
                    buffer.keep(records)
                    if not self._wait(deadline, count - len(found)) or buffer.wanted:
                        break
        except BaseException:
            self._give_back(found, mark)
            raise
        if kept:
            buffer.returned()
        return found

    def _give_back(self, found: list[Message], mark: int) -> None:
        """What consume() has found since a mark is not returned, because of an exception: the next call does.

        By the mark and not by what was found: an exception may have come before a record was noted.
        """
        self.events.give_back([message for message in found if message.error() is not None])
        if self.buffer.handed_out > mark:
            self.buffer.give_back(mark)

    def _poll_slowly(self, timeout: float | None) -> Message | None:
        """There is no record now, or something else to do first."""
        deadline = Deadline(_forever(timeout))
        while True:
            self._calls += 1
            event = self.attend()
            if event is not None:
                return event
            try:
                return self.buffer.take()
            except IndexError:
                if not self._wait(deadline):
                    return None

    def _wait(self, deadline: Deadline, count: int = 1) -> bool:
        """Read on for so many records and wait for something to do, False if nothing came in time."""
        if not self.events.running:
            try:
                return self.buffer.wait(deadline.left(), count)
            finally:
                if self.before_end is not None and not self.reads_here():
                    asked, self.before_end = self.before_end, None
                    asked()
        # Another thread closes and is inside a callback: it attends, and the buffer would not wait.
        self.buffer.processed()
        deadline.pause(LOOK_SECONDS)
        return not deadline.expired()

    def attend(self) -> Message | None:
        """Run callbacks; return the next error event."""
        self.check_open()
        events = self.events
        if events.fatal is not None:
            raise events.fatal
        if events or self.buffer.attention:
            if events.inside_callback():
                raise KpsplitError("poll() was called inside a callback", hint="return from it first")
            return events.attend(self.buffer.attended)
        return None

    def end(self) -> None:
        """The Consumer is closed: a thread that waits for records hears of it."""
        self.closed = True
        self.buffer.ask_attention()

    def check_open(self) -> None:
        """Do nothing while the Consumer is open.

        Raises:
            RuntimeError: it is closed.
        """
        if self.closed:
            raise RuntimeError("Consumer closed")


def _forever(timeout: float | None) -> float:
    return FOREVER if timeout is None or timeout < 0 else timeout
