"""What the control topic and the producers topic say, folded by every reader of them.

``ControlView`` is the control topic, ``Registrations`` the producers topic. The functions below say which
producers an operator must wait for (protocol, section 6.4).

Every producer that registered for the topic and did not close is asked at each PREPARE. One that stays silent
for a whole lease has no valid lease any more (a lease is not renewed while an attempt is unanswered), so the
operator goes on without it. At the FENCE only those that answered PREPARE of *this* attempt can still be
writing, so only those are waited for.

A registration ends with its lease: a producer that let it run out registers again, under another key,
before it answers or writes anything. So the registration of a producer that stayed silent while the attempt
was under way is over for good, and is removed. A producer that lives registers again; one that is dead is
asked once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from kpsplit.errors import FutureVersionError, RecordError, UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, Phase, Result
from kpsplit.splitter.records.control import (
    LOOK_LEASE_MS,
    Claim,
    Enrolment,
    Settings,
    claimed_key,
    decode_claim,
    decode_enrolment,
    decode_settings,
    decode_state,
    is_claim_key,
)
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC, control_partition, parse_control_key
from kpsplit.splitter.records.producers import Entry, Newer, ProducerRegistration, Removed

LEASE_MARGIN = 1.1
"""An operator waits this many leases: the rates of two monotonic clocks differ by far less."""

READINGS, MOST_SECONDS = 4, 0.5
"""No time between two readings counts for more than this share of what is waited for, or so many seconds."""
OUTAGE_SECONDS = 5.0
"""Without a reading for so long, and for as long as is waited for, nobody could have answered."""


ACKNOWLEDGEMENT = "acknowledgement of the fence"
"""What is waited for in the fence; in the reason of an attempt that was rolled back for want of it."""
_MOST_NAMED, _LONGEST_CLIENT_ID = 3, 40


class Registrations:
    """The folded producers topic. Not thread safe; owned by the reader of the topic."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, ProducerRegistration] = {}
        self.newer: dict[bytes, Newer] = {}
        """What stands under keys in a newer format than this kpsplit reads."""

    def overwritten(self, key: bytes) -> bool:
        """Return whether something else may stand over the registration of a producer that did not close.

        Nobody writes under the key of another: what stands there is forged, in a newer format too.
        """
        known = self._by_key.get(key)
        return known is not None and not known.closed

    def fold(self, record: Entry) -> None:
        """Take the next record of the topic.

        One of a newer format is set aside: it replaces and removes nothing.
        """
        if isinstance(record, Newer):
            self.newer[record.key] = record
            return
        self.newer.pop(record.key, None)
        if isinstance(record, Removed):
            self._by_key.pop(record.key, None)
        else:
            self._by_key[record.key] = record

    def all(self) -> tuple[ProducerRegistration, ...]:
        """Return every registration that was not removed, closed ones too; an instance may have several.

        A producer that registers again removes its last registration itself. So a forged one of a greater
        generation hides nobody, and no record stays that its key's tombstone does not remove.
        """
        return tuple(self._by_key.values())

    def to_ask(self, topic: str) -> tuple[ProducerRegistration, ...]:
        """Return the producers of a topic that an operator must ask: all that did not close.

        Raises:
            FutureVersionError: a producer of the topic registered in a newer format; its answers cannot be
                read.
        """
        for key in sorted(key for key, newer in self.newer.items() if topic in newer.topics):
            if self.overwritten(key):
                continue
            raise FutureVersionError(
                f"a newer kpsplit registered a producer of {topic} (key {key.decode('ascii')} of "
                f"{PRODUCERS_TOPIC}): nobody here can read its answers",
                hint="upgrade this kpsplit; if no such producer runs, kpsplit doctor says how to remove it",
            )
        return self.open(topic)

    def open(self, topic: str) -> tuple[ProducerRegistration, ...]:
        """Return the producers of a topic that did not close, as far as they can be read."""
        return tuple(r for r in self.all() if topic in r.topics and not r.closed)


class Silence:
    """For how long producers certainly had the chance to answer, counted on readings of the producers topic.

    Time counts between readings that succeeded. Where none succeeds for long, nobody's answer may have come
    through either: then counting begins anew.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counted = 0.0
        self._at: float | None = None
        self._first: frozenset[bytes] = frozenset()

    def reading(self, began: float, ended: float, registered: Iterable[ProducerRegistration]) -> None:
        """Note a reading that succeeded: its begin and end on a monotonic clock, and whom to ask."""
        if self._at is None or ended - self._at >= max(self._seconds, OUTAGE_SECONDS):
            self._counted, self._at = 0.0, ended
            self._first = frozenset(r.key for r in registered)
            return
        self._counted += min(began - self._at, max(self._seconds / READINGS, MOST_SECONDS))
        self._at = began

    def left(self) -> float:
        return max(0.0, self._seconds - self._counted)

    def ended(
        self, silent: Iterable[ProducerRegistration], state: PartitionState, attempt_id: str
    ) -> tuple[ProducerRegistration, ...]:
        """Return those of the silent producers whose registration is over for good.

        They were registered when counting began, and had to answer all the time since: ``state``, read after
        the last reading, must still show the attempt's PREPARE. Producers that saw its end owe no answer.
        """
        attempt = state.attempt
        if state.phase is not Phase.PREPARING or attempt is None or attempt.id != attempt_id:
            return ()
        return tuple(r for r in silent if r.key in self._first)


def in_doubt(state: PartitionState, waiting: Iterable[ProducerRegistration]) -> bool:
    """Return whether one must be awaited whatever its lease says: the fence waits for a transaction."""
    return state.phase is Phase.FENCED and any(r.transactional_id for r in waiting)


def named(waiting: Sequence[ProducerRegistration]) -> str:
    """Return which producers are waited for, as the end of a message: by their own words, so cut."""
    if not waiting:
        return ""
    names = [f"{r.client_id[:_LONGEST_CLIENT_ID]} {r.key.decode('ascii')}" for r in waiting[:_MOST_NAMED]]
    more = f" and {len(waiting) - _MOST_NAMED} more" if len(waiting) > _MOST_NAMED else ""
    return f" (of {', '.join(names)}{more})"


def unacknowledged(
    registered: Iterable[ProducerRegistration], state: PartitionState
) -> tuple[ProducerRegistration, ...]:
    """Return for whose acknowledgement the latest attempt waited in vain until it was rolled back."""
    last = state.last
    if last is None or last.result is not Result.ROLLED_BACK or ACKNOWLEDGEMENT not in last.reason:
        return ()
    open_ = (r for r in registered if state.parent.topic in r.topics and not r.closed)
    return not_acknowledged(open_, str(state.parent), last.attempt.id)


def not_ready(
    live: Iterable[ProducerRegistration], partition: str, attempt_id: str
) -> tuple[ProducerRegistration, ...]:
    return tuple(r for r in live if r.ready.get(partition) != attempt_id)


def not_acknowledged(
    live: Iterable[ProducerRegistration], partition: str, attempt_id: str
) -> tuple[ProducerRegistration, ...]:
    return tuple(
        r
        for r in live
        if r.ready.get(partition) == attempt_id and r.acknowledged.get(partition) != attempt_id
    )


def to_answer(states: Iterable[PartitionState], own: ProducerRegistration) -> list[PartitionState]:
    return [
        s
        for s in states
        if s.phase is Phase.PREPARING and s.attempt and own.ready.get(str(s.parent)) != s.attempt.id
    ]


def to_acknowledge(quiescent: Iterable[PartitionState], own: ProducerRegistration) -> list[PartitionState]:
    """Return the fences to be acknowledged: those of attempts that we answered, with nothing in flight."""
    return [
        s
        for s in quiescent
        if s.phase is Phase.FENCED
        and s.attempt
        and own.ready.get(str(s.parent)) == s.attempt.id
        and own.acknowledged.get(str(s.parent)) != s.attempt.id
    ]


class ControlView:
    """The latest record of every key. Not thread safe; owned by the thread that tails the topic.

    Garbage is counted and skipped; a record of a newer version makes ``fold`` raise, and the view must not be
    used any further: reading on would be guessing.
    """

    def __init__(self) -> None:
        self.settings = Settings(LOOK_LEASE_MS)
        self.initialised = False
        self.enrolments: dict[str, Enrolment] = {}
        self.left: dict[str, Enrolment] = {}
        """The last record of topics that are back with plain clients. Nothing else knows them."""
        self.left_states: dict[PhysicalPartition, PartitionState] = {}
        """The states of their partitions: where the topic is enrolled again they go on."""
        self.states: dict[PhysicalPartition, PartitionState] = {}
        self._attempts: set[PhysicalPartition] = set()
        self.claims: dict[PhysicalPartition, list[Claim]] = {}
        """What was announced since the latest state, as far as it is decided; a claimer reads more."""
        self.garbage = 0
        self.last_garbage = ""

    def fold(
        self, key: bytes | None, value: bytes | None, partition: int | None = None
    ) -> PhysicalPartition | str | None:
        """Take the next record; return what it was about (None: the settings, an announcement, or garbage).

        ``partition``: where it stands, if that is known. In another one than its key's it is garbage: nothing
        says which of two records in two partitions is the later one.

        Raises:
            FutureVersionError: the record was written by a newer kpsplit.
        """
        if key is not None and is_claim_key(key):
            with suppress(RecordError):  # whose turn it is only spares claims: nothing depends on it
                self._take_claim(parse_control_key(claimed_key(key)), value)
            return None
        try:
            subject = parse_control_key(key)
            if partition not in (None, control_partition(subject)):
                raise RecordError("control topic: a record in another partition than its key's")
            self._take(subject, value)
        except FutureVersionError:
            raise
        except RecordError as error:
            self.garbage += 1
            self.last_garbage = error.message
            return None
        return subject

    def state(self, parent: PhysicalPartition) -> PartitionState | None:
        """Return a partition's state; that of an enrolled one on which nothing was ever done is *unsplit*."""
        known = self.states.get(parent)
        enrolment = self.enrolments.get(parent.topic)
        if known is not None or enrolment is None:
            return known
        return PartitionState.unsplit(parent, enrolment.topic_id)

    def latest_state(self, parent: PhysicalPartition) -> PartitionState | None:
        """Return a partition's state, that of a topic that is left as well."""
        return self.state(parent) or self.left_states.get(parent)

    def under_way(self) -> list[PartitionState]:
        """Return the states of enrolled partitions that have an attempt, without a look at all others."""
        return [self.states[parent] for parent in self._attempts if parent in self.states]

    def enrolled_state(self, parent: PhysicalPartition) -> PartitionState:
        """Return a partition's state; UsageError where its topic is not enrolled."""
        state = self.state(parent)
        if state is None:
            raise self.not_enrolled(parent.topic)
        return state

    def recorded(self, topic: str) -> Enrolment | None:
        """Return what the latest record of a topic says, whether it is enrolled or left."""
        return self.enrolments.get(topic) or self.left.get(topic)

    def owner_of(self, topic: str) -> PhysicalPartition | None:
        """Return the partition that has a topic as a sub-topic, None if none has."""
        return next((s.parent for s in self.states.values() if s.subtopic(topic) is not None), None)

    def not_enrolled(self, topic: str) -> UsageError:
        """Return the error for a topic that is not enrolled: why it is not, or of what it is a sub-topic."""
        owner = self.owner_of(topic)
        if topic in self.left:
            text = f"topic {topic} is not enrolled: it was returned to plain clients"
            return UsageError(
                text, hint=f"any Kafka client may use it; to enrol it again run: kpsplit enroll {topic}"
            )
        if owner is None:
            return UsageError(f"topic {topic} is not enrolled", hint=f"run: kpsplit enroll {topic}")
        return UsageError(f"{topic} is a sub-topic of {owner}", hint=f"name the partition itself: {owner}")

    def _take(self, subject: PhysicalPartition | str | None, value: bytes | None) -> None:
        if subject is None:
            self.settings = decode_settings(value)
            self.initialised = True
        elif isinstance(subject, str):
            self._take_enrolment(subject, value)
        elif value is None:
            self.states.pop(subject, None)
            self.left_states.pop(subject, None)
            self._attempts.discard(subject)
            self.claims.pop(subject, None)
        else:
            state = decode_state(value, self.states.get(subject) or self.left_states.get(subject))
            if state.parent != subject:
                raise RecordError("control topic: key and value name different partitions")
            self.take_state(state)

    def take_state(self, state: PartitionState) -> None:
        subject = state.parent
        (self.left_states if subject.topic in self.left else self.states)[subject] = state
        (self._attempts.discard if state.attempt is None else self._attempts.add)(subject)
        self.claims.pop(subject, None)

    def _take_claim(self, subject: PhysicalPartition | str | None, value: bytes | None) -> None:
        if not isinstance(subject, PhysicalPartition):
            return
        if value is None:
            self.claims.pop(subject, None)
        else:
            claim = decode_claim(value)
            self.claims[subject] = [*self.claims.get(subject, ()), claim]

    def _take_enrolment(self, topic: str, value: bytes | None) -> None:
        if value is None:
            self.enrolments.pop(topic, None)
            self.left.pop(topic, None)
            return
        enrolment = decode_enrolment(value)
        if enrolment.topic != topic:
            raise RecordError("control topic: key and value name different topics")
        into, out_of = (self.left, self.enrolments) if enrolment.left else (self.enrolments, self.left)
        into[topic] = enrolment
        if out_of.pop(topic, None) is not None or enrolment.left:
            self._move_states(topic, enrolment.left)

    def _move_states(self, topic: str, left: bool) -> None:
        """Set the states of a topic's partitions aside, or take them back, in whatever order they come."""
        into, out_of = (self.left_states, self.states) if left else (self.states, self.left_states)
        for parent in [p for p in out_of if p.topic == topic]:
            into[parent] = out_of.pop(parent)
