"""Leads a topic back to plain clients: does what ``returning`` decides (protocol, section 10.16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.enrolment import EFFORT_SECONDS, enroller, withdraw_commits
from kpsplit.control.own_topics import SlotsTopics
from kpsplit.control.returning import (
    Act,
    Obstacle,
    Seen,
    acts_left,
    enrolment_obstacle,
    following,
    group_obstacle,
    next_step,
    obstacles_of,
    partition_obstacle,
)
from kpsplit.control.session import ClusterSession, lease_seconds, wait_a_lease
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    InvariantError,
    behind_a_change,
    duration,
    many,
)
from kpsplit.kafka.cluster_admin import answer_within
from kpsplit.kafka.control_log import OperationLog
from kpsplit.kafka.groups import known_groups, range_commits, readers_of, readers_of_topics
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.group_slots import group_topics
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import MOST_GENERATIONS, is_changelog_of

LOOK_AGAIN_SECONDS = 0.5
_GO_ON = "to go on run: kpsplit unenroll {}"


@dataclass(frozen=True, slots=True)
class ReturnPlan:
    """How far a topic is on its way back to plain clients, and what is before it now.

    ``recorded``: the latest record of the topic. ``acts``: what is still to be done. ``obstacles``: why it
    cannot begin, or go on.
    """

    topic: str
    recorded: Enrolment
    acts: tuple[Act, ...]
    obstacles: tuple[Obstacle, ...]


def recorded_enrolment(view: ControlView, topic: str) -> Enrolment:
    """Raises UsageError for a topic that was never enrolled."""
    recorded = view.recorded(topic)
    if recorded is None:
        raise view.not_enrolled(topic)
    return recorded


class Unenroller:
    """One run. Not thread safe. Each look at the cluster is a new one: others go on meanwhile.

    ``patience``: for so many seconds groups are waited for before anything is recorded.
    """

    def __init__(
        self, session: ClusterSession, topic: str, observer: Observer, patience: float = 0.0
    ) -> None:
        self._session = session
        self._admin = session.admin
        self._topic = topic
        self._observe = observer
        self._deadline = session.begin()
        self._patience = Deadline(patience)
        self._changed = self._claimed = self._lease_over = self._withdrawn = False
        self._waits_for = ""

    def plan(self) -> ReturnPlan:
        """Look, and change nothing."""
        recorded = recorded_enrolment(self._session.read(self._deadline), self._topic)
        return ReturnPlan(self._topic, recorded, acts_left(recorded), self._look(recorded).obstacles)

    def run(self) -> Enrolment:
        """Do every step that is left; return the last record.

        Raises:
            CheckFailedError: something forbids it. DeadlineExceededError: a group did not come so far.
        """
        hint = _GO_ON.format(self._topic)
        while True:
            with behind_a_change(hint, done=self._changed):
                recorded = recorded_enrolment(self._session.read(self._deadline), self._topic)
                self._changed = self._changed or recorded.returning
                seen = self._look(recorded)
                act = next_step(recorded, seen)
            if act is Act.DONE:
                return recorded
            if act is Act.REFUSE:
                raise refusal(self._topic, seen.obstacles, changed=recorded.returning)
            # What a group has to do says more than that this can be run again.
            with behind_a_change(None if act is Act.AWAIT else hint, done=self._changed):
                self._do(act, recorded, seen)

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, recorded: Enrolment) -> Seen:
        """Return what the next step depends on, and no more: some of it is dear."""
        if recorded.left:
            return Seen(withdrawn=self._withdrawn)
        if not recorded.returning:
            return Seen(obstacles_of(self._forbidding(recorded)), patient=not self._patience.expired())
        former = recorded.former
        if not recorded.settled:
            found = () if former is None or self._claimed else self._partitions()
            return Seen(found, claimed=self._claimed, lease_over=self._lease_over)
        if former is None:
            raise InvariantError(f"the record of {self._topic} says that it is left and that it is not")
        readers = tuple(readers_of_topics(self._admin, {former.topic}, self._deadline))
        there = former.topic in self._admin.topics()
        if readers or there:
            return Seen(readers=readers, slots_topic=there)
        partitions = self._partitions()
        return Seen(tuple(partitions or self._groups(recorded, frozenset())))

    def _forbidding(self, recorded: Enrolment) -> Iterator[Obstacle | None]:
        """Yield what forbids the return: all that is known, so that one look is enough."""
        yield (unfinished := enrolment_obstacle(recorded))
        facts = self._admin.describe(self._topic)
        if facts.topic_id != recorded.topic_id:
            yield Obstacle(
                f"topic {self._topic} was deleted and made again since it was enrolled",
                f"run: kpsplit enroll {self._topic}",
            )
            return
        for name in sorted(n for n in self._admin.topics() if is_changelog_of(n, self._topic)):
            yield Obstacle(
                f"a group keeps state of topic {self._topic} by its slots: {name}",
                f"stop the group, then delete {name}: its state is lost",
            )
        partitions = self._partitions()
        yield from partitions
        if unfinished is None and not any(partitions):
            readers = readers_of(self._admin, self._topic, recorded, self._deadline)
            yield from self._groups(recorded, frozenset(readers))

    def _states(self) -> list[PartitionState]:
        view = self._session.read(self._deadline)
        count = self._admin.partition_count(self._topic, self._deadline)
        parents = (PhysicalPartition(self._topic, number) for number in range(count))
        return [view.enrolled_state(parent) for parent in parents]

    def _partitions(self) -> tuple[Obstacle, ...]:
        topics = self._admin.topics()
        return obstacles_of(partition_obstacle(state, topics) for state in self._states())

    def _groups(self, recorded: Enrolment, sharing: frozenset[str]) -> tuple[Obstacle, ...]:
        """Return which groups do not stand right; ``sharing``: those whose members may have slots.

        Range commits are read first: a group that goes on has an ordinary offset that is not less.
        """
        states = self._states()
        fold = range_commits(self._admin, [state.parent for state in states], self._deadline)
        known = known_groups(self._admin, group_topics(self._topic, recorded), self._deadline)
        groups = {*known, *(group for state in states for group in fold.groups(state.parent))}
        looks = (
            group_obstacle(
                group, state, fold, known.get(group, {}).get(state.parent), shared=group in sharing
            )
            for group in sorted(groups)
            for state in states
        )
        return obstacles_of(looks)

    # -- doing -------------------------------------------------------------------------------------

    def _do(self, act: Act, recorded: Enrolment, seen: Seen) -> None:
        started = monotonic()
        match act:
            case Act.RECORD:
                self._record(recorded)
            case Act.CLAIM:
                self._claim()
            case Act.LEASE:
                wait_a_lease(self._session.tail(self._deadline), self._deadline)
                self._lease_over = True
                self._done("Lease", started, "one lease has passed")
            case Act.RELEASE:
                self._await(f"group {seen.readers[0]} to release the slots of {self._topic}")
            case Act.DELETE:
                if (former := recorded.former) and self._admin.delete(
                    former.topic, answer_within(self._deadline)
                ):
                    self._done("DeleteSlots", started, former.topic)
            case Act.AWAIT:
                self._await(seen.obstacles[0].text, seen.obstacles[0].remedy)
            case Act.WITHDRAW:
                facts = self._admin.describe(self._topic)
                for group in withdraw_commits(self._session, facts, self._deadline):
                    self._done("Withdraw", started, f"the range commits of {group}")
                self._withdrawn = True

    def _record(self, recorded: Enrolment) -> None:
        record = following(recorded)
        if record is None:
            return
        if not recorded.returning:
            self._refuse_what_cannot_end(recorded)
        name = _NAMES[record.settled, record.former is None]
        writer = enroller(self._session, self._observe)
        writer.write(name, recorded, record, self._deadline, _GO_ON.format(self._topic))
        self._changed, self._lease_over = True, False

    def _refuse_what_cannot_end(self, recorded: Enrolment) -> None:
        """Raises where it is known beforehand that a return that begins now cannot be finished."""
        if recorded.generation >= MOST_GENERATIONS:
            raise ConflictError(f"the slots of topic {self._topic} were changed {MOST_GENERATIONS - 1} times")
        SlotsTopics(self._admin).check_rights(self._topic, recorded.generation)
        needed = 2 * lease_seconds(self._session.tail(self._deadline)) + EFFORT_SECONDS
        if self._deadline.left() < needed:
            raise DeadlineExceededError(
                f"a return takes two leases and more, {duration(needed)}, and "
                f"{duration(self._deadline.left())} are left",
                hint=f"give a --timeout of more than {needed:.0f}",
            )

    def _claim(self) -> None:
        """Claim each partition: operators of before are fenced, later ones then read the record."""
        started, states = monotonic(), self._states()
        for state in states:
            log = OperationLog(self._session.connection, state.parent)
            try:
                now = log.claim(self._deadline, lambda found: partition_obstacle(found) is None)
            finally:
                log.close()
            if (obstacle := partition_obstacle(now)) is not None:
                raise refusal(self._topic, (obstacle,), changed=True)
        self._claimed = True
        self._done("ClaimAll", started, many(len(states), "partition"))

    def _await(self, what: str, hint: str | None = None) -> None:
        """Wait a moment for a group; report whom that is for, once."""
        if what != self._waits_for:
            self._observe(StepDone("Wait", 0.0, what))
        self._waits_for = what
        self._deadline.check(what, hint=hint)
        self._deadline.pause(LOOK_AGAIN_SECONDS)

    def _done(self, name: str, started: float, detail: str) -> None:
        self._observe(StepDone(name, monotonic() - started, detail))


_NAMES = {
    (False, False): "Return",
    (True, False): "Whole",
    (False, True): "Part",
    (True, True): "Leave",
}
"""Steps, by what a record says: whether it is settled, and whether there are former slots no more."""


def refusal(topic: str, obstacles: tuple[Obstacle, ...], *, changed: bool) -> CheckFailedError:
    """Return the error for a topic that cannot return; the hint is the command for the first obstacle."""
    first = next((o for o in obstacles if not o.passes), obstacles[0])
    more = f" (and {len(obstacles) - 1} more, see --dry-run)" if len(obstacles) > 1 else ""
    what = f"topic {topic} cannot return to plain clients yet: {first.text}{more}"
    return CheckFailedError(what, hint=first.remedy, changed=changed)
