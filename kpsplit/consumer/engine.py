"""The engine: the background thread of a consumer (protocol, section 10).

It owns the group consumer, the control topic's view and the slots, and waits for nobody: what brokers have to
be asked runs in the executor's thread, what is the application's runs in the application's thread.

Records are read by the thread that wants them: the application's in ``poll()``, the engine's for ``run()``.
Only the holder of the lock reads, or changes what is read. The engine holds it whenever it does not rest.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient, answer
from kpsplit.consumer.commit.committer import Committer, LagOffsetRepair
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Events, kafka_error
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.membership import Membership, Subscribing
from kpsplit.consumer.group.ownership import OwnershipGuard, PeerAssignments
from kpsplit.consumer.metadata import ClusterTopics
from kpsplit.consumer.reading import Reading
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.consumer.slots.initializer import EnrolmentGuard, SlotInitializer
from kpsplit.errors import AuthorizationError, FutureVersionError, KpsplitError
from kpsplit.kafka.error_map import error_of, translate

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.01
"""How long the engine rests, or waits for records, before it looks at everything else."""
REST_SECONDS = 0.25
"""How long nothing is read after an error."""
CLOSE_SECONDS = 30.0
ANSWER_SECONDS = 60.0
"""The engine answers within milliseconds; longer, and something is wrong."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clients:
    """What talks to brokers: made before the engine, closed after it. Each part gets those it uses.

    The reader is the application's thread's as well: the engine closes it.
    """

    group: GroupConsumer
    reader: SlotReader
    query_client: QueryClient
    executor: BrokerExecutor[Any]
    members: BrokerExecutor[Any]

    def close(self) -> None:
        """Close all of them but the reader, whatever one raises."""
        closers: list[Callable[[], object]] = [self.group.close]
        for executor in (self.executor, self.members):
            closers += [partial(executor.ask, _close), partial(executor.close, CLOSE_SECONDS)]
        closers.append(self.query_client.close)
        for closer in closers:
            with suppress(Exception):
                closer()


def _close(owned: Any) -> None:
    owned.close()


class Engine(threading.Thread):
    """See the module.

    Args:
        settings: the application's.
        clients: what asks brokers.
        slots: what this member holds; their sink is that of an application that polls.
        events: what goes to the application.
        pulse: a number that changes whenever the application polls, and while it waits in a poll.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        clients: Clients,
        slots: AssignedSlots,
        events: Events,
        pulse: Callable[[], int],
    ) -> None:
        super().__init__(name="kpsplit-consumer", daemon=True)
        group, executor, query_client = clients.group, clients.executor, clients.query_client
        self.settings, self.slots, self.events = settings, slots, events
        self.group, self.metadata, self.reader = group, slots.metadata, clients.reader
        self.executor = executor
        self._clients = clients
        self._polled_sink = slots.sink
        self._lock = threading.Lock()
        self._reads = 0
        """The thread that reads in ``pull``, 0 if none does."""
        self._resting = threading.Event()
        """Whether the engine rests; while it wants the lock nobody else takes it."""
        self._no_reading_until = 0.0
        self._reader_closed = False
        self.reading = Reading(settings, self.reader, slots, events)
        self.committer = Committer(settings, slots, group, executor, events)
        self.membership = Membership(settings, slots, group, self.committer, events, self)
        self.initializer = SlotInitializer(slots, group, executor, events, self.membership.callbacks)
        topics = ClusterTopics(group, query_client, executor, self.metadata.admin, settings.metadata_refresh)
        self.peers = PeerAssignments(settings, slots, group, clients.members, self.membership.slot_at)
        self.subscribing = Subscribing(settings, self.membership, slots, topics, events, self.peers)
        self.enrolment_guard = EnrolmentGuard(slots, self.committer, events, self.subscribing.is_wanted)
        self.lag_repair = LagOffsetRepair(self.committer, slots, executor)
        self.ownership_guard = OwnershipGuard(
            settings.known_for,
            slots,
            group,
            clients.members,
            events,
            self.membership.give_up,
            lambda: self.committer.refused_as_no_member,
        )
        self.run_stats: Callable[[], Mapping[str, Any] | None] = lambda: None
        """What ``run()`` has done, None while none is under way."""
        self._died: KpsplitError | None = None
        self._missing_right: KpsplitError | None = None
        self.closing = False
        self._pulse = pulse
        self._seen_pulse = -1
        self._polled_at = monotonic()
        self._requests: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._adopted = -2
        self._chores_at = 0.0
        self._ended = threading.Event()
        executor.on_answer = clients.members.on_answer = self._look_at_once  # last: one may be at work

    # -- calls from other threads ------------------------------------------------------------------

    def ask(self, job: Callable[[], T]) -> Future[T]:
        """Have something done by the engine's thread; the future has what it returns or raises.

        Raises:
            KpsplitError: a signal handler calls, which has interrupted ``poll()`` while it reads.
        """
        if self.reads_here():
            raise KpsplitError(
                "this call came inside poll(), from a signal handler; nothing was done",
                hint="set a flag there, and make the call after poll() has returned",
            )
        future: Future[T] = Future()

        def run() -> None:
            try:
                if self._died is not None:
                    raise self._died
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - the future has it
                if not isinstance(error, (KpsplitError, KafkaException)):
                    self.reading.torn = True  # the application's call may have been ended halfway
                future.set_exception(error)

        self._requests.append(run)
        self._wake.set()
        if self._ended.is_set():
            self._run_requests()
        return future

    def call(self, job: Callable[[], T]) -> T:
        """Have something done by the engine's thread and wait for it.

        Raises:
            KafkaException: no answer in time. Exception: what the job raised.
        """
        return answer(self.ask(job), ANSWER_SECONDS)

    def close(self) -> None:
        """Have everything handed over and the clients closed; ``ended`` tells when that is done."""
        self.closing = True
        self._wake.set()

    def ended(self, seconds: float) -> bool:
        """Return whether the engine has ended, waiting for it so long."""
        return self._ended.wait(seconds)

    def pull(self, seconds: float) -> bool | None:
        """Read the next records for ``poll()``, waiting so long for the first. In the application's thread.

        False if nothing can be read now, None if this thread reads already and a signal handler came between.

        Raises:
            Exception: what a signal handler raised, or an internal error; reading begins anew after it.
        """
        if self.reads_here():
            return None
        if not self._polls() or monotonic() < self._no_reading_until:
            return False
        if not self._resting.is_set():
            self._resting.wait(max(seconds, SLICE_SECONDS))
        if self._resting.is_set():  # still: while the engine is at work the lock may take a whole turn
            with self._lock:  # no exception comes between this and what lets it go
                self._reads = threading.get_ident()
                try:
                    if self._polls():
                        self._duty(lambda: self._read(seconds), raises=True)
                finally:
                    self._reads = 0
        return True

    def reads_here(self) -> bool:
        """Return whether this thread reads: then a signal handler asks, and the engine cannot answer it."""
        return self._reads == threading.get_ident()

    def _polls(self) -> bool:
        """Return whether there is something to read for an application that polls.

        Not while reading has to begin anew: the engine has it begin, and reports what fails then.
        """
        reads = self.events.fatal is None and not self._reader_closed and self.slots.any_in_sink()
        return reads and self.slots.sink is self._polled_sink and not self.reading.is_torn

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until closed."""
        try:
            with self._lock:
                try:
                    while not self.closing:
                        self._turn()
                    self._hand_over_everything()
                except BaseException as error:  # noqa: BLE001 - poll() raises it
                    self._die(error)
                finally:
                    self._close_clients()
        finally:
            self._ended.set()
            self._run_requests()

    def _die(self, error: BaseException) -> None:
        """The thread ends of something that no duty has caught: ``poll()`` must not return None for ever."""
        self._died = self.events.fatal = KpsplitError(
            f"the consumer's background thread has ended: {type(error).__name__}: {error}; nothing more is "
            "read or committed",
            hint="close this consumer and make a new one; it begins at the last commit",
        )
        with suppress(Exception):
            self.slots.sink.keep_open(-inf)
        with suppress(Exception):
            self.events.tell(kafka_error(self._died))  # a call that waits for records wakes up
        with suppress(Exception):
            log.critical("kpsplit: the consumer's background thread has ended", exc_info=error)

    def turn_on(self) -> None:
        """Do one turn inside a rebalance: without polling the group consumer."""
        self._turn(nested=True)

    def internal_error(self) -> None:
        """Count an exception that ended something halfway, and begin to read anew."""
        self.reading.internal_error()

    def _turn(self, *, nested: bool = False) -> None:
        """Do what can be done now; read for ``run()``, or rest. A duty that fails stops no other."""
        self._wake.clear()
        self._run_requests()
        now = monotonic()
        self._duty(lambda: self.ownership_guard.turned(now))
        if nested or now >= self._chores_at or self.committer.may_begin():
            self._chores_at = now + SLICE_SECONDS
            self._chores(nested)
        self._duty(self._refresh)
        self._duty(self.reading.mend)
        self._duty(self._push_or_rest)

    def _push_or_rest(self) -> None:
        """Read for the workers of ``run()`` what there is room for; else rest: an application reads."""
        sink, pushes = self.slots.sink, False
        if sink is not self._polled_sink and self.events.fatal is None:
            full = sink.waiting_bytes() >= self.settings.buffer_bytes or sink.most == 0
            self.reading.turns_without_room += full
            pushes = not full and self.slots.any_in_sink()
        if pushes:
            self._read(0 if self._requests else SLICE_SECONDS)
        else:
            self._rest(SLICE_SECONDS)

    def _rest(self, seconds: float) -> None:
        """Let others have the lock for a moment."""
        self._lock.release()
        try:
            self._resting.set()
            self._wake.wait(seconds)
        finally:
            self._resting.clear()
            self._lock.acquire()

    def _chores(self, nested: bool) -> None:
        """Do everything but reading.

        Not between any two batches: where the application keeps the interpreter busy, each call into a client
        waits for it to let go, and that would bound what can be read.
        """
        if self.events.fatal is None:
            self._duty(self._look)
        if not nested:
            self._duty(self._poll_group)
            self._duty(self._watch_application)
        if self.events.fatal is None:
            self._duty(lambda: self.ownership_guard.turn(nested=nested))
            self._duty(lambda: self.subscribing.turn(nested=nested))
            self._duty(self.initializer.turn)
            self._duty(self.reading.go_on_after_gaps)
            self._duty(self.peers.turn)
            if not nested:
                self._duty(self.lag_repair.turn)
        self._duty(self.committer.turn)

    def _duty(self, duty: Callable[[], None], *, raises: bool = False) -> None:
        """Do a duty; report what ends it. ``raises``: raise what may be the application's own exception."""
        try:
            duty()
        except FutureVersionError as error:
            self._fail_closed(error)
        except KpsplitError as error:
            self._trouble(error)
        except KafkaException as exception:
            self._trouble(translate(error_of(exception), "follow the group"))
        except Exception as error:
            self.internal_error()
            if raises:
                raise
            log.exception("kpsplit: internal error")
            self._trouble(KpsplitError(f"internal error: {type(error).__name__}: {error}"))

    def _trouble(self, error: KpsplitError) -> None:
        if self.events.notice(error):
            log.warning("kpsplit: %s", error)
            self.events.warn(kafka_error(error))
        if threading.get_ident() == self.ident:
            self._rest(REST_SECONDS)
        else:
            self._no_reading_until = monotonic() + REST_SECONDS

    def _look(self) -> None:
        self.metadata.turn()
        self._tell_missing_right()
        self._adopt()
        self.enrolment_guard.turn()

    def _tell_missing_right(self) -> None:
        """Tell the application, once: without the control topic nothing is known to be whole.

        As an event while nothing was ever read; a right that is gone later is reported to ``error_cb``, for
        it may come back: until then what needs a fresh view waits.
        """
        error = self.metadata.trouble
        if not isinstance(error, AuthorizationError):
            self._missing_right = None
        elif self._missing_right is None:
            self._missing_right = error
            tell = self.events.warn if self.metadata.ready else self.events.tell
            tell(kafka_error(error))

    def _look_at_once(self) -> None:
        """Somebody waits for what an executor has answered; in its thread."""
        self._chores_at = 0.0
        self._wake.set()

    def _run_requests(self) -> None:
        while self._requests:
            self._requests.popleft()()

    def _adopt(self) -> None:
        """Give new views to the reader."""
        position = self.metadata.position
        if position == self._adopted:
            return
        for parent in self.slots.parents():
            if any(h.in_sink for h in self.slots.of(parent)):
                self.reader.update(self.slots.state(parent))
        self._adopted = position

    def _poll_group(self) -> None:
        error = self.group.poll(0)
        if error is not None:
            self.subscribing.explain(error)

    def _watch_application(self) -> None:
        """Leave the group when the application does not poll for too long; join again when it does."""
        now, pulse = monotonic(), self._pulse()
        if pulse != self._seen_pulse:
            self._seen_pulse, self._polled_at = pulse, now
            if self.membership.away and not self.events:
                self.subscribing.come_back()
            return
        idle = now - self._polled_at
        in_group = not self.membership.away and any(not h.by_hand for h in self.slots)
        if in_group and idle > self.settings.max_poll_interval:
            self.membership.give_up(f"the application has not polled for {idle:.1f} s")

    def _read(self, seconds: float) -> None:
        self.reading.read(seconds)
        if self.reader.wants_refresh:
            self._wake.set()

    def _refresh(self) -> None:
        """Have the control topic read to its end where a record can only be judged then."""
        reader, metadata = self.reader, self.metadata
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
        self.slots.sink.release([h.slot for h in self.slots.in_sink()])
        self.events.tell(kafka_error(error))
        self.events.fatal = error  # last: a call that sees it finds the reason reported

    def _hand_over_everything(self) -> None:
        try:
            self.membership.closing = True
            self.membership.hand_over(list(self.slots))
            with self.group.unpolled():
                while not self.committer.idle():
                    self._turn(nested=True)
        except Exception:
            log.exception("kpsplit: internal error while closing")

    def _close_clients(self) -> None:
        self._clients.close()
        with suppress(Exception):
            self.metadata.close()
        self._reader_closed = True
        with suppress(Exception):
            self.reader.close()
        self.membership.closed = True

    # -- questions ---------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, Any]:
        """Return what ``Consumer.stats()`` does; to be asked in the engine's thread."""
        trouble = self.events.fatal or self.events.trouble or self.metadata.trouble
        return {
            "state": self.membership.state.value,
            "slots": {str(h.slot): h.stage.value for h in self.slots},
            "waiting_bytes": self.slots.sink.waiting_bytes(),
            "without_slots": {t: list(unread) for t, unread in self.subscribing.topics.without_slots.items()},
            "held": self.ownership_guard.held,
            "strays": self.reader.strays,
            "view_fresh": self.metadata.fresh(),
            "offset_log_garbage": self.executor.owned.garbage,
            "control_garbage": self.metadata.view.garbage,
            "trouble": None if trouble is None else str(trouble),
            "run": self.run_stats(),
            **self.counts(),
        }

    def counts(self) -> dict[str, int]:
        """Return how often things have happened, each from the part that counts it."""
        slots, membership, committer, reading = self.slots, self.membership, self.committer, self.reading
        return {
            "rebalances": slots.rebalances,
            "slots_assigned": slots.assigned,
            "slots_withheld": slots.withheld,
            "slots_handed_over": slots.handed_over,
            "slots_lost": slots.lost,
            "left_group": membership.times_left,
            "held_after_sleep": self.ownership_guard.times_held,
            "starts_held_up": self.initializer.held_up,
            "commits": committer.commits,
            "commits_failed": committer.failed,
            "commits_rejected": committer.rejected,
            "ordinary_offsets_righted": self.lag_repair.repaired,
            "gaps": reading.gaps,
            "gap_records": reading.gap_records,
            "foreign_records": reading.foreign_records,
            "unreadable": reading.unreadable,
            "offsets_reset": reading.offsets_reset,
            "internal_errors": reading.internal_errors,
            "read_anew": reading.read_anew,
            "turns_without_room": reading.turns_without_room,
        }
