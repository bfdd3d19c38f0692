"""A producer's registration and its lease, and what its thread knows of the control topic.

docs/protocol.md, 6.1 to 6.3. Owned by the library's thread. A lease says: until then no operator cuts a
segment of ours unless we answered its PREPARE and acknowledged its fence. That rests on two rules:

1. Nothing is *owed* when the lease is renewed: every PREPARE in the view is answered. So while an operator
   waits for an answer that does not come, our lease runs out. An answer counts for readings that were asked
   for after it. A fence need not be acknowledged: a producer that has it in its view holds, and reports
   nothing more as final.
2. A registration ends with its lease. Only a reading that was asked for after the
   registration renews a lease, and only while the registration is good. An operator that found us silent for
   a lease, with its attempt still under way, so knows that our registration is over, and may remove it: we
   register again, under another key, before we answer or write anything.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError, RecordError
from kpsplit.kafka.connection import AdminUse, Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.log_ends import EndRequest, topic_id_of
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.producer.lookup import TIMEOUT_SECONDS
from kpsplit.producer.state import ProducerState
from kpsplit.splitter.control_plane import to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Claim, claim_key, encode_claim
from kpsplit.splitter.records.keys import CONTROL_TOPIC, PRODUCERS_TOPIC, control_partition
from kpsplit.splitter.records.producers import Certificate, PauseReport, ProducerRegistration

RETRY_SECONDS = 0.05
ANSWERS_KEPT = 32
"""A registration still names so many partitions whose operations are over."""


class Registration:
    """Keeps the record and publishes it; every write is acknowledged before the call returns.

    A registration is good for one lease, and as long as the lease is renewed. Operators may remove one that
    is over, at any time later. So nothing is written under it any more: the next write is a new registration,
    with its own key and with everything that the record says. After ``certify`` nothing is written at all: a
    write that another thread began before would open the registration again.

    Every method raises KpsplitError if the write is not known to have succeeded. ``record`` then lacks what
    it would have promised, but has what operators may count on: the topics, for which we must answer.
    """

    def __init__(
        self,
        connection: Connection,
        instance: int,
        client_id: str,
        transactional_id: str | None,
        lease_seconds: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._lease_seconds = lease_seconds
        self._writer: AcknowledgedWriter | None = None
        self._published = False
        self._registered: frozenset[str] = frozenset()
        self._began = self._good_until = 0.0
        self._over: list[bytes] = []
        self._writing = threading.Lock()
        self._closed = False
        self.writes = 0
        """How many of registrations, topics and readiness are acknowledged: what a lease rests on.

        An end of the control topic counts if asked for after the last one. Acknowledgements of fences and
        reports of pauses change nothing about a lease.
        """
        self.record = ProducerRegistration(
            instance=instance,
            generation=1,
            client_id=client_id,
            transactional_id=transactional_id,
        )

    def writer(self) -> AcknowledgedWriter:
        """Return the client that writes the record; it may write others too."""
        self._writer = self._writer or AcknowledgedWriter(self._connection, "registration")
        return self._writer

    def is_over(self) -> bool:
        """Return whether operators may go on without this producer until it registers again."""
        return self._published and monotonic() >= self._good_until

    def renews(self, asked: float) -> bool:
        """Return whether a reading that was asked for at this time renews the lease; note it if so."""
        if self._published and (asked < self._began or self.is_over()):
            return False
        self._good_until = max(self._good_until, asked + self._lease_seconds())
        return True

    def add_topic(self, topic: str, ready: dict[str, str], deadline: Deadline) -> None:
        """Register a topic, with the answers to its PREPAREs; the caller then reads the control topic."""
        if topic in self._registered:
            return
        topics = tuple(sorted({*self.record.topics, topic}))
        self.record = replace(self.record, topics=topics)
        self._publish(deadline, ready={**self.record.ready, **ready})

    def remove_topic(self, topic: str, deadline: Deadline) -> None:
        """Register a topic no more: it is enrolled no more. With the last one the registration goes."""
        rest: dict[str, Any] = {
            name: {p: said for p, said in getattr(self.record, name).items() if not p.startswith(f"{topic}/")}
            for name in ("ready", "acknowledged", "pauses")
        }
        topics = tuple(name for name in self.record.topics if name != topic)
        if topics:
            self._publish(deadline, topics=topics, **rest)
        elif self._published:
            self._withdraw(deadline)
            self.record = replace(self.record, generation=self.record.generation + 1, topics=(), **rest)

    def register_again(self, deadline: Deadline) -> None:
        if self.is_over():
            self._publish(deadline)

    def answer_ready(
        self, partition: str, attempt_id: str, under_way: Container[str], deadline: Deadline
    ) -> None:
        """Answer a PREPARE; forget the oldest answers to operations that are not under way any more.

        The whole record is written at every change: it must not grow with what a long life has seen.
        """
        ready = {p: said for p, said in self.record.ready.items() if p != partition}
        for ended in [p for p in ready if p not in under_way][:-ANSWERS_KEPT]:
            del ready[ended]
        ready[partition] = attempt_id
        rest: dict[str, Any] = {
            name: {p: said for p, said in getattr(self.record, name).items() if p in ready}
            for name in ("acknowledged", "pauses")
        }
        self._publish(deadline, ready=ready, **rest)

    def acknowledge(self, partition: str, attempt_id: str, deadline: Deadline) -> None:
        self._publish(deadline, acknowledged={**self.record.acknowledged, partition: attempt_id})

    def report_pause(self, partition: str, pause: PauseReport, deadline: Deadline) -> None:
        self._publish(deadline, pauses={**self.record.pauses, partition: pause})

    def certify(self, certificates: dict[str, Certificate], deadline: Deadline) -> None:
        """Say at the end what was done, in a registration of its own if that went with the last topic.

        A record has a largest size. Certificates that list too many failed records are left out then, the
        longest first: that the producer closed must be written in any case, because operators wait for it.
        """
        self._closed = True
        if self._published or certificates:
            closed = replace(self.record, closed=True)
            longest = sorted(certificates, key=lambda parent: -len(certificates[parent].failed))

            def without(count: int) -> dict[str, Certificate]:
                return {parent: certificates[parent] for parent in longest[count:]}

            left_out = bisect_left(
                range(len(longest)),
                True,
                key=lambda count: _fits(replace(closed, certificates=without(count))),
            )
            self._publish(deadline, closed=True, certificates=without(left_out))

    def _publish(self, deadline: Deadline, **changes: Any) -> None:
        with self._writing:
            if self._closed and "closed" not in changes:
                raise KpsplitError("the producer is closed: its registration is not written any more")
            self._write(replace(self.record, **changes), deadline)

    def _withdraw(self, deadline: Deadline) -> None:
        """Remove the registration: no operator waits for this producer. Its key is not used again."""
        with self._writing:
            if self._closed:
                return
            self._good_until = 0.0  # whatever becomes of the write: the next registration has another key
            removed = [(key, None) for key in (self.record.key, *self._over)]
            self.writer().write_all(PRODUCERS_TOPIC, removed, deadline)
            self._over.clear()
            self._published, self._registered = False, frozenset()
            self.writes += 1

    def _write(self, record: ProducerRegistration, deadline: Deadline) -> None:
        anew, began = not self._published or self.is_over(), monotonic()
        if anew:
            record = self._renumbered(record)
        removed = [(key, None) for key in self._over]
        self.writer().write_all(PRODUCERS_TOPIC, [(record.key, record.encode()), *removed], deadline)
        topics = frozenset(record.topics)
        if anew or topics != self._registered or record.ready != self.record.ready:
            self.writes += 1
        if anew:
            self._began, self._good_until = began, began + self._lease_seconds()
        self._over.clear()
        self.record, self._registered = record, topics

    def _renumbered(self, record: ProducerRegistration) -> ProducerRegistration:
        """Return the record of the next registration; it is over until it is known to be written."""
        if self._published:
            self._over.append(self.record.key)
            self.record = replace(self.record, generation=self.record.generation + 1)
        # Not good before the write is acknowledged: an operator might never see it.
        self._published, self._good_until = True, 0.0
        return replace(record, generation=self.record.generation)


def _fits(record: ProducerRegistration) -> bool:
    try:
        record.encode()
    except RecordError:
        return False
    return True


class ControlFeed:
    """``tail``: None until the control topic was found. Owned by the library's thread."""

    def __init__(self, connection: Connection, producer: ProducerState) -> None:
        settings = producer.settings
        self.connection = connection
        self.producer = producer
        self.tail: ControlTail | None = None
        self.registration = Registration(
            connection,
            producer.instance,
            settings.client_id,
            settings.transactional_id,
            self.lease_seconds,
        )
        self.admin = AdminUse(connection)
        """A client for looks at topics."""

    def find(self) -> bool:
        """Return whether there is a control topic; it is followed then."""
        if topic_id_of(self.admin(), CONTROL_TOPIC, TIMEOUT_SECONDS) is None:
            return False
        self.tail = ControlTail(self.connection)
        return True

    def announce(self, parent: PhysicalPartition, claim: Claim) -> None:
        value, place = encode_claim(claim), control_partition(parent)
        self.registration.writer().send(CONTROL_TOPIC, claim_key(parent), value, place)

    def close(self) -> None:
        if self.tail is not None:
            self.tail.close()
        self.admin.close()

    def following(self) -> ControlTail:
        """Return the tail; a KpsplitError to be tried again while there is none."""
        if self.tail is None:
            raise KpsplitError("the control topic was not found yet", retriable=True)
        return self.tail

    def lease_seconds(self) -> float:
        return self.following().view.settings.lease_ms / 1000

    def states(self) -> list[PartitionState]:
        """Return the states of partitions of our topics on which an operation is under way.

        Of those that were added a moment ago as well.
        """
        return [f.state for f in self.producer.active() if f.state.attempt] + self.unrouted_states()

    def unrouted_states(self) -> list[PartitionState]:
        """Return those of them whose partitions are not routed.

        An operator counts on our answers for every partition of a topic that we registered.
        """
        topics = self.registration.record.topics
        under_way = self.following().view.under_way()
        return [
            s for s in under_way if s.parent.topic in topics and not self.producer.send_states_of(s.parent)
        ]


def owes(states: Iterable[PartitionState], own: ProducerRegistration) -> bool:
    return bool(to_answer(states, own))


class LeaseTask:
    """Owned by the library's thread. ``adopted``: the tail's progress that is applied to the fences."""

    def __init__(self, feed: ControlFeed) -> None:
        self._feed = feed
        self._writes = 0
        self._producer = feed.producer
        self._request: EndRequest | None = None
        self._renew_at = 0.0
        self.adopted = -1

    def watch_time(self) -> None:
        """Hold everything once the lease has run out."""
        producer = self._producer
        if monotonic() >= producer.lease_until > 0:
            with producer.lock.first:
                producer.lapse()
            self._renew_at = 0.0

    def renew(self) -> None:
        """Renew the lease, without waiting.

        The view is good for a lease from when the end was asked for, once it is read and applied.
        """
        request = self._asked()
        if request is None or not request.done():
            return
        tail = self._feed.following()
        try:
            ends = request.result()
        except KpsplitError:
            self._request = None
            raise
        # Read is not enough: what was read must hold back reports before the lease is longer.
        if not tail.reached(ends) or self.adopted != tail.progress():
            return
        self._request = None
        self._renew_from(request.asked)

    def _asked(self) -> EndRequest | None:
        """Return the question for the control topic's end that is on its way, None if it is not time yet."""
        registration = self._feed.registration
        if self._writes != registration.writes:  # what was written counts only for ends asked for after it
            self._request, self._renew_at = None, 0.0
        if self._request is None and monotonic() >= self._renew_at:
            registration.register_again(Deadline(self._feed.lease_seconds()))
            self._writes = registration.writes
            self._request = self._feed.following().ask_end()
        return self._request

    def _renew_from(self, asked: float) -> None:
        producer, own = self._producer, self._feed.registration
        if owes(self._feed.states(), own.record) or not own.renews(asked):
            self._renew_at = monotonic() + RETRY_SECONDS
            return
        lease = self._feed.lease_seconds()
        with producer.lock.first:
            producer.renew(asked + lease)
        self._renew_at = asked + lease / 4  # leaves time for more tries before it runs out
