"""Changelogs: the form of their records, the topics of a group, and what a commit writes there.

Header ``kpc``, 9 bytes, big-endian: format version (1), partition (4), slots per partition (2), index (2). A
null value is a tombstone. The version stands in a header and not in the key, so that a record in a newer form
still replaces an older one of the same key when the topic is compacted.

An end record has a key of its own and no header: a slot's new owner writes one to learn where the log ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes
from threading import Lock

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from kpsplit.clock import Deadline
from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.slots import PLACE, SlotId
from kpsplit.consumer.state.storage import ChangelogFacts, Writes
from kpsplit.control.own_topics import (
    CHANGELOG_SEGMENT_BYTES,
    REPLICATION,
    OwnTopic,
    misfits,
    topic_config,
)
from kpsplit.errors import (
    AuthorizationError,
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
from kpsplit.kafka.error_map import TRANSIENT_READS, error_of, failed_for_good, library_error, translate
from kpsplit.kafka.log_ends import learn_leaders
from kpsplit.kafka.logical_message import headers_of
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, changelog_topic

log = logging.getLogger(__name__)

VERSION = 1
HEADER = "kpc"
_END_KEY = b"kpsplit.end."

Headers = Sequence[tuple[str, str | bytes | None]] | None


def headers_for(slot: SlotId) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of the changelog records of a slot."""
    return [(HEADER, bytes([VERSION]) + slot.place)]


def is_end_record(key: bytes | None, headers: Headers) -> bool:
    """Return whether a record only shows where the log ended; an application's record may have any key."""
    marked = any(name == HEADER for name, _ in headers or ())
    return not marked and key is not None and key.startswith(_END_KEY)


def check_record(slot: SlotId, key: bytes | None, headers: Headers) -> None:
    """Do nothing if a record read from a slot's changelog partition is one of that slot.

    Raises:
        RecordError: not written by kpsplit, or malformed: to be counted and skipped.
        FutureVersionError: written by a newer kpsplit: reading on would be guessing.
        CheckFailedError: written for another number of slots per partition.
    """
    partition, slots, index = _place_in(slot.topic, key, headers)
    if slots != slot.slots:
        raise _wrong_slots(slot, slots)
    if (partition, index) != (slot.partition, slot.index):
        raise RecordError("changelog: a record of another slot")


def _place_in(topic: str, key: bytes | None, headers: Headers) -> tuple[int, int, int]:
    """Return partition, slots per partition and index that a record was written for."""
    found = [value for name, value in headers or () if name == HEADER]
    header = found[0] if len(found) == 1 else None
    if key is None or not isinstance(header, bytes) or not header:
        raise RecordError("changelog: a record that kpsplit never writes")
    if header[0] > VERSION:
        raise FutureVersionError(
            f"changelog of {topic}: format version {header[0]} is newer than {VERSION}",
            hint="upgrade kpsplit",
        )
    if header[0] != VERSION or len(header) != 1 + PLACE.size:
        raise RecordError("changelog: malformed header")
    partition, slots, index = PLACE.unpack_from(header, 1)
    return partition, slots, index


def _wrong_slots(slot: SlotId, found: int | str) -> CheckFailedError:
    return CheckFailedError(
        f"the changelog of {slot} was written with {found} slots per partition, now there are {slot.slots}",
        hint="state is not divided anew: use another group, or delete the changelog and rebuild the state",
    )


_DEFAULT_DELETE_RETENTION_MS = 86_400_000
_LOOK_SECONDS = 0.05
_CERTAIN_SECONDS = 60.0
"""So long brokers may not agree on how many partitions a topic has."""


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
        self._doubted: dict[str, Deadline] = {}
        # At once, and connected to every broker: a slot that was taken stands still until its end is written.
        self._producer = connection.open_producer(
            "changelog-end",
            acks="all",
            enable_idempotence=False,
            linger_ms=0,
            message_timeout_ms=60_000,
            enable_sparse_connections=False,
        )

    def close(self) -> None:
        """End the clients, with their threads and connections."""
        del self._producer
        self._admin.close()

    def name(self, slot: SlotId) -> str:
        return changelog_topic(self._group, slot.topic)

    def facts(
        self, slots: Sequence[SlotId], deadline: Deadline, *, owned: bool
    ) -> dict[SlotId, ChangelogFacts]:
        """Return what the changelog partitions of slots of one topic hold now; it is made if it is missing.

        ``owned``: everything that was acknowledged before the call lies before ``high``, whatever a broker
        believes. For warm copies one broker's word is enough.

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
        high: dict[PhysicalPartition, int] | None = None
        if owned:
            with suppress(AuthorizationError):  # a tool that only reads: no commit of its own can follow
                high = self._written_ends(name, places.values(), deadline)
        written = high is not None
        if high is None:
            high = {place: end.offset for place, end in self._admin.end_offsets(places.values()).items()}
        if len(low) < len(places) or len(high) < len(places):
            del self._checked[name]
            raise UnreachableError(f"some partitions of {name} do not answer", hint="retry")
        topic_id, retention = checked.topic_id, checked.delete_retention_ms
        return {
            slot: ChangelogFacts(topic_id, low[place], high[place], retention, written)
            for slot, place in places.items()
        }

    def ends(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the high watermarks of changelog partitions; those that nobody knows are left out."""
        found = self._admin.end_offsets(PhysicalPartition(*place) for place in places)
        return {(place.topic, place.partition): end.offset for place, end in found.items()}

    def _written_ends(
        self, name: str, places: Collection[PhysicalPartition], deadline: Deadline
    ) -> dict[PhysicalPartition, int]:
        """Write a record to each partition; return where it stands.

        To ask for the high watermark is wrong: a broker that led the partition, was frozen and wakes up names
        the end that it remembers. But it acknowledges no write (docs/protocol.md, 5.2).
        """
        producer, what = self._producer, f"write to {name}"
        ends: dict[PhysicalPartition, int] = {}
        errors: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                errors.append(error)
            elif offset is not None and offset >= 0:
                ends[PhysicalPartition(name, message.partition() or 0)] = offset

        try:
            for place in places:
                # A key of its own, or it would replace another record; no value, or it would stay for good.
                key = _END_KEY + token_bytes(16)
                send = partial(producer.produce, name, key=key, partition=place.partition, on_delivery=report)
                _produce(producer, send, deadline)
            while len(ends) + len(errors) < len(places) and not deadline.expired():
                producer.poll(min(_LOOK_SECONDS, deadline.left()))
            if errors:
                raise translate(errors[0], what, writing=True)
        except UsageError as error:
            del self._checked[name]
            raise UnreachableError(f"some partitions of {name} are not known yet", hint="retry") from error
        if len(ends) < len(places):
            raise UnknownOutcomeError(f"could not {what}: no acknowledgement in time", hint="retry")
        return ends

    def _is_still(self, name: str, slot: SlotId, checked: _Checked) -> bool:
        if slot.slots != checked.slots or slot.number >= checked.partitions:
            return False
        found = self._admin.layout(name)
        return found is not None and found.topic_id == checked.topic_id

    def _check(self, name: str, slot: SlotId, deadline: Deadline) -> _Checked:
        """Return the topic with all partitions that it needs, made or extended if need be."""
        parent = self._admin.known(slot.topic)
        if parent is None:
            raise UsageError(
                f"there is no topic {slot.topic}", hint="check the name and the right to describe"
            )
        wanted = len(parent.partitions) * slot.slots
        replication = self._replication()
        config = topic_config(replication, CHANGELOG_SEGMENT_BYTES)
        enough = int(config.get("min.insync.replicas", "1"))  # a broker may be away
        if name not in self._admin.topics():
            self._admin.create(name, config, partitions=wanted, replication=replication)
            await_served(self._admin, {name: wanted}, deadline, enough)
        found = self._admin.describe(name)
        wrong = misfits(OwnTopic(name, None), found, replication)
        if wrong:
            raise CheckFailedError(
                f"the changelog {name} is not as it has to be: {wrong[0]}",
                hint="no state was read or written",
            )
        if len(found.partitions) != wanted:
            self._extend(found, slot, wanted, deadline)
            await_served(self._admin, {name: max(wanted, len(found.partitions))}, deadline, enough)
        self._doubted.pop(name, None)
        for client in (self._admin.client, self._producer):  # they may remember fewer partitions
            learn_leaders(client, name, ANSWER_SECONDS)
        retention = int(found.config.get("delete.retention.ms", _DEFAULT_DELETE_RETENTION_MS))
        return _Checked(found.topic_id, slot.slots, max(wanted, len(found.partitions)), retention)

    def _replication(self) -> int:
        """Return how many replicas a changelog has: as many as the topics that ``kpsplit init`` made.

        Not one for each broker that is alive now: a changelog that is made while one is away would have too
        few for good, and be refused when that one is back.
        """
        own: TopicFacts | None = None
        with suppress(AuthorizationError):  # groups of topics that are not enrolled need no right there
            own = self._admin.layout(OFFSETS_TOPIC)
        return min(REPLICATION, own.replication if own is not None else len(self._admin.brokers()))

    def _extend(self, found: TopicFacts, slot: SlotId, wanted: int, deadline: Deadline) -> None:
        """The topic got more partitions: so does the changelog."""
        has = len(found.partitions)
        if has % slot.slots:
            raise _wrong_slots(slot, f"{has} partitions, not {wanted}, for another number of")
        written = self._check_division(found, slot, deadline)
        if has > wanted:
            if written:
                raise self._disagreement(found.name, slot, has, wanted)
            return  # nothing was ever written there
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

    def _disagreement(self, name: str, slot: SlotId, has: int, wanted: int) -> KpsplitError:
        """Return the error for a changelog with more partitions than its topic needs; at first to be retried.

        A broker that lags behind names fewer partitions of a topic that has grown. That does not last.
        """
        certain = self._doubted.setdefault(name, Deadline(_CERTAIN_SECONDS)).expired()
        return (CheckFailedError if certain else UnreachableError)(
            f"the changelog {name} has {has} partitions, a broker says that {wanted} are needed",
            hint=f"a broker lags behind, or {slot.topic} was made anew with fewer: use another group then",
        )

    def _check_division(self, found: TopicFacts, slot: SlotId, deadline: Deadline) -> bool:
        """Look for a record that was written with another number of slots; return whether there are records.

        Four partitions are one for each of four slots, or four for each of one. Once it is extended nobody
        could tell: slots with the added partitions would begin without the state that their keys had.
        """
        left = set(range(len(found.partitions)))
        reader = self._connection.open_reader("state-division", auto_offset_reset="error")
        try:
            reader.assign([TopicPartition(found.name, number, OFFSET_BEGINNING) for number in left])
            while left:
                deadline.check(f"the records of {found.name}")
                message = reader.poll(_LOOK_SECONDS)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    try:
                        _, slots, _ = _place_in(slot.topic, message.key(), headers_of(message))
                    except FutureVersionError:
                        raise
                    except RecordError:
                        continue
                    if slots != slot.slots:
                        raise _wrong_slots(slot, slots)
                    return True  # all were written with the same number
                if error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
                elif error.code() not in TRANSIENT_READS:
                    raise translate(error, f"read the changelog {found.name}")
            return False
        finally:
            reader.close()


class PlainWriter:
    """The producer for commits without a transaction, made at the first. Thread safe.

    The same one is kept after a timeout: then a second try of the same write lands after the first.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: Producer | None = None
        self._lock = Lock()

    def producer(self) -> Producer:
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
class _Tried:
    """What became of one try to write a slot's records; late reports of an earlier try count there."""

    offsets: list[int] = field(default_factory=list)
    error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = error
        else:
            self.offsets.append(message.offset() or 0)


@dataclass(slots=True)
class Part:
    """One slot's writes in a commit; there may be none."""

    owned: OwnedState
    topic: str
    writes: Writes
    tried: _Tried = field(default_factory=_Tried)

    @property
    def complete(self) -> bool:
        """Return whether every record is acknowledged."""
        return len(self.tried.offsets) == len(self.writes)


class ChangelogCommit:
    """Implements StateCommit. One thread; see ``slots`` for the order of calls.

    Args:
        writer: for ``flush``.
        rewind: restores a slot anew whose local store could not follow.
    """

    def __init__(self, writer: PlainWriter, rewind: Callable[[OwnedState], None]) -> None:
        self.parts: list[Part] = []
        self._writer = writer
        self._rewind = rewind

    def write(self, producer: Producer, deadline: Deadline) -> None:
        """Produce the changelog records; see StateCommit."""
        for part in self.parts:
            part.tried = _Tried()
            slot = part.owned.slot
            send = partial(
                producer.produce,
                part.topic,
                partition=slot.number,
                on_delivery=part.tried.report,
                headers=headers_for(slot),
            )
            for key, value in part.writes.items():
                _produce(producer, partial(send, value=value, key=key), deadline)

    def flush(self, deadline: Deadline) -> None:
        """Write the changelog records and wait for their acknowledgements; see StateCommit."""
        if any(part.writes for part in self.parts):
            try:
                self._flush(self._writer.producer(), deadline)
            except BaseException as raised:  # whatever it is: what was cut must not stay so
                if failed_for_good(raised):
                    self._writer.forget()
                self.aborted()
                raise
        self.committed()

    def committed(self) -> None:
        """The changelog has the records: the local store follows.

        A slot whose local store cannot follow is restored anew; nothing is lost.
        """
        now = int(time.time() * 1000)
        for part in self.parts:
            if not part.complete or not _applied(part, now):
                self._rewind(part.owned)

    def aborted(self) -> None:
        """The writes wait for the next commit."""
        for part in self.parts:
            part.owned.aborted()

    def _flush(self, producer: Producer, deadline: Deadline) -> None:
        self.write(producer, deadline)
        while not all(part.complete for part in self.parts):
            try:
                producer.flush(min(0.5, deadline.left()))
            except (KafkaException, SystemError) as raised:
                raise translate(library_error(raised), "write the changelog", writing=True) from raised
            error = next((part.tried.error for part in self.parts if part.tried.error), None)
            if error is not None:
                raise translate(error, "write the changelog", writing=True) from KafkaException(error)
            if deadline.left() <= 0 and not all(part.complete for part in self.parts):
                raise UnknownOutcomeError(
                    "the changelog's acknowledgements did not come in time",
                    hint="no position was committed; the next commit writes them again",
                )


def _produce(producer: Producer, send: Callable[[], None], deadline: Deadline) -> None:
    while True:
        try:
            send()
            return
        except BufferError:
            deadline.check("room in the producer's queue for changelog records")
            producer.poll(_LOOK_SECONDS)
        except KafkaException as exception:
            raise translate(error_of(exception), "write the changelog", writing=True) from exception


def _applied(part: Part, now: int) -> bool:
    try:
        part.owned.committed(part.writes, max(part.tried.offsets, default=-1) + 1, now)
    except KpsplitError as error:
        log.warning("kpsplit: the state of %s is restored anew: %s", part.owned.slot, error)
        return False
    return True
