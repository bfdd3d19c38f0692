"""What a report says of its circumstances: the cluster, the time, and when each epoch began.

The latter by the clock of the operator that cut: read from the markers that are still in the logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, Message

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_slice import read_at
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

MOST_READS = 32
"""So many records of one log are read, the newest: a picture with more epochs cannot be labelled anyway."""


@dataclass(frozen=True)
class Times:
    """Clock times in ms since 1970; ``epochs``: by logical partition and epoch, those that are known.

    ``cluster``: the cluster's id (left out if it does not say it) and where it was reached.
    """

    taken_ms: int
    epochs: Mapping[PhysicalPartition, Mapping[int, int]] = field(default_factory=dict)
    cluster: str = ""


def times_of(connection: Connection, snapshot: Snapshot, seconds: float) -> Times:
    """Return the times of a snapshot's epochs, as far as they can be read within some seconds."""
    taken, limit = time.time_ns() // 1_000_000, Deadline(seconds)
    wanted: dict[PhysicalPartition, list[tuple[int, PhysicalPartition, int]]] = {}
    for state in snapshot.states:
        for epoch, place, offset in beginnings(snapshot, state):
            wanted.setdefault(place, []).append((offset, state.parent, epoch))
    for asked in wanted.values():
        asked.sort(reverse=True)
    found: dict[PhysicalPartition, dict[int, int]] = {}
    for turn in range(min(MOST_READS, max(map(len, wanted.values()), default=0))):
        now = {place: asked[turn] for place, asked in wanted.items() if turn < len(asked)}
        messages = _read(connection, {place: offset for place, (offset, _, _) in now.items()}, limit)
        for place, (offset, parent, epoch) in now.items():
            at = _time(messages.get(place), offset)
            if at is not None:
                found.setdefault(parent, {})[epoch] = at
    return Times(taken, found, _cluster(connection))


def _cluster(connection: Connection) -> str:
    with suppress(KpsplitError, KafkaException):  # a report without its id is better than none
        return f"{ClusterAdmin(connection).cluster_id()} ({connection.bootstrap})"
    return connection.bootstrap


def beginnings(snapshot: Snapshot, state: PartitionState) -> Iterator[tuple[int, PhysicalPartition, int]]:
    """Yield one record per epoch that was written when it began: epoch, log, offset."""
    first = snapshot.bounds.get(state.parent)
    if first is not None and first.low == 0 < first.high:
        yield 0, state.parent, 0
    ended = {}
    for s in state.lineage:
        if s.closed_epoch is not None and s.end is not None and snapshot.holds(s.source, s.end):
            ended[s.closed_epoch] = s.source, s.end
    for epoch, (place, offset) in ended.items():
        yield epoch, place, offset


def _read(
    connection: Connection, offsets: Mapping[PhysicalPartition, int], limit: Deadline
) -> dict[PhysicalPartition, Message]:
    try:
        return read_at(connection, offsets, limit)
    except (KpsplitError, KafkaException):  # what was judged is told all the same
        return {}


def _time(message: Message | None, offset: int) -> int | None:
    if message is None or message.offset() != offset:
        return None
    kind, at = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else int(at)
