"""Appends markers inside the fence; everything slow is done before (protocol, section 7.2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.clock import Deadline
from kpsplit.errors import UnknownOutcomeError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, LogEnd, answer_within
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_tail import read_slice
from kpsplit.kafka.logical_message import headers_of
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Cut
from kpsplit.splitter.records.data import MARKER_HEADER, Marker, marker_among, newest_of
from kpsplit.splitter.steps import PlannedMarker

_POLL = 0.001
MOST_PRODUCERS = 8
_STATISTICS_MS = 100
_CONNECT_SECONDS = 3.0
_WARMING_POLL = 0.02
_MESSAGE_TIMEOUT_MS = 30_000


@dataclass(slots=True)
class _Append:
    """One marker on its way."""

    planned: PlannedMarker
    offset: int | None = None
    error: KafkaError | None = None
    done: bool = False

    def report(self, error: KafkaError | None, message: Message) -> None:
        self.done, self.error, self.offset = True, error, message.offset()

    def misdated(self) -> bool:
        """Return whether the broker takes no record of that time: its clock and ours are an hour apart."""
        return self.error is not None and self.error.code() == KafkaError.INVALID_TIMESTAMP


class Markers:
    """Appends markers with acks=all and idempotence, without a transaction. Not thread safe.

    ``prepare`` connects and remembers where the logs end; only then ``append`` is quick. After an unknown
    outcome the same call with the same markers reads the logs from there and reuses what it finds.
    """

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._producers: list[_WarmProducer] = []
        self._known: dict[PhysicalPartition, LogEnd] = {}
        self._newest: dict[PhysicalPartition, int] = {}
        self._unknown: set[str] = set()

    def prepare(self, places: Iterable[PhysicalPartition]) -> None:
        """Connect to the brokers and learn where these logs end; to be repeated when leaders have moved."""
        wanted = set(places) | set(self._known)
        while len(self._producers) < producers_for(len(wanted)):
            self._producers.append(_WarmProducer(self._admin.connection))
        limit = Deadline(_CONNECT_SECONDS)
        leaders = self._leaders(wanted)
        for producer in self._producers:
            producer.warm_up(leaders, limit)
        self._known |= self._admin.end_offsets(wanted)
        self._newest |= self._admin.newest_timestamps(wanted)

    def append(self, markers: Iterable[PlannedMarker], deadline: Deadline) -> tuple[Cut, ...]:
        """Append markers, all at once, and return where they stand.

        Raises:
            UnknownOutcomeError: an acknowledgement is missing; call again with the same markers.
            KpsplitError: refused, or no time left.
        """
        wanted = list(markers)
        deadline.check("the markers")
        there = self._read_back(wanted, deadline)
        appends = [_Append(m) for m in wanted if m.source not in there]
        self._send(appends, deadline)
        there |= {a.planned.source: a.offset for a in appends if a.offset is not None}
        epochs = self._leader_epochs(there, deadline)
        return tuple(Cut(m.segment, there[m.source], epochs.get(m.source)) for m in wanted)

    def keep_warm(self) -> None:
        """Take what the producers have to say out of their queues while nothing is appended."""
        for producer in self._producers:
            producer.poll(0)

    def close(self) -> None:
        """Drop the producers; nothing of theirs may be sent any more."""
        for producer in self._producers:
            producer.drop()
        self._producers = []

    def _leaders(self, places: Iterable[PhysicalPartition]) -> dict[str, dict[int, int | None]]:
        layouts = {topic: self._admin.layout(topic) for topic in {p.topic for p in places}}
        return {
            topic: {number: p.leader for number, p in enumerate(layout.partitions)}
            for topic, layout in layouts.items()
            if layout is not None
        }

    def _send(self, appends: list[_Append], deadline: Deadline) -> None:
        attempts = {a.planned.marker.attempt_id for a in appends}
        self._producers = self._producers or [_WarmProducer(self._admin.connection)]
        try:
            self._send_dated(appends, {}, deadline)
            misdated = [a for a in appends if a.misdated()]
            for append in misdated:  # refused, so it was not written
                append.done, append.error, append.offset = False, None, None
            self._send_dated(misdated, self._newest, deadline)
        except KafkaException as exception:
            self._unknown |= attempts
            self.close()
            raise translate(error_of(exception), "append the markers", writing=True) from exception
        failed = next((a for a in appends if a.error is not None or a.offset is None), None)
        if failed is not None:
            self._unknown |= attempts
            self.close()
            raise _failure(failed)

    def _send_dated(
        self, appends: list[_Append], times: Mapping[PhysicalPartition, int], deadline: Deadline
    ) -> None:
        """Produce markers with these timestamps, the present time where there is none, and wait."""
        for number, append in enumerate(appends):
            producer = self._producers[number % len(self._producers)]
            producer.send(append, times.get(append.planned.source, 0))
        while not all(a.done for a in appends) and deadline.left() > 0:
            for producer in self._producers:
                producer.poll(_POLL)

    def _read_back(self, wanted: list[PlannedMarker], deadline: Deadline) -> dict[PhysicalPartition, int]:
        found: dict[PhysicalPartition, int] = {}
        if not any(m.marker.attempt_id in self._unknown for m in wanted):
            return found
        ends = self._admin.end_offsets([m.source for m in wanted])
        for m in wanted:
            start = self._known.get(m.source, LogEnd(0, None)).offset
            end = ends.get(m.source, LogEnd(0, None)).offset
            offset = self._find(m, start, end, deadline)
            if offset is not None:
                found[m.source] = offset
        return found

    def _find(self, m: PlannedMarker, start: int, end: int, deadline: Deadline) -> int | None:
        limit = Deadline(deadline.left())
        after = read_slice(self._admin.connection, m.source, start, end, limit, "read_uncommitted")
        found = newest_of(((message.offset() or 0, marker_of(message)) for message in after), m.marker)
        limit.check(f"{m.source} to be read back")
        return found

    def _leader_epochs(
        self, places: Iterable[PhysicalPartition], deadline: Deadline
    ) -> dict[PhysicalPartition, int | None]:
        """Return in which leader epoch each marker was written, None where a leader changed meanwhile."""
        now = self._admin.end_offsets(places, seconds=answer_within(deadline))
        return {
            p: end.leader_epoch
            for p, end in now.items()
            if p in self._known and self._known[p].leader_epoch == end.leader_epoch
        }


class _WarmProducer:
    """A producer that is connected to every broker before it is needed: connecting would be pause."""

    def __init__(self, connection: Connection) -> None:
        self._connected = False
        self._producer = connection.open_producer(
            "markers",
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            message_timeout_ms=_MESSAGE_TIMEOUT_MS,
            retry_backoff_ms=20,
            retry_backoff_max_ms=200,
            topic_metadata_refresh_fast_interval_ms=20,
            enable_sparse_connections=False,
            stats_cb=self._note,
            statistics_interval_ms=_STATISTICS_MS,
        )

    def warm_up(self, leaders: Mapping[str, Mapping[int, int | None]], limit: Deadline) -> None:
        """Connect and learn the leaders; where that takes too long, appending will only take longer."""
        while not self._connected and limit.left() > 0:
            self._producer.poll(_WARMING_POLL)
        for topic, wanted in leaders.items():
            while self._leaders(topic) != wanted and limit.left() > 0:
                self._producer.poll(_WARMING_POLL)

    def send(self, append: _Append, timestamp: int) -> None:
        place, value = append.planned.source, append.planned.marker.encode()
        self._producer.produce(
            place.topic,
            value,
            partition=place.partition,
            on_delivery=append.report,
            # The time of the cut, for reports and seeks to a time. Brokers refuse that of a clock that is an
            # hour ahead: then the time of the newest record there, which they took before.
            timestamp=timestamp,
            headers=[(MARKER_HEADER, value)],
        )

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def drop(self) -> None:
        self._producer.purge()

    def _leaders(self, topic: str) -> dict[int, int | None]:
        try:
            found = self._producer.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic]
        except KafkaException as exception:
            raise translate(error_of(exception), f"find the leaders of {topic}") from exception
        return {n: p.leader if p.leader >= 0 else None for n, p in found.partitions.items()}

    def _note(self, statistics: str) -> None:
        self._connected = self._connected or is_connected(json.loads(statistics))


def producers_for(places: int) -> int:
    """Return how many producers append to so many partitions.

    A broker answers the requests of one connection one after the other, and librdkafka sends one request per
    partition: with one producer a merge of 64 phantoms would wait 64 times for all replicas.
    """
    return max(1, min(MOST_PRODUCERS, (places + 1) // 2))


def is_connected(statistics: Mapping[str, Any]) -> bool:
    """Return whether a producer has its idempotent id and a connection to every broker."""
    brokers = [b for b in statistics.get("brokers", {}).values() if b.get("nodeid", -1) >= 0]
    assigned = statistics.get("eos", {}).get("idemp_state") == "Assigned"
    return assigned and bool(brokers) and all(b.get("state") == "UP" for b in brokers)


def marker_of(message: Message) -> Marker | None:
    return marker_among(headers_of(message) or ())


def _failure(failed: _Append) -> Exception:
    what = f"append a marker to {failed.planned.source}"
    if failed.error is None:
        return UnknownOutcomeError(f"could not {what}: no acknowledgement in time that says where it stands")
    return translate(failed.error, what, writing=True)
