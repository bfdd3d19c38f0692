"""Takes the snapshot of a topic from the cluster: control topic, log ends, certificates, range commits.

How the parts fit together, although the cluster goes on:

1. The offset log and the producers topic are read first: what they say was processed or sent lies below the
   log ends that are asked for afterwards.
2. The control topic is read; an attempt that has raised its fence is waited for.
3. The log ends are asked (committed reading: the last stable offsets).
4. The control topic is read again. If no partition changed, its view knows every attempt that can have
   written a marker below those ends, and all of them are over. Otherwise: again from step 3.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import IsolationLevel, Message

from kpsplit.clock import Deadline
from kpsplit.errors import AuthorizationError, DeadlineExceededError, RecordError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.log_tail import read_slice
from kpsplit.kafka.producers_log import ProducersLog
from kpsplit.spark_jobs.snapshot import LogEnds, LoggedCommit, Snapshot, without_boundary
from kpsplit.splitter.key_range import without_slots
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, Phase
from kpsplit.splitter.reading import GapReason, wrong_topic
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    OWN_TOPICS,
    PRODUCERS_TOPIC,
    offsets_partition,
)
from kpsplit.splitter.records.offsets import (
    Boundary,
    CommitKey,
    check_partition,
    decode_boundary,
    parse_offset_key,
    read_commit,
)
from kpsplit.splitter.records.producers import ProducerRegistration, is_registration_key

PATIENCE = 60.0
_LOOK_AGAIN = 0.1

Ends = dict[PhysicalPartition, LogEnds]
Gone = dict[PhysicalPartition, GapReason]


class Gatherer:
    """Takes snapshots of one topic. Not thread safe.

    Args:
        connection: how to reach the cluster.
        topic: the enrolled topic.
        partitions: the logical partitions that are wanted; all when not given.
        patience: seconds for all that has to be read, and for an operation under way.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        partitions: Collection[int] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._connection, self._topic, self._wanted = connection, topic, partitions
        self._limit = Deadline(patience)
        self._admin = ClusterAdmin(connection)
        self._garbage: list[str] = []
        self._seen: dict[PhysicalPartition, int] = {}
        self._slots: tuple[str, int] | None = None
        self._offsets_count = 0

    def snapshot(self, *, with_groups: bool = False) -> Snapshot:
        """Return the picture now; ``with_groups``: with range commits, boundaries and certificates.

        Raises:
            UsageError: no such topic or partition, or not enrolled.
            KpsplitError: an operation under way did not finish in time; a record of kpsplit's topics is newer
                than this code; the brokers cannot be reached, or a right is missing.
        """
        parents = parents_of(self._admin, self._topic, self._wanted)
        for topic in OWN_TOPICS if with_groups else (CONTROL_TOPIC,):
            if self._admin.known(topic) is None:
                raise UsageError(f"there is no topic {topic}", hint="run: kpsplit init")
        commits, boundaries = self._offset_log(parents) if with_groups else ([], [])
        producers = self._producers() if with_groups else ()
        states, bounds, gone = self._states_and_bounds(parents)
        if with_groups and without_boundary(states, boundaries):
            epochs = {state.parent: state.epoch for state in states}
            # What an operation after the control topic's reading wrote is not of this picture.
            later = self._later_boundaries(parents)
            boundaries += [boundary for boundary in later if boundary.epoch <= epochs[boundary.parent]]
        return Snapshot(
            self._topic,
            states,
            bounds,
            gone,
            producers,
            tuple(commits),
            tuple(boundaries),
            tuple(self._garbage),
            self._unread(states) if with_groups else frozenset(),
        )

    def _states_and_bounds(
        self, parents: list[PhysicalPartition]
    ) -> tuple[tuple[PartitionState, ...], Ends, Gone]:
        tail = ControlTail(self._connection)
        try:
            states = self._settled(tail, parents)
            while True:
                bounds, gone = self._bounds(states)
                again = self._settled(tail, parents)
                if (held := held_up(states, bounds)) is not None:
                    self._pause(
                        f"an open transaction holds readers of {held} at offset {bounds[held].stable}",
                        "wait for it, or end it with kafka-transactions.sh",
                    )
                elif [s.revision for s in again] == [s.revision for s in states]:
                    self._note_garbage(tail)
                    return again, bounds, gone
                states = again
        finally:
            tail.close()

    def _settled(self, tail: ControlTail, parents: list[PhysicalPartition]) -> tuple[PartitionState, ...]:
        """Return the states once no attempt has its fence up."""
        while True:
            tail.read_to_end(self._limit)
            enrolment = tail.view.enrolments.get(self._topic)
            self._slots = (
                (enrolment.slots_topic, enrolment.slots)
                if enrolment and enrolment.slots is not None
                else None
            )
            states = tuple(tail.view.enrolled_state(parent) for parent in parents)
            busy = next((s for s in states if s.phase is Phase.FENCED), None)
            if busy is None:
                return states
            self._pause(
                f"the operation under way on {busy.parent} did not finish",
                f"look at: kpsplit status {busy.parent}",
            )

    def _pause(self, why: str, next_step: str) -> None:
        """Wait a moment before looking again, while there is time."""
        if self._limit.left() <= 0:
            raise DeadlineExceededError(why, hint=next_step)
        time.sleep(min(_LOOK_AGAIN, self._limit.left()))

    def _bounds(self, states: Iterable[PartitionState]) -> tuple[Ends, Gone]:
        owners = {source: state for state in states for source in state.lineage.sources()}
        while True:
            gone = wrong_topics(self._admin, owners, self._limit)
            there = [source for source in owners if source not in gone]
            high = self._admin.end_offsets(there)  # first: only an open transaction keeps stable below it
            stable = self._admin.end_offsets(there, IsolationLevel.READ_COMMITTED)
            low = self._admin.start_offsets(there)
            bounds = {
                s: LogEnds(low[s], stable[s].offset, max(high[s].offset, stable[s].offset))
                for s in there
                if s in low and s in stable and s in high
            }
            doubtful = next((source for source in there if source not in bounds), None)
            if doubtful is None:
                return bounds, gone
            self._pause(f"the brokers do not agree on whether there is a log {doubtful}", "run it again")

    def _unread(self, states: Iterable[PartitionState]) -> frozenset[PhysicalPartition]:
        """Return the partitions that were added and have no slots, as far as we may look."""
        if self._slots is None:
            return frozenset()
        name, slots = self._slots
        try:
            found = self._admin.known(name)
        except AuthorizationError:
            return frozenset()
        if found is None:
            return frozenset()
        count = self._admin.partition_count(self._topic)
        unread = without_slots(count, slots, len(found.partitions))
        return frozenset(s.parent for s in states if s.parent.partition in unread)

    def _producers(self) -> tuple[ProducerRegistration, ...]:
        """Return every registration by its key: one that is forged for an instance hides no other of it."""
        log = ProducersLog(self._connection)
        try:
            registrations = log.read(self._limit)
        finally:
            log.close()
        self._garbage += [
            f"{PRODUCERS_TOPIC}, key {key.decode('ascii')}: {why}"
            for key, why in log.garbage.items()
            if is_registration_key(key)  # what stands under another key replaces no registration
        ]
        registrations.to_ask(self._topic)  # raises where one of them cannot be read
        return registrations.all()

    def _offset_log(self, parents: list[PhysicalPartition]) -> tuple[list[LoggedCommit], list[Boundary]]:
        self._offsets_count = count = self._admin.partition_count(OFFSETS_TOPIC)
        logs = [
            PhysicalPartition(OFFSETS_TOPIC, n)
            for n in sorted({offsets_partition(p, count) for p in parents})
        ]
        ends = self._admin.end_offsets(logs, IsolationLevel.READ_COMMITTED)
        self._seen = {log: ends[log].offset for log in logs}
        return self._read_offset_log(parents, self._admin.start_offsets(logs), self._seen)

    def _later_boundaries(self, parents: list[PhysicalPartition]) -> list[Boundary]:
        """Return what operations wrote into the offset log that ended after it was read.

        A boundary record is in the log before the control topic says that the operation took effect; so it
        lies below the end now, and counts once the transactions below that end are decided.
        """
        ends = {log: end.offset for log, end in self._admin.end_offsets(self._seen).items()}
        while True:
            decided = self._admin.end_offsets(self._seen, IsolationLevel.READ_COMMITTED)
            behind = next((log for log, end in ends.items() if decided[log].offset < end), None)
            if behind is None:
                return self._read_offset_log(parents, self._seen, ends)[1]
            self._pause(f"an open transaction holds readers of {behind}", "wait for it, then run it again")

    def _read_offset_log(
        self,
        parents: list[PhysicalPartition],
        first: Mapping[PhysicalPartition, int],
        behind: Mapping[PhysicalPartition, int],
    ) -> tuple[list[LoggedCommit], list[Boundary]]:
        commits: list[LoggedCommit] = []
        boundaries: list[Boundary] = []
        for log, end in behind.items():
            for message in read_slice(self._connection, log, first[log], end, self._limit):
                found = self._of_offset_log(message, log, parents)
                if isinstance(found, LoggedCommit):
                    commits.append(found)
                elif found is not None and found.parent in parents:
                    boundaries.append(found)
            self._limit.check(f"{log} to be read to its end")
        return commits, boundaries

    def _of_offset_log(
        self, message: Message, log: PhysicalPartition, parents: list[PhysicalPartition]
    ) -> LoggedCommit | Boundary | None:
        """Read a record about some partitions: its key says whether it is one, whatever its value is."""
        try:
            key, value = parse_offset_key(message.key()), message.value()
        except RecordError:
            return None  # compaction replaces no commit by it
        if key.parent not in parents:
            return None
        try:
            check_partition(key, log.partition, self._offsets_count)
            if not isinstance(key, CommitKey):
                return decode_boundary(value) if value is not None else None
            commit = None if value is None else read_commit(key, value)
        except RecordError as error:
            self._garbage.append(f"{OFFSETS_TOPIC}, offset {message.offset()}: {error.message}")
            return None
        return LoggedCommit(key, commit, log, message.offset() or 0)

    def _note_garbage(self, tail: ControlTail) -> None:
        if (view := tail.view).garbage:
            self._garbage.append(f"{CONTROL_TOPIC}: {view.garbage} unreadable records ({view.last_garbage})")


def parents_of(admin: ClusterAdmin, topic: str, wanted: Collection[int] | None) -> list[PhysicalPartition]:
    """Return the logical partitions that are wanted (None: all); UsageError if one of them does not exist."""
    count = admin.partition_count(topic)
    found = [PhysicalPartition(topic, n) for n in (range(count) if wanted is None else sorted(set(wanted)))]
    for parent in found:
        if not 0 <= parent.partition < count:
            raise no_partition(parent, count)
    return found


def wrong_topics(
    admin: ClusterAdmin, owners: Mapping[PhysicalPartition, PartitionState], deadline: Deadline
) -> Gone:
    """Return which physical partitions hold nothing of the logical ones that own them any more, and why."""
    asked = {source.topic for source, state in owners.items() if not state.is_retired(source.topic)}
    known = admin.certain(asked, deadline)
    ids = {topic: found.topic_id for topic, found in known.items() if found is not None}
    reasons = {source: wrong_topic(state, source, ids.get(source.topic)) for source, state in owners.items()}
    return {source: reason for source, reason in reasons.items() if reason is not None}


def held_up(
    states: Iterable[PartitionState], bounds: Mapping[PhysicalPartition, LogEnds]
) -> PhysicalPartition | None:
    """Return a log that has a segment's marker and before it an open transaction, None if there is none."""
    for state in states:
        for s in state.lineage:
            known = bounds.get(s.source)
            if known is not None and s.end is not None and known.stable <= s.end < known.high:
                return s.source
    return None
