"""Changelogs: the form of their records, the topics of a group, and what a commit writes there.

Header ``kpc``, 9 bytes, big-endian: format version (1), partition (4), slots per partition (2), index (2). A
null value is a tombstone. The version stands in a header and not in the key, so that a record in a newer form
still replaces an older one of the same key when the topic is compacted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import NewPartitions

from kpsplit.clock import Deadline
from kpsplit.consumer.state.marker import ChangelogFacts
from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.pending import Writes
from kpsplit.consumer.state.slots import SlotId, changelog_topic, place_of
from kpsplit.control.own_topics import REPLICATION, OwnTopic, misfits, topic_config
from kpsplit.errors import (
    CheckFailedError,
    FutureVersionError,
    KpsplitError,
    RecordError,
    UnknownOutcomeError,
    UnreachableError,
    UsageError,
)
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, TopicFacts, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_ends import learn_leaders
from kpsplit.splitter.lineage import PhysicalPartition

VERSION = 1
HEADER = "kpc"
MAX_RECORD_BYTES = 900_000
"""Key and value together: below the changelog's ``max.message.bytes`` with all that Kafka adds."""


def headers_for(slot: SlotId) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of the changelog records of a slot."""
    return [(HEADER, bytes([VERSION]) + slot.place)]


def check_record(
    slot: SlotId, key: bytes | None, headers: Sequence[tuple[str, str | bytes | None]] | None
) -> None:
    """Do nothing if a record read from a slot's changelog partition is one of that slot.

    Raises:
        RecordError: not written by kpsplit, or malformed: to be counted and skipped.
        FutureVersionError: written by a newer kpsplit: reading on would be guessing.
        CheckFailedError: written for another number of slots per partition.
    """
    found = [value for name, value in headers or () if name == HEADER]
    header = found[0] if len(found) == 1 else None
    if key is None or not isinstance(header, bytes) or not header:
        raise RecordError("changelog: a record that kpsplit never writes")
    version, place = header[0], header[1:]
    if version > VERSION:
        raise FutureVersionError(
            f"changelog of {slot}: format version {version} is newer than {VERSION}", hint="upgrade kpsplit"
        )
    if version != VERSION:
        raise RecordError("changelog: malformed header")
    try:
        partition, slots, index = place_of(place)
    except ValueError:
        raise RecordError("changelog: malformed header") from None
    if slots != slot.slots:
        raise wrong_slots(slot, slots)
    if (partition, index) != (slot.partition, slot.index):
        raise RecordError("changelog: a record of another slot")


def wrong_slots(slot: SlotId, found: int | str) -> CheckFailedError:
    """Return the error for a changelog that was written with another number of slots per partition."""
    return CheckFailedError(
        f"the changelog of {slot} was written with {found} slots per partition, now there are {slot.slots}",
        hint="state is not divided anew: use another group, or delete the changelog and rebuild the state",
    )


_DEFAULT_DELETE_RETENTION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class _Checked:
    topic_id: str
    slots: int
    partitions: int
    delete_retention_ms: int


class Changelogs:
    """The changelogs of one group. Not thread safe: the follower's thread owns it."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._admin = ClusterAdmin(connection)
        self._checked: dict[str, _Checked] = {}

    def name(self, slot: SlotId) -> str:
        """Return the name of the changelog of a slot; the slot's number is its partition there."""
        return changelog_topic(self._group, slot.topic)

    def facts(self, slots: Sequence[SlotId], deadline: Deadline) -> dict[SlotId, ChangelogFacts]:
        """Return what the changelog partitions of slots of one topic hold now; it is made if it is missing.

        Raises:
            CheckFailedError: the topic exists and is not as it has to be. AuthorizationError: a right is
            missing. KpsplitError: the brokers could not be asked.
        """
        last = max(slots, key=lambda slot: slot.number)
        name = self.name(last)
        checked = self._checked.get(name)
        if checked is None or not self._is_still(name, last, checked):
            checked = self._checked[name] = self._check(name, last, deadline)
        places = {slot: PhysicalPartition(name, slot.number) for slot in slots}
        low = self._admin.start_offsets(places.values())
        high = self._admin.end_offsets(places.values())
        if len(low) < len(places) or len(high) < len(places):
            del self._checked[name]
            raise UnreachableError(f"some partitions of {name} do not answer", hint="retry")
        topic_id, retention = checked.topic_id, checked.delete_retention_ms
        return {
            slot: ChangelogFacts(topic_id, low[place], high[place].offset, retention)
            for slot, place in places.items()
        }

    def _is_still(self, name: str, slot: SlotId, checked: _Checked) -> bool:
        if slot.slots != checked.slots or slot.number >= checked.partitions:
            return False
        found = self._admin.layout(name)
        return found is not None and found.topic_id == checked.topic_id

    def _check(self, name: str, slot: SlotId, deadline: Deadline) -> _Checked:
        """Return the topic with all partitions that it needs, made or extended if need be."""
        wanted = self._wanted(slot)
        brokers = self._admin.brokers()
        replication = min(REPLICATION, len(brokers))
        if name not in self._admin.topics():
            self._admin.create(name, topic_config(replication), partitions=wanted, replication=replication)
            await_served(self._admin, {name: wanted}, deadline)
        found = self._admin.describe(name)
        wrong = misfits(OwnTopic(name, None), found, len(brokers))
        if wrong:
            raise CheckFailedError(
                f"the changelog {name} is not as it has to be: {wrong[0]}",
                hint="no state was read or written",
            )
        if len(found.partitions) != wanted:
            self._extend(found, slot, wanted)
            await_served(self._admin, {name: wanted}, deadline)
        learn_leaders(self._admin.client, name, ANSWER_SECONDS)  # it may remember fewer partitions
        retention = int(found.config.get("delete.retention.ms", _DEFAULT_DELETE_RETENTION_MS))
        return _Checked(found.topic_id, slot.slots, wanted, retention)

    def _wanted(self, slot: SlotId) -> int:
        parent = self._admin.known(slot.topic)
        if parent is None:
            raise UsageError(
                f"there is no topic {slot.topic}", hint="check the name and the right to describe"
            )
        return len(parent.partitions) * slot.slots

    def _extend(self, found: TopicFacts, slot: SlotId, wanted: int) -> None:
        """The topic got more partitions: so does the changelog. Any other difference is another division."""
        has = len(found.partitions)
        if has > wanted or has % slot.slots:
            raise wrong_slots(slot, f"{has} partitions, not {wanted}, for another number of")
        future = self._admin.client.create_partitions(
            [NewPartitions(found.name, wanted)], request_timeout=ANSWER_SECONDS
        )[found.name]
        try:
            future.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError) as exception:
            now = self._admin.layout(found.name)
            if now is not None and len(now.partitions) == wanted:  # another member was faster
                return
            error = error_of(exception) if isinstance(exception, KafkaException) else None
            raise translate(error, f"add partitions to {found.name}", writing=True) from exception


log = logging.getLogger(__name__)

_FULL_QUEUE_SECONDS = 0.05


class PlainWriter:
    """The producer for commits without a transaction, made at the first. Thread safe.

    The same one is kept after a timeout: then a second try of the same write lands after the first.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: Producer | None = None
        self._lock = Lock()

    def producer(self) -> Producer:
        """Return it."""
        with self._lock:
            if self._producer is None:
                self._producer = self._connection.open_producer(
                    "changelog", acks="all", enable_idempotence=True, linger_ms=5
                )
            return self._producer

    def forget(self) -> None:
        """The producer failed for good: the next commit makes another."""
        self._producer = None


@dataclass(slots=True)
class Part:
    """One slot's writes in a commit. ``last``: the greatest offset that was acknowledged."""

    owned: OwnedState
    topic: str
    writes: Writes
    acknowledged: int = 0
    last: int = -1
    error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report."""
        if error is not None:
            self.error = error
            return
        self.acknowledged += 1
        self.last = max(self.last, message.offset() or 0)

    @property
    def complete(self) -> bool:
        """Return whether every record is acknowledged."""
        return self.acknowledged == len(self.writes)


class ChangelogCommit:
    """Implements StateCommit. One thread; see ``hooks`` for the order of calls.

    Args:
        writer: for ``flush``.
        rewind: restores a slot anew whose local store could not follow.
    """

    def __init__(self, writer: PlainWriter, rewind: Callable[[OwnedState], None]) -> None:
        self._parts: list[Part] = []
        self._writer = writer
        self._rewind = rewind

    def add(self, part: Part) -> None:
        """Take a slot's writes into the commit; there may be none."""
        self._parts.append(part)

    @property
    def records(self) -> int:
        """How many changelog records it has."""
        return sum(len(part.writes) for part in self._parts)

    def write(self, producer: Producer, deadline: Deadline) -> None:
        """Produce the changelog records; see StateCommit."""
        for part in self._parts:
            part.acknowledged, part.last, part.error = 0, -1, None
            headers = headers_for(part.owned.slot)
            for key, value in part.writes.items():
                self._produce(producer, part, key, value, headers, deadline)

    def flush(self, deadline: Deadline) -> None:
        """Write the changelog records and wait for their acknowledgements; see StateCommit."""
        if self.records:
            try:
                self._flush(self._writer.producer(), deadline)
            except KpsplitError:
                self.aborted()
                raise
        self.committed()

    def committed(self) -> None:
        """The changelog has the records: the local store follows.

        A slot whose local store cannot follow is restored anew; nothing is lost.
        """
        now = int(time.time() * 1000)
        for part in self._parts:
            if not part.writes:
                part.owned.settled()
            elif not part.complete or not _applied(part, now):
                self._rewind(part.owned)

    def aborted(self) -> None:
        """The writes wait for the next commit."""
        for part in self._parts:
            part.owned.aborted()

    def _flush(self, producer: Producer, deadline: Deadline) -> None:
        self.write(producer, deadline)
        while not all(part.complete for part in self._parts):
            producer.flush(min(0.5, deadline.left()))
            error = next((part.error for part in self._parts if part.error), None)
            if error is not None:
                if error.fatal():
                    self._writer.forget()
                raise translate(error, "write the changelog", writing=True)
            if deadline.left() <= 0 and not all(part.complete for part in self._parts):
                raise UnknownOutcomeError(
                    "the changelog's acknowledgements did not come in time",
                    hint="no position was committed; the next commit writes them again",
                )

    def _produce(
        self,
        producer: Producer,
        part: Part,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
        deadline: Deadline,
    ) -> None:
        number = part.owned.slot.number
        while True:
            try:
                producer.produce(part.topic, value, key, number, part.report, headers=headers)
                return
            except BufferError:
                deadline.check("room in the producer's queue for changelog records")
                producer.poll(_FULL_QUEUE_SECONDS)
            except KafkaException as exception:
                raise translate(error_of(exception), "write the changelog", writing=True) from exception


def _applied(part: Part, now: int) -> bool:
    try:
        part.owned.committed(part.writes, part.last + 1, now)
    except KpsplitError as error:
        log.warning("kpsplit: the state of %s is restored anew: %s", part.owned.slot, error)
        return False
    return True
