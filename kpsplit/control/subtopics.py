"""Sub-topics: created beside the parent, sealed when they are emptied, deleted when nobody needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from kpsplit.clock import Deadline
from kpsplit.control.own_topics import TAKES_NOTHING
from kpsplit.errors import (
    EXIT_CONFLICT,
    AuthorizationError,
    CheckFailedError,
    DeadlineExceededError,
    KpsplitError,
    UnknownOutcomeError,
    UsageError,
)
from kpsplit.kafka.cluster_admin import (
    ClusterAdmin,
    PartitionFacts,
    TopicFacts,
    allowed_on,
    answer_within,
    await_served,
)
from kpsplit.kafka.error_map import RIGHTS_HINT
from kpsplit.kafka.kafka_python import reassign
from kpsplit.kafka.markers import Markers
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, SubTopic
from kpsplit.splitter.rights import lacking

SEALED_CONFIG = ("max.message.bytes", "80")
"""With this setting the broker itself rejects every record with a stamp, which needs more than 90 bytes.

It takes the markers that end transactions (78 bytes). With 0 it refuses them as well: a transaction that was
open at the seal would never end, and nobody could read the sub-topic to its end.
"""
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
    return {name: value for name, value in explicit.items() if not name.startswith(_NOT_COPIED)}


class SubTopics:
    """Creates, seals and deletes sub-topics. Not thread safe.

    ``foreign`` are names that were found taken by topics of somebody else: never deleted by us.
    """

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._foreign: set[str] = set()

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
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
        order = partial(self._admin.create, name, copied_config(beside.explicit), assignment=assignment)
        try:
            try:
                created = order(seconds=answer_within(deadline))
            except UnknownOutcomeError:  # the acknowledgement is lost: it may have been created all the same
                deadline.check(f"the acknowledgement of topic {name}")
                created = self._admin.layout(name) is None and order(seconds=answer_within(deadline))
            if not created:
                self._taken_unless_ours(name, assignment)
            return self._await(parent, name, assignment, deadline)
        except SubTopicTakenError:
            raise
        except (Exception, KeyboardInterrupt):
            self._delete_quietly(name)
            raise

    def delete_abandoned(self, name: str, deadline: Deadline) -> None:
        """Delete the sub-topic of an attempt that was rolled back; it may be missing.

        No producer writes to a sub-topic before its commit. A topic of that name that holds records
        is not of our making, or not any more, and stays.

        Raises:
            CheckFailedError: it holds records, or is known to be somebody else's.
        """
        found = self._admin.known(name)
        if found is None:
            return
        if name in self._foreign or not self.is_empty(found):
            raise CheckFailedError(
                f"topic {name} is not deleted: it is not kpsplit's, or holds records",
                hint="look at it, and delete it yourself if nobody needs it",
            )
        self._admin.delete(name, answer_within(deadline))

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
        """Raises AuthorizationError, with its name, for a right to seal and delete that we lack."""
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
            self.delete_abandoned(name, Deadline(_CLEANUP_SECONDS))
        except KpsplitError:
            return  # the attempt is rolled back, which tries again and reports what is left over


def is_sealed(config: Mapping[str, str]) -> bool:
    return (SEALED_CONFIG[0], config.get(SEALED_CONFIG[0])) in (SEALED_CONFIG, TAKES_NOTHING)


class PartitionTopics(SubTopics):
    """Implements the driver's TopicsPort. Not thread safe; made anew for each operation."""

    def __init__(self, admin: ClusterAdmin, observer: Observer) -> None:
        super().__init__(admin)
        self._observe = observer
        self._markers = Markers(admin)
        self.prepare_markers = self._markers.prepare
        self.keep_warm = self._markers.keep_warm
        self.append_markers = self._markers.append
        self.close = self._markers.close

    def co_locate(
        self, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
    ) -> None:
        started, places = time.monotonic(), list(sources)
        if done := co_locate(self._admin, parent, places, deadline):
            self._observe(StepDone("Leaders", time.monotonic() - started, done))
        self._markers.prepare([parent, *places])

    def seal(self, subtopics: Iterable[SubTopic], deadline: Deadline) -> None:
        """Make the brokers reject every stamped record; a sub-topic that is missing takes none anyway.

        Raises:
            CheckFailedError: one still is not sealed when read back.
        """
        for name in (subtopic.name for subtopic in subtopics):
            if not self._admin.set_config(name, *SEALED_CONFIG, answer_within(deadline)):
                self._observe(StepDone("Missing", 0.0, f"{name} does not exist any more"))
                continue
            while not is_sealed(self._admin.describe(name).config):
                if deadline.expired():
                    raise CheckFailedError(
                        f"topic {name} does not keep {'='.join(SEALED_CONFIG)}", hint="retry"
                    )
                time.sleep(_PAUSE)


LONGEST_MOVE_SECONDS = 15.0
"""After that a merge goes on with the leaders where they are."""

_LEADERS_PAUSE = 0.05
_LONGEST_FOLLOWERS_PAUSE = 3.0
_FOLLOWERS_MARGIN = 0.2


def reordered(replicas: Sequence[int], first: int) -> list[int]:
    return [first, *(r for r in replicas if r != first)]


def co_locate(
    admin: ClusterAdmin, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
) -> str:
    """Move the leaders of closing segments to the parent's leader; say what came of it ("": nothing to do).

    It makes a merge depend on one broker, and is no part of the proof (protocol, section 8.1). So it never
    fails. The replica sets stay the same, only their order changes: nothing is copied.
    """
    limit = Deadline(min(LONGEST_MOVE_SECONDS, deadline.left() / 2))
    try:
        beside = _leaders(admin, [parent]).get(parent)
        if beside is None or beside.leader is None:
            return f"leaders stay where they are: {parent} has no leader"
        target = beside.leader
        away = {p: facts for p, facts in _leaders(admin, sources).items() if facts.leader != target}
        movable = {p: facts for p, facts in away.items() if target in facts.replicas}
        if not movable:
            return f"{len(away)} leaders stay: no replica on broker {target}" if away else ""
        lists = {p: reordered(facts.replicas, target) for p, facts in movable.items()}
        changed = {p: wanted for p, wanted in lists.items() if wanted != list(movable[p].replicas)}
        if changed:
            reassign(admin.connection, changed, limit)
        _await(admin, lists, limit, lambda place, facts: list(facts.replicas) == lists[place])
        admin.elect_preferred(lists, max(0.1, limit.left()))
        left = _await(admin, lists, limit, lambda _, facts: facts.leader == target)
        if len(left) < len(lists):
            time.sleep(_followers_pause(admin, target))
        stay = f"; {len(away) - len(movable)} have no replica there" if len(movable) < len(away) else ""
        return f"{len(lists) - len(left)} of {len(lists)} leaders moved to broker {target}{stay}"
    except KpsplitError as error:
        return f"leaders stay where they are: {error.message}"


def _followers_pause(admin: ClusterAdmin, target: int) -> float:
    """Return how long to let the writers recover: followers that asked the new leader too early pause.

    Until they are back no write with acks=all is acknowledged. What piled up takes about as long again to be
    worked off. Wait here: writers are not paused yet.
    """
    try:
        backoff = admin.broker_config(target).get("replica.fetch.backoff.ms", "1000")
    except KpsplitError:
        backoff = "1000"
    return min(2 * int(backoff) / 1000, _LONGEST_FOLLOWERS_PAUSE) + _FOLLOWERS_MARGIN


def _await(
    admin: ClusterAdmin,
    places: Collection[PhysicalPartition],
    limit: Deadline,
    reached: Callable[[PhysicalPartition, PartitionFacts], bool],
) -> list[PhysicalPartition]:
    """Wait until all are as wanted; return those that are not when the time is over."""
    while True:
        now = _leaders(admin, places)
        left = [p for p in places if p not in now or not reached(p, now[p])]
        if not left or limit.expired():
            return left
        time.sleep(_LEADERS_PAUSE)


def _leaders(
    admin: ClusterAdmin, places: Iterable[PhysicalPartition]
) -> dict[PhysicalPartition, PartitionFacts]:
    """Return the partitions that the broker that is asked knows."""
    wanted = list(places)
    layouts = {topic: admin.layout(topic) for topic in {p.topic for p in wanted}}
    return {
        p: layout.partitions[p.partition]
        for p in wanted
        if (layout := layouts[p.topic]) is not None and p.partition < len(layout.partitions)
    }
