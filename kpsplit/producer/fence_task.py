"""What a fence asks of the library's thread: reports, acknowledgements, release, takeovers, log look-ups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from kpsplit.clock import Deadline, monotonic
from kpsplit.producer.lease import ControlFeed
from kpsplit.producer.lookup import Lookup, Search
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import RouteWriter, SendState
from kpsplit.producer.takeover import Takeover
from kpsplit.splitter.control_plane import ControlView, to_acknowledge
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Claim, claim_key, encode_claim
from kpsplit.splitter.records.keys import CONTROL_TOPIC, control_partition
from kpsplit.splitter.records.producers import PauseReport


class PauseClock:
    """Measures from the moment when a fence is seen to the moment when nothing of it is held any more."""

    def __init__(self) -> None:
        self._began: dict[PhysicalPartition, tuple[str, float, int, int]] = {}
        self.pauses_ms: list[int] = []

    def observe(self, send_state: SendState) -> None:
        """Note a new state of a partition."""
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
        self._pauses = PauseClock()
        self.pauses_ms = self._pauses.pauses_ms

    # -- the view ----------------------------------------------------------------------------------

    def adopt(self, view: ControlView) -> None:
        """Apply what is new in the control topic to every fence that it concerns (``lock`` held)."""
        producer = self._producer
        for send_state in producer.send_states():
            state = view.state(send_state.state.parent)
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
            pause, announce = attempt.max_pause_ms / 1000, partial(self._announce, parent)
            self._takeovers[parent] = Takeover(self._feed.connection, parent, attempt.id, pause, announce)

    def _announce(self, parent: PhysicalPartition, claim: Claim) -> None:
        writer, place = self._feed.registration.writer(), control_partition(parent)
        writer.send(CONTROL_TOPIC, claim_key(parent), encode_claim(claim), place)

    # -- in every turn -----------------------------------------------------------------------------

    def busy(self) -> list[SendState]:
        """Return the fences that wait for something."""
        return [f for f in self._producer.send_states() if f.busy()]

    def take_reports(self) -> None:
        """Take librdkafka's reports in hand while a fence waits for any, as the application may not poll."""
        if self.busy():
            self._producer.collect()
            self._producer.forget_unreported()

    def acknowledge(self) -> None:
        """Acknowledge the fences of segments that nothing is in flight of.

        Not once the end has begun: then routes are forgotten, and what is in flight with them.
        """
        with self._producer.lock.first:
            if self._stopping():
                return
            send_states = self._producer.send_states()
            quiescent = [f.state for f in send_states if f.state.attempt and f.quiescent()]
        if self._feed.tail is None:
            return
        ours, own = {f.state.parent for f in send_states}, self._feed.registration
        # Partitions that were added after we registered: an operator waits for our answer there as well.
        quiescent += [s for s in self._feed.states() if s.parent not in ours]
        for state in to_acknowledge(quiescent, own.record):
            if state.attempt is not None:
                own.acknowledge(str(state.parent), state.attempt.id, Deadline(ANSWER_SECONDS))

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

    def report_pauses(self) -> None:
        """Start takeovers that are due; report the length of pauses that are over."""
        for takeover in list(self._takeovers.values()):
            takeover.check(self._feed.following().view)
        with self._producer.lock.first:
            send_states = self._producer.send_states()
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
            for send_state in self._producer.send_states():
                for writer in send_state.unclear():
                    place = (send_state.state.parent, writer.segment.id)
                    unclear[place] = (send_state, writer)
                    if place not in self._lookups:
                        begun[place] = self._search(send_state, writer)
        self._lookups = {place: lookup for place, lookup in self._lookups.items() if place in unclear}
        for place, search in begun.items():
            self._lookups[place] = Lookup(self._feed.connection, search)
        for place, (send_state, writer) in unclear.items():
            lookup = self._lookups[place]
            if place not in begun and lookup.done():
                lookup.check()
                del self._lookups[place]
                self._looked_up(send_state, writer, lookup.search)

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


def only_holds(send_state: PartitionSendState[Any, Any]) -> bool:
    """Return whether a partition is fenced, and nothing of it is in flight or waits for the outcome."""
    return bool(send_state.state.fenced_segments()) and send_state.quiescent() and not send_state.pending()
