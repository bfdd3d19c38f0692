"""The folded control topic: what every reader of it knows."""

from __future__ import annotations

from contextlib import suppress

from kpsplit.errors import FutureVersionError, RecordError, UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
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
from kpsplit.splitter.records.keys import control_partition, parse_control_key


class ControlView:
    """The latest record of every key. Not thread safe; owned by the thread that tails the topic.

    Garbage is counted and skipped; a record of a newer version makes ``fold`` raise, and the view must not be
    used any further: reading on would be guessing.
    """

    def __init__(self) -> None:
        self.settings = Settings(LOOK_LEASE_MS)
        self.initialised = False
        self.enrolments: dict[str, Enrolment] = {}
        self.states: dict[PhysicalPartition, PartitionState] = {}
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

    def owner_of(self, topic: str) -> PhysicalPartition | None:
        """Return the partition that has a topic as a sub-topic, None if none has."""
        return next((s.parent for s in self.states.values() if s.subtopic(topic) is not None), None)

    def not_enrolled(self, topic: str) -> UsageError:
        """Return the error for a topic that is not enrolled; of a sub-topic it says whose it is."""
        owner = self.owner_of(topic)
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
            self.claims.pop(subject, None)
        else:
            state = decode_state(value)
            if state.parent != subject:
                raise RecordError("control topic: key and value name different partitions")
            self.states[subject] = state
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
            return
        enrolment = decode_enrolment(value)
        if enrolment.topic != topic:
            raise RecordError("control topic: key and value name different topics")
        self.enrolments[topic] = enrolment
