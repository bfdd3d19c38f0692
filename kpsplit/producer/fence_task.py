"""What a fence asks of the library's thread: reports, acknowledgements, release, takeovers, log look-ups.

A takeover rolls back an operation whose operator died in the fence (docs/protocol.md, 5.3 and step 2 of 7.1).
Any producer that is held up may do it: it claims the operation, which fences the operator if it is only slow,
and rolls back unless the log says that the attempt has ended.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from functools import partial
from secrets import token_hex
from typing import Any

from confluent_kafka import KafkaError

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import ConflictError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import OperationLog
from kpsplit.producer.lease import ControlFeed
from kpsplit.producer.lookup import Lookup, Search
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import RouteWriter, SendState
from kpsplit.splitter.claimed_log import Announce, ClaimQueue, Go, WaitForTurn
from kpsplit.splitter.control_plane import ControlView, to_acknowledge
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Abort, EndedBy, PartitionState, Phase
from kpsplit.splitter.records.control import Claim
from kpsplit.splitter.records.producers import PauseReport

log = logging.getLogger(__name__)


class PauseClock:
    """Measures from the moment when a fence is seen to the moment when nothing of it is held any more."""

    def __init__(self) -> None:
        self._began: dict[PhysicalPartition, tuple[str, float, int, int]] = {}
        self.pauses_ms: list[int] = []

    def observe(self, send_state: SendState) -> None:
        parent, attempt = send_state.state.parent, send_state.state.attempt
        if attempt is None or not send_state.state.fenced_segments():
            return
        began, now = self._began.get(parent), monotonic()
        if began is not None and began[0] == attempt.id:
            return
        if began is not None:  # what the earlier attempt held still waits: the next pause follows at once
            self.pauses_ms.append(round((now - began[1]) * 1000))
        counts = send_state.statistics
        self._began[parent] = (attempt.id, now, counts.held, counts.strays)

    def running(self) -> list[PhysicalPartition]:
        return list(self._began)

    def over(self, send_state: SendState) -> tuple[str, PauseReport] | None:
        """Return the report of a pause that has just ended, once."""
        parent = send_state.state.parent
        began = self._began.get(parent)
        if began is None or send_state.state.fenced_segments() or not all(w.open for w in send_state.writers):
            return None
        del self._began[parent]
        attempt_id, since, held, strays = began
        pause_ms = round((monotonic() - since) * 1000)
        self.pauses_ms.append(pause_ms)
        counts = send_state.statistics
        return str(parent), PauseReport(attempt_id, pause_ms, counts.held - held, counts.strays - strays)


ANSWER_SECONDS = 5.0
EXPIRY_SECONDS = 0.5
_LOG_GONE = KafkaError(
    KafkaError._MSG_TIMED_OUT,
    "its acknowledgement was lost, and the log was deleted before this producer could look the record up: it "
    "may have been written, and is not sent again",
)


class FenceTask:
    """Owned by the library's thread. ``stopping`` returns whether the thread is to end."""

    def __init__(self, feed: ControlFeed, held: HeldRecords, stopping: Callable[[], bool]) -> None:
        self._feed = feed
        self._producer = feed.producer
        self._held = held
        self._stopping = stopping
        self._takeovers: dict[PhysicalPartition, Takeover] = {}
        self._lookups: dict[tuple[PhysicalPartition, int], Lookup] = {}
        self._over: list[tuple[str, PauseReport]] = []
        self._expire_at = 0.0
        self._pauses = PauseClock()
        self.pauses_ms = self._pauses.pauses_ms

    # -- the view ----------------------------------------------------------------------------------

    def adopt(self, view: ControlView, changed: Iterable[PhysicalPartition | str]) -> None:
        """Apply what is new in the control topic to every fence that it concerns (``lock`` held).

        ``changed``: partitions and topics of which a record was read since.
        """
        producer = self._producer
        for send_state in [f for subject in changed for f in producer.send_states_of(subject)]:
            state = view.latest_state(send_state.state.parent)
            if state is None or state is send_state.state:
                continue
            finals = send_state.observe(state, lease_valid=producer.lease_valid())
            producer.refresh(send_state)
            producer.report(send_state, finals)
            self.watch(send_state)

    def watch(self, send_state: SendState) -> None:
        """Measure the pause; start or end the watch over an operator that may die in the fence."""
        self._pauses.observe(send_state)
        parent, attempt = send_state.state.parent, send_state.state.attempt
        if attempt is None or not send_state.state.fenced_segments():
            self._takeovers.pop(parent, None)
            return
        known = self._takeovers.get(parent)
        if self._producer.settings.takeover and (known is None or known.attempt_id != attempt.id):
            pause, announce = attempt.max_pause_ms / 1000, partial(self._feed.announce, parent)
            self._takeovers[parent] = Takeover(self._feed.connection, parent, attempt.id, pause, announce)

    # -- in every turn -----------------------------------------------------------------------------

    def busy(self) -> list[SendState]:
        """Return the fences that wait for something."""
        return [f for f in self._producer.active() if f.busy()]

    def acknowledge(self) -> None:
        """Acknowledge the fences of segments that nothing is in flight of."""
        with self._producer.lock.first:
            if self._stopping():  # routes are forgotten then, and what is in flight with them
                return
            if self._feed.tail is None:
                return
            active = self._producer.active()
            quiescent = [f.state for f in active if f.state.attempt and f.quiescent()]
            # Partitions that were added after we registered: an operator waits for our answer there as well.
            quiescent += self._feed.unrouted_states()
        own = self._feed.registration
        for state in to_acknowledge(quiescent, own.record):
            if state.attempt is not None:
                own.acknowledge(str(state.parent), state.attempt.id, Deadline(ANSWER_SECONDS))

    def fail_late(self) -> None:
        now = monotonic()
        if now >= self._expire_at:
            self._expire_at = now + EXPIRY_SECONDS
            with self._producer.lock.first:
                self._held.expire(now)

    def release(self) -> None:
        """Send what was held and may be sent now; between two portions the application gets the lock."""
        producer = self._producer
        sent = 1
        while sent and not self._stopping():
            # In portions: a produce() of the application waits for this lock.
            with producer.lock.first:
                sent = self._held.release()
        with producer.lock.first:
            for topic in list(producer.unrouted):
                self._held.route(topic)
            producer.tally.active = {f: None for f in producer.active() if not f.at_rest()}

    def report_pauses(self) -> None:
        """Start takeovers that are due; report the length of pauses that are over."""
        for takeover in list(self._takeovers.values()):
            takeover.check(self._feed.following().view)
        with self._producer.lock.first:
            send_states = [f for p in self._pauses.running() for f in self._producer.send_states_of(p)]
            self._over += [p for f in send_states if (p := self._pauses.over(f)) is not None]
        while self._over:
            partition, pause = self._over[0]
            self._feed.registration.report_pause(partition, pause, Deadline(ANSWER_SECONDS))
            self._over.pop(0)

    def look_up(self) -> None:
        """Search the log for records whose place is not known, in a thread of its own: a log can be long."""
        begun: dict[tuple[PhysicalPartition, int], Search] = {}
        unclear: dict[tuple[PhysicalPartition, int], tuple[SendState, RouteWriter]] = {}
        with self._producer.lock.first:
            for send_state in self._producer.active():
                for writer in send_state.unclear():
                    place = (send_state.state.parent, writer.segment.id)
                    unclear[place] = (send_state, writer)
                    if place not in self._lookups:
                        begun[place] = self._search(send_state, writer)
        self._lookups = {place: lookup for place, lookup in self._lookups.items() if place in unclear}
        for place, search in begun.items():
            self._lookups[place] = Lookup(self._feed.connection, search)
        failed: KpsplitError | None = None
        for place, (send_state, writer) in unclear.items():
            lookup = self._lookups[place]
            if place in begun or not lookup.done():
                continue
            try:
                lookup.check()
            except KpsplitError as error:  # one log that cannot be read does not stop the others
                failed = failed or error
                continue
            del self._lookups[place]
            self._looked_up(send_state, writer, lookup.search)
        if failed is not None:
            raise failed

    def _search(self, send_state: SendState, writer: RouteWriter) -> Search:
        """Return the search for what is unplaced: no more is added to it once nothing is in flight."""
        name = writer.segment.source.topic
        first = min(item.earliest for item in writer.unplaced)
        wanted = {item.record.sequence for item in writer.unplaced}
        segment = send_state.state.lineage.get(writer.segment.id)
        home, topic_id = send_state.state.home(segment.source), send_state.state.topic_id_of(name) or None
        instance = self._producer.instance
        return Search(
            segment, first, home, instance, wanted, topic_id, lambda: send_state.state.is_retired(name)
        )

    def _looked_up(self, send_state: SendState, writer: RouteWriter, search: Search) -> None:
        with self._producer.lock.first:
            finals = send_state.looked_up(writer, search.found, complete=search.complete)
            self._producer.report(send_state, finals, None if search.complete else _LOG_GONE)


BUSY_SECONDS = 0.002
HOLDING_SECONDS = 0.02
"""While a fence only holds, only the control topic can end that, and it wakes the thread at once."""
LONGER = 1.5


class Looks:
    """How long to wait before each look for reports in a fence, or for a lease: each wait is longer.

    A hundred producers that look every two milliseconds leave the brokers, for which they wait, no processor.
    """

    def __init__(self) -> None:
        self._wait = BUSY_SECONDS

    def begin(self) -> None:
        """Something is new: look soon."""
        self._wait = BUSY_SECONDS

    def next(self) -> float:
        wait, self._wait = self._wait, min(self._wait * LONGER, HOLDING_SECONDS)
        return wait


def only_holds(send_state: PartitionSendState[Any, Any]) -> bool:
    """Return whether a partition is fenced, and nothing of it is in flight.

    Records whose reports wait for the outcome change nothing: the outcome comes through the control topic.
    """
    return bool(send_state.state.fenced_segments()) and send_state.quiescent()


AHEAD_SECONDS = 10.0
"""So long before max-pause producers settle who takes over, or half of max-pause if that is less.

On slow brokers the announcement takes seconds, and so does opening clients. Both are over when it is due.
Producers do not all announce at the same moment: the first announcement keeps the later ones away.
"""
GRACE_SECONDS = 1.0
"""An operator aborts by itself at max-pause; only one that is gone needs this much longer."""
SPREAD_SECONDS = 1.5
"""Producers do not all go on at the same moment when a turn of another one is over."""
UNSEEN_SECONDS = 5.0
"""How long an announcement is waited for in the view."""
CLAIM_SECONDS = 60.0
RETRY_SECONDS = 2.0


class Takeover:
    """Watches one fence; ``check`` is called by the library's thread, the claim runs in one of its own."""

    def __init__(
        self,
        connection: Connection,
        parent: PhysicalPartition,
        attempt_id: str,
        max_pause: float,
        announce: Callable[[Claim], None],
    ) -> None:
        self.attempt_id = attempt_id
        self._connection = connection
        self._parent = parent
        self._spread = random.uniform(0.0, SPREAD_SECONDS)
        over = monotonic() + max_pause
        self._due = over + GRACE_SECONDS
        ahead = min(AHEAD_SECONDS, max_pause / 2)
        self._next = over - ahead + random.uniform(0.0, ahead / 2)
        self._queue = ClaimQueue(token_hex(8), self._due)
        self._thread: threading.Thread | None = None
        self._announce = announce
        self._announced: Claim | None = None
        self._unseen_until = 0.0
        self._waits = False

    def check(self, view: ControlView) -> None:
        """Start the claim when its turn has come or is reserved."""
        decision = self.look(view)
        if (self._thread is None or not self._thread.is_alive()) and self.begins(decision):
            self._thread = threading.Thread(target=self._run, name="kpsplit-takeover", daemon=True)
            self._thread.start()

    def look(self, view: ControlView) -> Announce | WaitForTurn | Go:
        """Return whose turn it is as far as the view shows, and note it for a claim that is under way.

        A reservation becomes a claim when it is due: the others see that before this one has asked brokers.
        """
        state, now = view.state(self._parent), monotonic()
        revision, announced = 0 if state is None else state.revision, view.claims.get(self._parent, ())
        decision = self._queue.decide(revision, announced, now)
        ours = self._queue.has_turn(revision, announced)
        self._waits = isinstance(decision, WaitForTurn) and not ours
        if self._waits:
            self._next = max(self._next, now + self._spread)
        # A claim fences the operator, so it is announced first: another producer that sees it does not claim.
        if isinstance(decision, Go) and decision.claim not in announced:
            self._announce_once(decision.claim)
        return decision

    def begins(self, decision: Announce | WaitForTurn | Go) -> bool:
        """Return whether to begin the claim now; announce first what is to be announced.

        So only one producer opens clients and asks brokers that may be slow already. It does so as soon as
        the turn is reserved, and waits for the moment. An announcement may stay unseen (another operator's
        open transaction hides it, for example); once the takeover is due, this producer goes on without it.
        """
        now = monotonic()
        if now < self._next:
            return False
        if isinstance(decision, Announce):
            self._announce_once(decision.claim)
            return now >= max(self._unseen_until, self._due)
        return not self._waits

    def _announce_once(self, claim: Claim) -> None:
        if claim != self._announced:
            self._announced, self._unseen_until = claim, monotonic() + UNSEEN_SECONDS
            self._announce(claim)

    def roll_back(self, connection: Connection) -> bool:
        """Roll back, as the function does; give up when the view shows that another producer has the turn."""
        return roll_back(connection, self._parent, self.attempt_id, self._queue, lambda: self._waits)

    def rest(self) -> None:
        self._next = monotonic() + RETRY_SECONDS

    def _run(self) -> None:
        try:
            self.roll_back(self._connection)
        except ConflictError as error:
            log.info("another producer takes over %s: %s", self._parent, error)
        except KpsplitError as error:
            log.warning("could not take over %s: %s", self._parent, error)
        finally:
            self.rest()


def roll_back(
    connection: Connection,
    parent: PhysicalPartition,
    attempt_id: str,
    queue: ClaimQueue | None = None,
    waits: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim an operation and roll back the attempt if it still holds its fence. Return whether it did.

    Of all producers that want to do this one does, and the others wait; ``queue`` is what an earlier try
    knows of them. ``waits`` returns True when the view shows that another has the turn; this one gives up.

    Raises:
        KpsplitError: the claim failed; nothing was changed, or another operator works on it.
    """
    deadline = Deadline(AHEAD_SECONDS + GRACE_SECONDS + CLAIM_SECONDS)
    operation = OperationLog(connection, parent, queue)
    operation.connect()

    def fit(state: PartitionState) -> bool:
        if waits():
            raise ConflictError(f"{parent}: another operator has the turn to claim it", retriable=True)
        return _holds_its_fence(state, attempt_id)

    try:
        state = operation.claim(deadline, fit)
        if not _holds_its_fence(state, attempt_id):
            return False
        reason = "the operator did not finish within max-pause"
        operation.record(state, Abort(attempt_id, EndedBy.TAKEOVER, reason), deadline)
        log.warning("rolled back attempt %s on %s: its operator is gone", attempt_id, parent)
        return True
    finally:
        operation.close()


def _holds_its_fence(state: PartitionState, attempt_id: str) -> bool:
    return state.phase is Phase.FENCED and state.attempt is not None and state.attempt.id == attempt_id
