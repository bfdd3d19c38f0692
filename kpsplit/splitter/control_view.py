"""The folded control topic: what every reader of it knows."""

from __future__ import annotations

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import (
    LOOK_LEASE_MS,
    Enrolment,
    Settings,
    decode_enrolment,
    decode_settings,
    decode_state,
)
from kpsplit.splitter.records.keys import parse_control_key


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
        self.garbage = 0
        self.last_garbage = ""

    def fold(self, key: bytes | None, value: bytes | None) -> PhysicalPartition | str | None:
        """Take the next record; return what it was about (None: the settings, or garbage).

        Raises:
            FutureVersionError: the record was written by a newer kpsplit.
        """
        try:
            subject = parse_control_key(key)
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

    def _take(self, subject: PhysicalPartition | str | None, value: bytes | None) -> None:
        if subject is None:
            self.settings = decode_settings(value)
            self.initialised = True
        elif isinstance(subject, str):
            self._take_enrolment(subject, value)
        elif value is None:
            self.states.pop(subject, None)
        else:
            state = decode_state(value)
            if state.parent != subject:
                raise RecordError("control topic: key and value name different partitions")
            self.states[subject] = state

    def _take_enrolment(self, topic: str, value: bytes | None) -> None:
        if value is None:
            self.enrolments.pop(topic, None)
            return
        enrolment = decode_enrolment(value)
        if enrolment.topic != topic:
            raise RecordError("control topic: key and value name different topics")
        self.enrolments[topic] = enrolment
