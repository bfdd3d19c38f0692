"""Sub-topics: created beside the parent, sealed when they are emptied, deleted when nobody needs them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from kpsplit.clock import Deadline
from kpsplit.errors import (
    EXIT_CONFLICT,
    AuthorizationError,
    CheckFailedError,
    DeadlineExceededError,
    KpsplitError,
    UnknownOutcomeError,
    UsageError,
)
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, TopicFacts, allowed_on, await_served
from kpsplit.kafka.error_map import RIGHTS_HINT
from kpsplit.kafka.leaders import Leaders
from kpsplit.kafka.markers import Markers
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, Cut, SubTopic
from kpsplit.splitter.rights import lacking
from kpsplit.splitter.steps import PlannedMarker

SEALED_CONFIG = ("max.message.bytes", "80")
"""With this setting the broker itself rejects every record with a stamp, which needs more than 90 bytes.

It takes the markers that end transactions (78 bytes). With 0 it refuses them as well: a transaction that was
open at the seal would never end, and nobody could read the sub-topic to its end.
"""
TAKES_NOTHING = ("max.message.bytes", "0")
"""For topics that nobody ever writes to. Older versions sealed sub-topics with it."""

_CLEANUP_SECONDS = 10.0
_PAUSE = 0.02
_NOT_COPIED = ("leader.replication.", "follower.replication.", "confluent.placement.")
"""Settings that name brokers or replicas of the parent and make no sense for another topic."""


class SubTopicTakenError(KpsplitError):
    """The name of the sub-topic belongs to a topic that is not ours.

    Not a ConflictError: the driver leaves an attempt alone on those, and this attempt is to be rolled back.
    """

    exit_code = EXIT_CONFLICT


def phantom_assignment(replicas: Sequence[int], partitions: int) -> list[list[int]]:
    """Return the replica lists of phantoms: the parent's set, rotated so that leaders are spread over it."""
    around = [[*replicas[i:], *replicas[:i]] for i in range(len(replicas))]
    return [around[j % len(around)] for j in range(partitions)]


def copied_config(explicit: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a sub-topic takes from its parent: all that were set there."""
    return {name: value for name, value in explicit.items() if not name.startswith(_NOT_COPIED)}


class SubTopics:
    """Creates, seals and deletes sub-topics. Not thread safe.

    ``foreign`` are names that were found taken by topics of somebody else: never deleted by us.
    """

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._foreign: set[str] = set()

    def create(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
        """Create an attempt's sub-topic and return its topic id once every broker serves it, empty.

        Raises:
            SubTopicTakenError: the name belongs to another topic, which is left alone.
            KpsplitError: it could not be created, or not in time; what was created is deleted again.
        """
        name = attempt.subtopic
        if name is None:
            raise UsageError("this attempt has no sub-topic")
        if self._admin.layout(name) is not None:
            raise self._taken(name)
        beside = self._admin.describe(parent.topic)
        assignment = phantom_assignment(beside.partitions[parent.partition].replicas, len(attempt.ranges))
        config = copied_config(beside.explicit)
        try:
            self._order(name, config, assignment, deadline)
            return self._await(parent, name, assignment, deadline)
        except SubTopicTakenError:
            raise
        except (Exception, KeyboardInterrupt):
            self._delete_quietly(name)
            raise

    def seal(self, name: str, deadline: Deadline) -> bool:
        """Make the brokers reject every stamped record; return False if there is no such topic.

        Raises:
            CheckFailedError: it still is not sealed when read back.
        """
        setting, value = SEALED_CONFIG
        if not self._admin.set_config(name, setting, value, _answer_within(deadline)):
            return False
        while not is_sealed(self._admin.config(name)):
            if deadline.left() <= 0:
                raise CheckFailedError(f"topic {name} does not keep {setting}={value}", hint="retry")
            time.sleep(_PAUSE)
        return True

    def delete_empty(self, name: str, deadline: Deadline) -> bool:
        """Delete the sub-topic of an attempt that was rolled back; return False if there is none.

        No producer writes to a sub-topic before its commit. A topic of that name that holds records
        is not of our making, or not any more, and stays.

        Raises:
            CheckFailedError: it holds records, or is known to be somebody else's.
        """
        found = self._admin.known(name)
        if found is None:
            return False
        if name in self._foreign or not self.is_empty(found):
            raise CheckFailedError(
                f"topic {name} is not deleted: it is not kpsplit's, or holds records",
                hint="look at it, and delete it yourself if nobody needs it",
            )
        return self._admin.delete(name, _answer_within(deadline))

    def _order(
        self, name: str, config: Mapping[str, str], assignment: list[list[int]], deadline: Deadline
    ) -> None:
        """Create the topic; where the acknowledgement is lost, look whether it was created all the same."""
        try:
            created = self._ordered(name, config, assignment, deadline)
        except UnknownOutcomeError:
            deadline.check(f"the acknowledgement of topic {name}")
            created = self._admin.layout(name) is None and self._ordered(name, config, assignment, deadline)
        if not created:
            self._taken_unless_ours(name, assignment)

    def _ordered(
        self, name: str, config: Mapping[str, str], assignment: list[list[int]], deadline: Deadline
    ) -> bool:
        return self._admin.create(name, config, assignment=assignment, seconds=_answer_within(deadline))

    def _taken_unless_ours(self, name: str, assignment: list[list[int]]) -> None:
        """Raise unless the topic is one that a repeated request of this very call made."""
        found = self._admin.layout(name)
        replicas = [list(p.replicas) for p in found.partitions] if found else None
        if found is None or replicas != assignment or not self.is_empty(found):
            raise self._taken(name)

    def _await(
        self, parent: PhysicalPartition, name: str, assignment: list[list[int]], deadline: Deadline
    ) -> str:
        await_served(self._admin, {name: len(assignment)}, deadline)
        self.check_rights(parent, {name})
        found = self._admin.layout(name)
        if found is None:
            raise DeadlineExceededError(f"topic {name} vanished while it was created")
        if not self.is_empty(found):
            raise self._taken(name)
        return found.topic_id

    def check_rights(self, parent: PhysicalPartition, names: Collection[str]) -> None:
        """Do nothing if we may seal and delete sub-topics.

        Raises:
            AuthorizationError: a right is missing; the error names it.
        """
        missing = lacking(parent.topic, allowed_on(self._admin, names)) if names else ()
        if missing:
            raise AuthorizationError(f"missing {', '.join(map(str, missing))}", hint=RIGHTS_HINT)

    def is_empty(self, topic: TopicFacts) -> bool:
        """Return whether no partition of a topic has ever held a record."""
        places = [PhysicalPartition(topic.name, i) for i in range(len(topic.partitions))]
        ends = self._admin.end_offsets(places)
        return len(ends) == len(places) and all(end.offset == 0 for end in ends.values())

    def _taken(self, name: str) -> SubTopicTakenError:
        self._foreign.add(name)
        return SubTopicTakenError(
            f"a topic named {name} exists already and is not a sub-topic of this operation",
            hint=f"delete or rename {name} if nobody needs it, then retry",
        )

    def _delete_quietly(self, name: str) -> None:
        try:
            self.delete_empty(name, Deadline(_CLEANUP_SECONDS))
        except KpsplitError:
            return  # the attempt is rolled back, which tries again and reports what is left over


def is_sealed(config: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings rejects what producers write."""
    return (SEALED_CONFIG[0], config.get(SEALED_CONFIG[0])) in (SEALED_CONFIG, TAKES_NOTHING)


def _answer_within(deadline: Deadline) -> float:
    return max(0.1, min(ANSWER_SECONDS, deadline.left()))


class PartitionTopics:
    """Implements the driver's TopicsPort. Not thread safe; made anew for each operation."""

    def __init__(self, admin: ClusterAdmin, observer: Observer) -> None:
        self._observe = observer
        self._subtopics = SubTopics(admin)
        self._leaders = Leaders(admin)
        self._markers = Markers(admin)

    def prepare_markers(self, places: Iterable[PhysicalPartition]) -> None:
        """Get ready, outside the fence, to append markers to these partitions."""
        self._markers.prepare(places)

    def keep_warm(self) -> None:
        """Stay ready to append markers while answers are waited for; to be called now and then."""
        self._markers.keep_warm()

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
        """Create the attempt's sub-topic beside the parent, wait until it is served; return its topic id."""
        return self._subtopics.create(attempt, parent, deadline)

    def co_locate(
        self, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
    ) -> None:
        """Move the leaders of ``sources`` to the broker that leads the parent, as far as possible."""
        started = time.monotonic()
        places = list(sources)
        self._leaders.co_locate(
            parent,
            places,
            deadline,
            lambda text: self._observe(StepDone("Leaders", time.monotonic() - started, text)),
        )
        self._markers.prepare([parent, *places])

    def append_markers(self, markers: Iterable[PlannedMarker], deadline: Deadline) -> tuple[Cut, ...]:
        """Append the markers with acks=all and return where they stand; a marker already there is reused."""
        return self._markers.append(markers, deadline)

    def seal(self, subtopics: Iterable[SubTopic], deadline: Deadline) -> None:
        """Make the brokers reject every later write to these sub-topics; a missing one takes none anyway."""
        for subtopic in subtopics:
            if not self._subtopics.seal(subtopic.name, deadline):
                self._observe(StepDone("Missing", 0.0, f"{subtopic.name} does not exist any more"))

    def delete_abandoned(self, name: str, deadline: Deadline) -> None:
        """Delete the sub-topic of an attempt that was rolled back; it may be missing."""
        self._subtopics.delete_empty(name, deadline)

    def close(self) -> None:
        """End the clients."""
        try:
            self._markers.close()
        except KpsplitError:
            return
