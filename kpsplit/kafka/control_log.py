"""The control topic: all read it, the holder of an operation writes it (protocol, sections 4 and 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from time import sleep

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import (
    AuthorizationError,
    ConflictError,
    FencedError,
    InvariantError,
    KpsplitError,
    RecordError,
    UnknownOutcomeError,
    UsageError,
    after_a_change,
)
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import FENCED, error_of, translate
from kpsplit.kafka.log_tail import LogTail
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.claimed_log import ClaimedLog, ClaimQueue, FencedLog
from kpsplit.splitter.commits import MOST_WITHDRAWN
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import (
    Attempt,
    Commit,
    Event,
    Fence,
    OperationKind,
    PartitionState,
    Prepare,
)
from kpsplit.splitter.records.control import (
    Claim,
    Enrolment,
    claim_key,
    decode_claim,
    encode_claim,
    encode_enrolment,
    encode_state,
    enrolment_claim_key,
)
from kpsplit.splitter.records.keys import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    control_partition,
    enroller_transactional_id,
    enrolment_key,
    offsets_partition,
    operator_transactional_id,
    partition_key,
)
from kpsplit.splitter.records.offsets import boundaries

MIN_TIMEOUT = 0.05
_ENROLMENTS = control_partition(None)
"""Where the enrolments stand."""


class TakingId:
    """Makes a transactional producer ready. Not thread safe.

    What was not over in time is gone on with at the next call: where connecting takes longer than a deadline,
    beginning anew each time would never end.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._opening: Producer | None = None

    def open(self) -> Producer:
        """Have a producer connect while something else is done, and return it."""
        self._opening = self._opening or self._make()
        return self._opening

    def take(self, deadline: Deadline) -> Producer:
        """Return a producer that has the id; the holder before it is fenced.

        Raises:
            KafkaException: not in time, or refused.
        """
        producer = self.open()
        try:
            producer.init_transactions(max(deadline.left(), MIN_TIMEOUT))
        except KafkaException as exception:
            error = error_of(exception)
            if error is None or not error.retriable():
                self._opening = None
            raise
        self._opening = None
        return producer

    def forget(self) -> None:
        self._opening = None


TRANSACTION_TIMEOUT_MS = 10_000
"""A holder that dies inside a transaction holds up readers of the control topic for no longer."""


class OperatorProducer:
    """The producer by whose transactional id the operators of one thing fence each other. Not thread safe.

    ``claimed``: what the id stands for, as errors name it. ``taken``: the producer that has the id, None
    before it is taken and after a write that failed.
    """

    def __init__(self, connection: Connection, transactional_id: str, claimed: str) -> None:
        make = partial(
            connection.open_producer,
            "operator",
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=0,
            # Connect to the leader of the offset log now: connecting at the commit would be pause.
            enable_sparse_connections=False,
        )
        self._taking = TakingId(make)
        self._what = f"claim {claimed} as {transactional_id}"
        self.taken: Producer | None = None

    def open(self) -> None:
        """Have it connect while something else is done."""
        self._taking.open()

    def take(self, deadline: Deadline) -> Producer:
        """Take the id: every earlier holder is fenced, and their transactions are decided."""
        self.discard()
        try:
            self.taken = self._taking.take(deadline)
        except KafkaException as exception:
            raise _refused(error_of(exception), self._what) from exception
        return self.taken

    def write(
        self, records: Iterable[tuple[str, int, bytes, bytes | None]], what: str, deadline: Deadline
    ) -> int:
        """Write records (topic, partition, key, value) in one transaction.

        Returns:
            Where that of the control topic stands.

        Raises:
            FencedError: a newer holder has the id. UnknownOutcomeError: read back what became of it.
        """
        producer, offsets, began = self.taken, list[int](), monotonic()
        if producer is None:
            raise InvariantError(f"could not {what}: it is not claimed")
        try:
            producer.begin_transaction()
            for topic, partition, key, value in records:
                report = _kept(offsets) if topic == CONTROL_TOPIC else None
                producer.produce(topic, value, key, partition, report)
            producer.commit_transaction(max(deadline.left(), MIN_TIMEOUT))
        except KafkaException as exception:
            self.discard()
            translated = _refused(error_of(exception), what, monotonic() - began)
            if isinstance(translated, FencedError | UnknownOutcomeError | AuthorizationError):
                raise translated from exception
            raise UnknownOutcomeError(translated.message) from exception
        if not offsets:
            self.discard()
            raise UnknownOutcomeError(f"could not {what}: no acknowledgement")
        return offsets[0]

    def discard(self) -> None:
        """A producer is never used again after a commit that failed: a late EndTxn could hit a later one."""
        self.taken = None

    def close(self) -> None:
        self.discard()
        self._taking.forget()


READ_BACK_SECONDS = 10.0
"""For what is written already, however little time is left for the operation."""
WITHDRAW_SECONDS = 1.0
FENCE_READ_BACK_SECONDS = 1.0
"""The same for a fence: after max-pause there is nothing to wait for."""


class ControlTail(LogTail):
    """A view of the control topic that follows it. Not thread safe: one thread owns it.

    ``partitions``: those that are followed; what stands in others is not in the view.
    """

    def __init__(self, connection: Connection, partitions: Iterable[int] = range(CONTROL_PARTITIONS)) -> None:
        self.view = ControlView()
        self.offsets: dict[PhysicalPartition, int] = {}
        """Where the latest state of each logical partition stands."""
        self.changed: set[PhysicalPartition | str] = set()
        """Partitions and topics of which a record was read; whoever applies them empties it."""
        super().__init__(connection, CONTROL_TOPIC, self._fold_record, partitions)

    def read_all(self, deadline: Deadline) -> ControlView:
        """Read everything that was decided when the call began; return the view.

        Raises:
            DeadlineExceededError: not in time. KpsplitError: the topic cannot be read.
        """
        self.read_to_end(deadline)
        return self.view

    def _fold_record(self, message: Message) -> None:
        subject = self.view.fold(message.key(), message.value(), message.partition())
        if isinstance(subject, PhysicalPartition):
            self.offsets[subject] = message.offset() or 0
        if subject is not None:
            self.changed.add(subject)


class OperationLog(ClaimedLog):
    """Implements the driver's ControlPort for one logical partition. Not thread safe.

    ``queue``: that of an earlier try of the same claimer.
    """

    def __init__(
        self, connection: Connection, parent: PhysicalPartition, queue: ClaimQueue | None = None
    ) -> None:
        super().__init__(queue or ClaimQueue(token_hex(8)))
        self._connection = connection
        self._parent = parent
        self._place = control_partition(parent)
        self._tail = ControlTail(connection, {control_partition(None), self._place})
        self._producer = OperatorProducer(connection, operator_transactional_id(parent), str(parent))
        self._offsets_partitions = 0
        self._claims: list[Claim] = []
        self._claims_tail: LogTail | None = None
        self._announcer: AcknowledgedWriter | None = None

    def connect(self) -> None:
        """Have the clients that a claim needs connect side by side."""
        self._producer.open()
        self._open_announcer()

    def lease_seconds(self) -> float:
        return self._tail.view.settings.lease_ms / 1000

    def peek(self, deadline: Deadline) -> PartitionState:
        """Return the partition's state without claiming it."""
        self._tail.read_to_end(deadline)
        return self.seen()

    def seen(self) -> PartitionState:
        """Return the state that was read last, without asking again."""
        return self._tail.view.enrolled_state(self._parent)

    def _announced(self, deadline: Deadline) -> Sequence[Claim]:
        """Read the announcements; before the state that the first claim is about none counts."""
        if self._claims_tail is None:
            begin = self._tail.offsets.get(self._parent, 0)
            what = self._connection, CONTROL_TOPIC, self._fold_claim, (self._place,)
            self._claims_tail = LogTail(*what, everything=True, begin=begin)
        self._claims_tail.read_to_end(deadline)
        return self._claims

    def _fold_claim(self, message: Message) -> None:
        if message.key() != claim_key(self._parent):
            return
        if message.value() is None:  # withdrawn: nobody is at it
            self._claims.clear()
            return
        with suppress(RecordError):  # garbage: counted by the readers of states
            self._claims.append(decode_claim(message.value()))

    def _announce(self, claim: Claim, deadline: Deadline) -> int:
        return self._write_claim(encode_claim(claim), deadline) + 1

    def _write_claim(self, value: bytes | None, deadline: Deadline) -> int:
        key = claim_key(self._parent)
        return self._open_announcer().write(CONTROL_TOPIC, key, value, deadline, partition=self._place)

    def _open_announcer(self) -> AcknowledgedWriter:
        self._announcer = self._announcer or AcknowledgedWriter(self._connection, "claim", idempotent=False)
        return self._announcer

    def _withdraw(self) -> None:
        """Withdraw a claim that led to nothing; where that fails the others wait for its turn to end.

        Not where the turn is another claimer's by now: the next to come would fence the one at work.
        """
        revision, deadline = self.seen().revision, Deadline(WITHDRAW_SECONDS)
        if self._queue.has_turn(revision, self._claims) and self._queue.has_turn(
            revision, self._announced(deadline)
        ):
            self._write_claim(None, deadline)

    def _wait(self, seconds: float, deadline: Deadline) -> None:
        deadline.check(f"another process to finish its claim of {self._parent}")
        sleep(min(seconds, deadline.left()))

    def _now(self) -> float:
        return monotonic()

    def _take(self, deadline: Deadline) -> None:
        """See ClaimedLog.

        Where an earlier call did not come through in time somebody may have claimed it since: the first
        write is refused then.
        """
        producer = self._producer.take(deadline)
        if self._offsets_partitions:
            self._learn_leaders(producer, deadline)

    def _read_decided(self, end: int, deadline: Deadline) -> None:
        self._tail.read_to({self._place: end}, deadline)

    def _read_back(self, end: int, event: Event, deadline: Deadline) -> None:
        patience = FENCE_READ_BACK_SECONDS if isinstance(event, Fence) else READ_BACK_SECONDS
        self._tail.read_to({self._place: end}, Deadline(max(deadline.left(), patience)))

    def close(self) -> None:
        with suppress(KpsplitError):
            self._withdraw()
        if self._claims_tail is not None:
            self._claims_tail.close()
        self._announcer = None
        self._producer.close()
        self._tail.close()

    def _count_offsets_partitions(self, deadline: Deadline) -> int:
        admin = self._connection.shared_admin()
        try:
            found = admin.list_topics(timeout=max(deadline.left(), MIN_TIMEOUT)).topics.get(OFFSETS_TOPIC)
        except KafkaException as exception:
            raise translate(error_of(exception), "read the cluster's topics") from exception
        if found is None or not found.partitions:
            raise UsageError(f"there is no topic {OFFSETS_TOPIC}", hint="run: kpsplit init")
        return len(found.partitions)

    def _write(self, after: PartitionState, event: Event, deadline: Deadline) -> int:
        deadline.check(f"the {event.kind} of {self._parent}")
        producer = self._producer.taken
        records = [(CONTROL_TOPIC, self._place, partition_key(self._parent), encode_state(after))]
        if isinstance(event, Prepare | Commit):  # an operator that only rolls back needs none
            self._offsets_partitions = self._offsets_partitions or self._count_offsets_partitions(deadline)
        if isinstance(event, Prepare) and producer is not None:
            self._refuse_split(event.attempt, deadline)
            self._learn_leaders(producer, deadline)
        if isinstance(event, Commit):
            records += self._boundary_records(after)
        topics = " and ".join(dict.fromkeys(topic for topic, *_ in records))
        what = f"record the {event.kind} of {self._parent} in {topics}"
        return self._producer.write(records, what, deadline)

    def _refuse_split(self, attempt: Attempt, deadline: Deadline) -> None:
        """Raises where the topic returns to plain clients, or is enrolled again and not settled yet.

        The operator of a return has claimed the partition before us. So its first record lies before this
        claim, and before what is written here (protocol, section 10.16).
        """
        if attempt.kind is not OperationKind.SPLIT:
            return
        topic = self._parent.topic
        end = _marked(self._open_announcer(), topic, deadline)
        self._tail.read_to({_ENROLMENTS: end}, deadline)
        enrolment = self._tail.view.enrolments.get(topic)
        if enrolment is None:
            raise self._tail.view.not_enrolled(topic)
        if (obstacle := enrolment.split_obstacle) is not None:
            verb = "unenroll" if enrolment.returning else "enroll"
            raise ConflictError(obstacle, hint=f"run: kpsplit {verb} {topic}")

    def _learn_leaders(self, producer: Producer, deadline: Deadline) -> None:
        """Look for the leaders of the offset log before the fence: at the commit that would be pause."""
        with suppress(KafkaException):
            producer.list_topics(OFFSETS_TOPIC, timeout=min(max(deadline.left(), MIN_TIMEOUT), 1.0))

    def _boundary_records(self, after: PartitionState) -> Iterable[tuple[str, int, bytes, bytes]]:
        partition = offsets_partition(self._parent, self._offsets_partitions)
        return [(OFFSETS_TOPIC, partition, b.key, b.encode()) for b in boundaries(after)]


class EnrolmentLog(FencedLog):
    """The enrolment of one topic, and its operators' way to write it. Not thread safe.

    An operator claims it for each record anew: looks, writes, and is fenced by whoever claims in between. So
    nobody waits for a turn. Of operators that come at the same time the last one to claim writes; the others
    look again.

    ``tail``: a reader of the control topic. ``writer``: for the record up to which a claim reads.
    """

    def __init__(
        self, connection: Connection, topic: str, tail: ControlTail, writer: AcknowledgedWriter
    ) -> None:
        self._topic, self._tail, self._writer = topic, tail, writer
        self._producer = OperatorProducer(connection, enroller_transactional_id(topic), f"topic {topic}")

    def look(self, deadline: Deadline) -> Enrolment | None:
        """Return the enrolment that is recorded now, be it of a topic that is left; fences nobody."""
        return self._tail.read_all(deadline).recorded(self._topic)

    def claim(self, deadline: Deadline) -> Enrolment | None:
        """Fence every earlier operator; return the enrolment, with everything that they wrote decided."""
        self._fence(partial(_marked, self._writer, self._topic), deadline)
        return self._tail.view.recorded(self._topic)

    def withdraw(self, commits: Sequence[tuple[int, bytes]], deadline: Deadline) -> None:
        """Withdraw range commits (partition of the offset log, key) by the claim, which stays.

        Raises:
            FencedError: another operator claimed the topic since. KpsplitError: some may be withdrawn.
        """
        what = f"withdraw commits of {self._topic} in {OFFSETS_TOPIC}"
        for first in range(0, len(commits), MOST_WITHDRAWN):
            with after_a_change(done=first > 0):
                deadline.check(what)
                tombstones = [(OFFSETS_TOPIC, *c, None) for c in commits[first : first + MOST_WITHDRAWN]]
                # What a transaction came to is known by its record in the control topic.
                mark = (CONTROL_TOPIC, _ENROLMENTS, enrolment_claim_key(self._topic), None)
                self._producer.write([*tombstones, mark], what, deadline)

    def record(self, enrolment: Enrolment, deadline: Deadline, hint: str) -> None:
        """Write an enrolment, and read it back; ``hint``: the next step where it is, or may be, written.

        Raises:
            FencedError: another operator claimed the topic since; nothing was written.
            DeadlineExceededError: no time was left; nothing was written.
        """
        what = f"record the enrolment of {self._topic}"
        deadline.check(what)
        records = [(CONTROL_TOPIC, _ENROLMENTS, enrolment_key(self._topic), encode_enrolment(enrolment))]
        try:
            offset = self._producer.write(records, what, deadline)
        except UnknownOutcomeError as error:
            error.hint = hint
            raise
        self._producer.close()
        with after_a_change(hint):
            self._read_decided(offset + 1, deadline)

    def _take(self, deadline: Deadline) -> None:
        self._producer.take(deadline)

    def _read_decided(self, end: int, deadline: Deadline) -> None:
        self._tail.read_to({_ENROLMENTS: end}, deadline)


def _marked(writer: AcknowledgedWriter, topic: str, deadline: Deadline) -> int:
    """Write a record that changes nothing where enrolments are; return where what comes after it begins."""
    key = enrolment_claim_key(topic)
    return writer.write(CONTROL_TOPIC, key, None, deadline, partition=_ENROLMENTS) + 1


def _refused(error: KafkaError | None, what: str, written_for: float | None = None) -> KpsplitError:
    """Return kpsplit's error for one of the holder's producer, whose id only operators take.

    ``written_for``: since when a transaction is open, in seconds. Brokers end one that takes too long, and
    refuse it then with the same error.
    """
    if error is None or error.code() not in FENCED:
        return translate(error, what, writing=written_for is not None)
    why, hint = "another operator took over", "look at: kpsplit status"
    if written_for is not None and written_for >= TRANSACTION_TIMEOUT_MS / 1000:
        why += f", or the brokers ended the transaction, which took {written_for:.0f} s"
        hint += "; if no other operator is at work, run the same command again"
    return FencedError(f"could not {what}: {why}", hint=hint)


def _kept(offsets: list[int]) -> Callable[[object, Message], None]:
    def report(error: object, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            offsets.append(offset)

    return report
