"""Taking librdkafka's reports, running the application's callbacks, and the application's transactions."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import sleep
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from kpsplit import compiled
from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError
from kpsplit.kafka.error_map import error_of
from kpsplit.producer.locks import Busy, holds_lock, refuse_reentry
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.state import ProducerState

SLICE_SECONDS = 0.1
"""How long one call into librdkafka lasts at most, so that queued callbacks do not wait for longer."""
LET_PASS_SECONDS = 0.001
"""How long a thread that polls all the time stays away for another one that waits to."""
_FOREVER = 10.0**9


def deadline_of(timeout: float | None) -> Deadline:
    """Return the deadline of a timeout in seconds as applications give it: None or negative is for ever."""
    return Deadline(_FOREVER if timeout is None or timeout < 0 else timeout)


class Polling:
    """The application's side of poll() and flush(); thread safe."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._inside: set[int] = set()
        self._waiting: set[int] = set()
        self._last = 0

    def check_entry(self) -> None:
        """Raise KpsplitError inside a callback, in the middle of another call, and in a child process."""
        self.check_free()
        if get_ident() in self._inside:
            raise KpsplitError(
                "poll() or flush() was called inside a callback, or by a signal handler in the middle of one",
                hint="return from it first",
            )

    def check_free(self) -> None:
        """Raise KpsplitError in the middle of another call of this thread, and in a child process."""
        self.check_process()
        refuse_reentry(self._state.lock)

    def check_process(self) -> None:
        """Raise KpsplitError in a child process: librdkafka has no threads there, and would wait for ever."""
        if self._state.forked and self._state.fatal is not None:
            raise self._state.fatal

    def serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Take reports for so long, unless another thread is at it; run queued callbacks before and after.

        ``call`` is librdkafka's poll() or flush(). Returns how many events were served.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised.
        """
        self.check_entry()
        served = self._run_queued()
        if self._waiting and self._last == get_ident():
            sleep(LET_PASS_SECONDS)  # or this thread had the lock again before one that waits is scheduled
        return served + int(self.guarded(self._in_turn, call, seconds)) + self._run_queued()

    def _in_turn(self, call: Callable[[float], int], seconds: float) -> int:
        """Call it with the lock, 0 if that is not free in time. Guarded: or a handler waits for the lock."""
        ours, lock = False, self._state.poll_lock
        try:
            if seconds > 0:  # also where the lock is free: another thread may take it first, again and again
                self._waiting.add(get_ident())
            with lock.within(seconds):
                ours = True
                self._waiting.discard(get_ident())
                self._last = get_ident()
                return call(seconds)
        except Busy:
            if ours:  # a callback's
                raise
            return 0
        finally:
            self._waiting.discard(get_ident())

    def at_once(self, call: Callable[[float], int], general: Callable[[float], int]) -> Callable[..., int]:
        """Return poll() for the common case: it must not wait, no callback or thread waits.

        ``call`` is librdkafka's poll(); everything else goes to ``general``.
        """
        # Local names: applications poll after every record.
        state, run_queued, waiting, inside = self._state, self._run_queued, self._waiting, self._inside
        queued, in_a_call, lock = state.callbacks.queue, state.lock.taken, state.poll_lock.at_once

        def poll(timeout: float = -1) -> int:
            if timeout == 0 and not (queued or waiting or in_a_call() or state.forked):
                me = get_ident()
                if me not in inside:
                    ours = False
                    try:
                        inside.add(me)  # first: a signal handler that polls would wait for this thread's lock
                        with lock:
                            ours = True
                            served = call(0)
                    except Busy:
                        if ours:  # a callback's
                            raise
                    finally:
                        inside.discard(me)
                    if ours:
                        return served + run_queued() if queued else served
            return general(timeout)

        if compiled.fast is None:
            return poll
        made = compiled.fast.poll(
            poll, state, lock.__enter__, lock.__exit__, call, queued, waiting, inside, in_a_call, run_queued
        )
        return cast("Callable[..., int]", made)

    def guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        me = get_ident()
        try:
            self._inside.add(me)
            return call(*arguments)
        finally:
            self._inside.discard(me)

    def _run_queued(self) -> int:
        """Run queued callbacks; the library's thread may go on taking reports meanwhile."""
        return int(self.guarded(self._state.callbacks.run)) if self._state.callbacks else 0


LOOK_SECONDS = 0.005
"""How often a commit looks whether a fence has let go of what it held."""


class Transactions:
    """Around librdkafka's calls. ``flush`` is its flush(), without what is held."""

    def __init__(
        self,
        state: ProducerState,
        polling: Polling,
        held: HeldRecords,
        flush: Callable[[float], int],
    ) -> None:
        self._state = state
        self._polling = polling
        self._flush = flush
        self._held = held
        self._lost_before = 0

    @holds_lock
    def begun(self) -> None:
        with self._state.lock:
            self._state.transaction(True)
            self._lost_before = self._lost()

    def before_commit(self, deadline: Deadline) -> None:
        """Wait until everything that a fence held is sent and reported.

        Raises:
            KafkaException: ``retriable()`` if there was not enough time; ``txn_requires_abort()`` if records
                of the transaction went astray or failed.
        """
        self._flush_held(deadline)
        lost = self._state.locked(self._lost) - self._lost_before
        if lost:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE,
                    f"{lost} records of the transaction went astray or failed; abort it and do it again",
                    retriable=True,
                    txn_requires_abort=True,
                )
            )

    def before_abort(self) -> None:
        """Fail what a fence holds of the transaction; KpsplitError inside a callback."""
        self._polling.check_entry()
        if self._state.in_transaction:
            self._state.locked(self._held.purge)

    def end(self, call: Callable[[float], object], timeout: float, *, aborted: bool = False) -> None:
        """Commit or abort by librdkafka's ``call``.

        Raises:
            KafkaException: librdkafka's. After a fatal one no fence waits for the transaction any more.
        """
        try:
            self._polling.guarded(call, timeout)
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.fatal():
                self.ended(aborted=True)
            raise
        self.ended(aborted=aborted)

    @holds_lock
    def ended(self, *, aborted: bool = False) -> None:
        """Note that the transaction ended: a fence that waited for it may be acknowledged."""
        with self._state.lock:
            self._state.transaction(False, aborted=aborted)

    def _lost(self) -> int:
        return self._state.tally.strays + self._state.failures

    def _waiting(self) -> int:
        """With the lock held: a report takes its record from librdkafka to what is pending."""
        state = self._state
        return state.rdkafka.queued() + state.tally.count + state.pending()

    def _flush_held(self, deadline: Deadline) -> None:
        while True:
            self._polling.serve(self._flush, min(SLICE_SECONDS, deadline.left()))
            if not self._state.locked(self._waiting):
                return
            if deadline.left() <= 0:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "records wait for a fence still", retriable=True)
                )
            self._state.wake.wait(min(LOOK_SECONDS, deadline.left()))
            self._state.wake.clear()
