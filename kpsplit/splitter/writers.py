"""Which producers an operator must wait for (design, section 6).

Every producer that ever registered for the topic and did not close is asked at each PREPARE. One that stays
silent for a whole lease cannot have a fresh view any more (a lease is not renewed while an attempt is
unanswered), so the operator goes on without it. At the FENCE only those that answered PREPARE of *this*
attempt can still be writing, so only those are waited for.

That a producer stayed silent is noted (its registration *expired*) for people who look at the status. Nothing
is decided by the note: an operator that slept through the end of its attempt could write it about a producer
that is alive, and the next operation would wait for nobody (``tests/simulation`` has the trace).

The transactional id of a silent producer is fenced, unless another producer has taken it (with
``init_transactions``) after the silent one had registered: Kafka has fenced that one then, for a producer
takes its id once, before it registers. Otherwise one that died would cost the other its id at each operation.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.splitter.records.producers import Expiry, ProducerRecord

LEASE_MARGIN = 1.1
"""An operator waits this many leases: the rates of two monotonic clocks differ by far less."""


class Registrations:
    """The folded producers topic. Not thread safe; owned by whoever reads the topic."""

    def __init__(self) -> None:
        self._records: dict[int, ProducerRecord] = {}
        self._since: dict[int, int] = {}
        self._fenced_below: dict[str, int] = {}
        self._expired: dict[int, int] = {}

    def fold(self, record: ProducerRecord | Expiry, offset: int) -> None:
        """Take the next record of the topic, and where it lies."""
        if isinstance(record, Expiry):
            known = self._expired.get(record.instance, 0)
            self._expired[record.instance] = max(known, record.generation)
            return
        self._records[record.instance] = record
        self._since[record.instance] = offset if record.since is None else min(record.since, offset)
        if record.transactional_id is not None and record.fenced_below is not None:
            known = self._fenced_below.get(record.transactional_id, 0)
            # Where the topic ended before the record was written: a greater number is forged.
            self._fenced_below[record.transactional_id] = max(known, min(record.fenced_below, offset))

    def all(self) -> tuple[ProducerRecord, ...]:
        """Return every producer that ever registered, closed and expired ones as well."""
        return tuple(self._records.values())

    def is_expired(self, record: ProducerRecord) -> bool:
        """Tell whether an operator found the producer silent since it last registered."""
        return record.generation <= self._expired.get(record.instance, 0)

    def to_ask(self, topic: str) -> tuple[ProducerRecord, ...]:
        """Return the producers of a topic that an operator must ask: all that did not close."""
        return tuple(r for r in self._records.values() if topic in r.topics and not r.closed)

    def superseded(self, record: ProducerRecord) -> bool:
        """Tell whether another producer has taken the transactional id since this one has registered."""
        if record.transactional_id is None:
            return False
        return self._since[record.instance] < self._fenced_below.get(record.transactional_id, 0)

    def live(self, topic: str) -> tuple[ProducerRecord, ...]:
        """Return the producers of a topic that answered the latest operator, for people to look at."""
        return tuple(r for r in self.to_ask(topic) if not self.is_expired(r))


def not_ready(live: Iterable[ProducerRecord], partition: str, attempt_id: str) -> tuple[ProducerRecord, ...]:
    """Return the producers that have not answered PREPARE of this attempt."""
    return tuple(r for r in live if r.ready.get(partition) != attempt_id)


def not_acknowledged(
    live: Iterable[ProducerRecord], partition: str, attempt_id: str
) -> tuple[ProducerRecord, ...]:
    """Return the producers that answered PREPARE of this attempt and have not acknowledged its fence."""
    return tuple(
        r
        for r in live
        if r.ready.get(partition) == attempt_id and r.acknowledged.get(partition) != attempt_id
    )
