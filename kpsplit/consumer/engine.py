"""The engine: the background thread of a consumer (protocol, section 10).

It owns the group consumer, the reader, the control topic's view and the state machine, and waits for
nobody: what brokers have to be asked runs in the executor's thread, what is the application's runs in the
application's thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.commit.committer import Committer, LagOffsetRepair
from kpsplit.consumer.context import Context
from kpsplit.consumer.events import kafka_error, named
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.consumer.group.membership import Membership
from kpsplit.consumer.group.ownership import OwnershipGuard, PeerAssignments
from kpsplit.consumer.group.states import Event, State
from kpsplit.consumer.group.subscribing import Subscribing
from kpsplit.consumer.slots.assigned import IN_SINK, STARTING, SlotStage
from kpsplit.consumer.slots.initializer import EnrolmentGuard, SlotInitializer, start_anew
from kpsplit.errors import AuthorizationError, FutureVersionError, KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.error_map import error_of, translate

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.01
"""How long the engine waits for records before it looks at everything else."""
STEPS = 8
"""A step reads one part in so many of the buffer at most: one lane that gets it all must not fill it."""
REST_SECONDS = 0.25
CLOSE_SECONDS = 30.0

T = TypeVar("T")


class Engine(threading.Thread):
    """See the module.

    Args:
        context: what the parts share.
        pulse: a number that changes whenever the application polls; None while it waits in a poll.
    """

    def __init__(self, context: Context, pulse: Callable[[], int | None]) -> None:
        super().__init__(name="kpsplit-consumer", daemon=True)
        self.context = context
        self.committer = Committer(context)
        self.membership = Membership(context, self.committer, lambda: self._turn(nested=True))
        self.initializer = SlotInitializer(context, self.membership.announce, self.membership.given_start)
        self.subscribing = Subscribing(context, self.membership)
        self.enrolment_guard = EnrolmentGuard(context, self.committer.ask_changed)
        self.peers = PeerAssignments(context, self.membership)
        self.lag_repair = LagOffsetRepair(context, self.committer)
        self.ownership_guard = OwnershipGuard(context, self.membership)
        self.fatal: KpsplitError | None = None
        """What every call for records raises from now on: nothing is handed out any more."""
        self._died: KpsplitError | None = None
        self._missing_right: KpsplitError | None = None
        self.closing = False
        self._pulse = pulse
        self._seen_pulse: int | None = None
        self._polled_at = monotonic()
        self._requests: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._adopted = -2
        self._chores_at = 0.0
        self._ended = threading.Event()

    # -- calls from other threads ------------------------------------------------------------------

    def ask(self, job: Callable[[], T]) -> Future[T]:
        """Have something done by the engine's thread; the future has what it returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                if self._died is not None:
                    raise self._died
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - whoever asked hears of it
                if not isinstance(error, (KpsplitError, KafkaException)):
                    self.context.torn = True  # the application's call may have been ended halfway
                future.set_exception(error)

        self._requests.append(run)
        self._wake.set()
        if self._ended.is_set():
            self._refuse_requests()
        return future

    def close(self) -> None:
        """Have everything handed over and the clients closed; ``ended`` tells when that is done."""
        self.closing = True
        self._wake.set()

    def ended(self, seconds: float) -> bool:
        """Tell whether the engine has ended, waiting for it so long."""
        return self._ended.wait(seconds)

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until closed."""
        try:
            while not self.closing:
                self._turn()
            self._hand_over_everything()
        except BaseException as error:  # noqa: BLE001 - whoever asks for records hears of it
            self._die(error)
        finally:
            try:
                self._close_clients()
            finally:
                self._ended.set()
                self._refuse_requests()

    def _die(self, error: BaseException) -> None:
        """The thread ends of something that no duty has caught: ``poll()`` must not return None for ever."""
        self._died = self.fatal = KpsplitError(
            f"the consumer's background thread has ended: {type(error).__name__}: {error}; nothing more is "
            "read or committed",
            hint="close this consumer and make a new one; it begins at the last commit",
        )
        with suppress(Exception):
            self.context.sink.keep_open(-inf)
        with suppress(Exception):
            self.context.events.tell(kafka_error(self._died))  # who waits for records wakes up
        with suppress(Exception):
            log.critical("kpsplit: the consumer's background thread has ended", exc_info=error)

    def _turn(self, *, nested: bool = False) -> None:
        """Do what can be done now; wait for records for a moment. A duty that fails stops no other."""
        self._serve_requests()
        now = monotonic()
        self._duty(lambda: self.ownership_guard.turned(now))
        if nested or now >= self._chores_at:
            self._chores_at = now + SLICE_SECONDS
            self._chores(nested)
        self._duty(self._read)

    def _chores(self, nested: bool) -> None:
        """Do everything but reading.

        Not between any two batches: where the application keeps the interpreter busy, each call into a client
        waits for it to let go, and that would bound what can be read.
        """
        if self.fatal is None:
            self._duty(self._look)
        if not nested:
            self._duty(self._poll_group)
            self._duty(self._watch_application)
        if self.fatal is None:
            self._duty(lambda: self.ownership_guard.turn(nested=nested))
            self._duty(lambda: self.subscribing.turn(nested=nested))
            self._duty(self.initializer.turn)
            self._duty(self._note_start)
            self._duty(self._go_on_behind_gaps)
            self._duty(self.peers.turn)
            if not nested:
                self._duty(self.lag_repair.turn)
        self._duty(self.committer.turn)

    def _duty(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except FutureVersionError as error:
            self._fail_closed(error)
        except KpsplitError as error:
            self._trouble(error)
        except KafkaException as exception:
            self._trouble(translate(error_of(exception), "follow the group"))
        except Exception as error:
            self.context.internal_error()
            log.exception("kpsplit: internal error")
            self._trouble(KpsplitError(f"internal error: {type(error).__name__}: {error}"))

    def _trouble(self, error: KpsplitError) -> None:
        known = self.context.trouble
        if known is None or known.message != error.message:
            log.warning("kpsplit: %s", error)
            self.context.events.warn(kafka_error(error))
        self.context.trouble = error
        self._wake.wait(REST_SECONDS)

    def _look(self) -> None:
        self.context.metadata.turn()
        self._tell_missing_right()
        self._adopt()
        self.enrolment_guard.turn()

    def _tell_missing_right(self) -> None:
        """Tell the application, once: without the control topic nothing is known to be whole.

        As an event while nothing was ever read; a right that is gone later is told to ``error_cb``, for it
        may come back: until then what needs a fresh view waits.
        """
        error = self.context.metadata.trouble
        if not isinstance(error, AuthorizationError):
            self._missing_right = None
        elif self._missing_right is None:
            self._missing_right = error
            tell = self.context.events.warn if self.context.metadata.ready else self.context.events.tell
            tell(kafka_error(error))

    def _serve_requests(self) -> None:
        self._wake.clear()
        while self._requests:
            self._requests.popleft()()

    def _adopt(self) -> None:
        """Give new views to the reader."""
        context = self.context
        if context.metadata.position == self._adopted:
            return
        position = context.metadata.position
        for parent in context.assigned_slots.parents():
            if any(h.stage in IN_SINK for h in context.assigned_slots.of(parent)):
                context.reader.update(context.metadata.state(parent))
        self._adopted = position

    def _poll_group(self) -> None:
        error = self.context.group.poll(0)
        if error is not None:
            self.subscribing.explain(error)

    def _watch_application(self) -> None:
        """Leave the group when the application does not poll for too long; join again when it does."""
        now, pulse = monotonic(), self._pulse()
        if pulse is None or pulse != self._seen_pulse:
            self._seen_pulse, self._polled_at = pulse, now
            if self.membership.away and not self.context.events:
                self.subscribing.come_back()
            return
        idle = now - self._polled_at
        in_group = (
            len(self.context.assigned_slots) and not self.membership.away and not self.subscribing.by_hand
        )
        if in_group and idle > self.context.settings.max_poll_interval:
            self.membership.give_up(f"the application has not polled for {idle:.1f} s")

    def _note_start(self) -> None:
        context = self.context
        if context.life.state is State.ASSIGNING_PARTITIONS and not context.assigned_slots.on(STARTING):
            context.life.on(Event.START)

    def _read(self) -> None:
        """Read what there is room for, or wait for a moment.

        The reader's positions move when a record is read, the sink's when it is offered. Both are certain to
        agree only when everything that was read was offered; whatever ends this before that, and whichever
        duty was ended by an internal error, reading begins anew from what was handed out.
        """
        context = self.context
        if context.torn or context.sink.torn:
            self._read_anew()
        room = context.settings.buffer_bytes - context.sink.waiting_bytes()
        if room <= 0 or self.fatal is not None or not context.assigned_slots.any_on(IN_SINK):
            context.counts["turns_without_room"] += room <= 0
            self._wake.wait(SLICE_SECONDS)
            return
        context.reader.hold_back(context.sink.backpressured())
        room = min(room, max(1, context.settings.buffer_bytes // STEPS))
        ends, context.ends = context.ends, {}
        context.torn = True
        for batch in context.reader.step(0 if self._requests else SLICE_SECONDS, room):
            self._offer(batch)
            if batch.messages:
                ends.pop(batch.parent, None)
        context.torn = False
        context.ends = {**ends, **context.ends}
        self._refresh()
        self._tell_ends()

    def _read_anew(self) -> None:
        """Begin to read from what was handed out; slots that the sink does not know begin from the log."""
        context = self.context
        context.torn = True
        places = context.sink.start_over()
        reading = context.assigned_slots.on((SlotStage.READING,))
        context.sink.dropped([slot for slot in places if slot not in context.assigned_slots])
        context.reader.start_over({h.slot: places[h.slot] for h in reading if h.slot in places})
        start_anew(context, [h for h in reading if h.slot not in places])
        context.ends.clear()
        context.counts["read_anew"] += 1
        context.torn = False

    def _offer(self, batch: Batch) -> None:
        context = self.context
        context.epochs.read(batch)
        for assigned in context.assigned_slots.among(batch.slots):
            if assigned.ahead is not None:
                assigned.ahead.without_processed(batch, context.lineage(batch.parent))
        context.sink.offer(batch)

    def _go_on_behind_gaps(self) -> None:
        """Read on after the gaps that the application was told of meanwhile."""
        context = self.context
        for notice in [n for n in context.notices if n.told]:
            torn, context.torn = context.torn, True
            for batch in context.reader.told(notice.parent, notice.gap):
                self._offer(batch)
            context.notices.remove(notice)
            context.torn = torn

    def _tell_ends(self) -> None:
        """Tell that partitions were read to their ends; never before their last record was handed out."""
        context = self.context
        if not context.ends or context.sink.waiting_bytes():
            return
        if context.settings.eof:
            for parent, offset in context.ends.items():
                eof = KafkaError(KafkaError._PARTITION_EOF, f"{parent}: reached end of partition")
                context.events.tell(eof, **named(parent), offset=offset)
        context.ends.clear()

    def _refresh(self) -> None:
        """Have the control topic read to its end where a record can only be judged then."""
        reader, metadata = self.context.reader, self.context.metadata
        request_id = reader.wants_refresh
        if not request_id:
            return
        if metadata.refreshed(request_id):
            self._adopt()
            reader.refreshed(request_id)
        else:
            metadata.want_refresh(request_id)

    # -- the end -----------------------------------------------------------------------------------

    def _fail_closed(self, error: KpsplitError) -> None:
        """A newer kpsplit writes one of its topics: nothing is handed out by what is known here."""
        log.error("kpsplit: %s", error)
        self.context.sink.release([h.slot for h in self.context.assigned_slots.on(IN_SINK)])
        self.context.events.tell(kafka_error(error))
        self.fatal = error  # last: who sees it finds the reason told

    def _hand_over_everything(self) -> None:
        context = self.context
        try:
            context.life.on(Event.CLOSE)
            self.membership.hand_over(list(context.assigned_slots))
            with context.group.unpolled():
                while not self.committer.idle():
                    self._turn(nested=True)
        except Exception:
            log.exception("kpsplit: internal error while closing")

    def _close_clients(self) -> None:
        context = self.context
        closers: list[Callable[[], object]] = [
            context.group.close,
            lambda: context.executor.run(context.group_offsets.close),
            lambda: context.executor.close(CLOSE_SECONDS),
            context.query_client.close,
            context.reader.close,
            context.metadata.close,
        ]
        for closer in closers:
            with suppress(Exception):
                closer()
        with suppress(KpsplitError):
            context.life.on(Event.END)

    def _refuse_requests(self) -> None:
        while self._requests:
            self._requests.popleft()()


def statistics(engine: Engine) -> Mapping[str, Any]:
    """Return what ``Consumer.stats()`` tells; to be asked in the engine's thread."""
    context = engine.context
    trouble = engine.fatal or context.trouble or context.metadata.trouble
    return {
        "state": context.life.state.value,
        "edges": {f"{s} {e}": n for (s, e), n in sorted(context.life.edges.items())},
        "slots": {str(h.slot): h.stage.value for h in context.assigned_slots},
        "waiting_bytes": context.sink.waiting_bytes(),
        "without_slots": {t: list(unread) for t, unread in context.growing.unread.items()},
        "held": engine.ownership_guard.held,
        "strays": context.reader.strays,
        "view_fresh": context.metadata.fresh(),
        "offset_log_garbage": context.group_offsets.garbage,
        "control_garbage": context.metadata.view.garbage,
        "trouble": None if trouble is None else str(trouble),
        "run": context.run_stats(),
        **context.counts,
    }


def timed_out(what: str) -> KafkaException:
    """Return what is raised when the engine has not answered in time."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, what))
