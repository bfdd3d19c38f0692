"""Leads a topic back to plain clients: does what ``returning`` decides (protocol, section 10.16)."""

from __future__ import annotations

from collections.abc import Iterator

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.own_topics import SlotsTopics
from kpsplit.control.plans import Check
from kpsplit.control.returning import (
    GROUPS,
    Act,
    Seen,
    enrolment_obstacle,
    failed,
    following,
    group_obstacle,
    next_step,
    partition_obstacle,
)
from kpsplit.control.session import (
    LOOK_AGAIN_SECONDS,
    ClusterSession,
    EnrolmentRecords,
    Withdraw,
    lease_seconds,
    wait_a_lease,
)
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    InvariantError,
    after_a_change,
    duration,
    many,
)
from kpsplit.kafka.cluster_admin import ClusterAdmin, answer_within
from kpsplit.kafka.control_log import EnrolmentLog, OperationLog
from kpsplit.kafka.groups import known_groups, range_commits, readers_of, readers_of_topics
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.group_slots import group_topics
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import is_changelog_of, offsets_partition

EFFORT_SECONDS = 10.0
"""For what an enrolment, or the way back, does besides waiting for leases."""
_GO_ON = "to go on run: kpsplit unenroll {}"


def changelogs_of(admin: ClusterAdmin, topic: str) -> list[str]:
    """Return the topics in which groups keep state of a topic."""
    return sorted(name for name in admin.topics() if is_changelog_of(name, topic))


def withdraw_commits(
    admin: ClusterAdmin, withdraw: Withdraw, topic: str, deadline: Deadline
) -> tuple[str, ...]:
    """Withdraw what all groups have committed for a topic; return these groups.

    Brokers forget ordinary offsets with the topic; nobody forgets these, and a group that stood at 1000 would
    pass over the first 1000 records of the new topic without a word. So the partitions are those that the log
    names: the old topic may have had more of them, and the new one may get as many.

    Groups commit for the new topic under the same keys when it is enrolled. So ``withdraw`` is that of a log
    which was claimed when it was not: an operator that claims it since, and may enrol it, has this refused.
    """
    stale = range_commits(admin, None, deadline).keys_of(topic)
    if stale:
        count = offset_log_partitions(admin)
        withdraw([(offsets_partition(key.parent, count), key.encode()) for key in stale], deadline)
    return tuple(sorted({key.group for key in stale}))


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
        self._records = EnrolmentRecords(session.enrolments, observer)
        self._deadline = session.begin()
        self._seconds = self._deadline.left()
        self._patience = Deadline(patience)
        self._changed = False
        self._done_for: dict[Act, Enrolment] = {}
        """The record that stood when this run did a step: under another one, be it another operator's, the
        step is still to be done."""
        self._waits_for = ""

    def obstacles(self) -> list[Check]:
        """Look, and change nothing; return the checks that fail."""
        recorded = self._session.recorded(self._topic, self._deadline)
        return list(self._look(recorded).obstacles)

    def run(self) -> Enrolment:
        """Do every step that is left; return the last record.

        Raises:
            CheckFailedError: something forbids it. DeadlineExceededError: a group did not come so far.
            ConflictError: somebody has enrolled the topic again meanwhile.
        """
        hint, begun = _GO_ON.format(self._topic), False
        while True:
            with after_a_change(hint, done=self._changed):
                recorded = self._session.recorded(self._topic, self._deadline)
                again, begun = begun and not recorded.returning, recorded.returning
                self._changed = self._changed or (begun and not recorded.left)
                seen = self._look(recorded)
                act = next_step(recorded, seen)
            if again:
                what = f"topic {self._topic} was enrolled again by another process meanwhile"
                raise ConflictError(what, hint="look at: kpsplit status", changed=self._changed)
            if act is Act.DONE:
                return recorded
            if act is Act.REFUSE:
                raise refusal(self._topic, seen.obstacles, changed=recorded.returning)
            # What a group has to do says more than that this can be run again.
            with after_a_change(None if act is Act.AWAIT else hint, done=self._changed):
                self._do(act, recorded, seen)

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, recorded: Enrolment) -> Seen:
        """Return what the next step depends on, and no more: some of it is dear."""
        if recorded.left:
            return Seen(withdrawn=self._has_done(Act.WITHDRAW, recorded))
        if not recorded.returning:
            return Seen(failed(self._forbidding(recorded)), patient=not self._patience.expired())
        former = recorded.former
        if not recorded.settled:
            claimed = self._has_done(Act.CLAIM, recorded)
            found = () if former is None or claimed else self._partitions()
            return Seen(found, claimed=claimed, lease_over=self._has_done(Act.LEASE, recorded))
        if former is None:
            raise InvariantError(f"the record of {self._topic} says that it is left and that it is not")
        readers = tuple(readers_of_topics(self._admin, {former.topic}, self._deadline))
        there = former.topic in self._admin.topics()
        if readers or there:
            return Seen(readers=readers, slots_topic=there)
        partitions = self._partitions()
        return Seen(tuple(partitions or self._groups(recorded, frozenset())))

    def _has_done(self, act: Act, recorded: Enrolment) -> bool:
        return self._done_for.get(act) == recorded

    def _forbidding(self, recorded: Enrolment) -> Iterator[Check | None]:
        """Yield what forbids the return: all that is known, so that one look is enough."""
        yield (unfinished := enrolment_obstacle(recorded))
        facts = self._admin.describe(self._topic)
        if facts.topic_id != recorded.topic_id:
            text = f"topic {self._topic} was deleted and made again since it was enrolled"
            yield Check("same topic", False, text, f"run: kpsplit enroll {self._topic}")
            return
        for name in changelogs_of(self._admin, self._topic):
            text = f"a group keeps state of topic {self._topic} by its slots: {name}"
            yield Check("state", False, text, f"stop the group, then delete {name}: its state is lost")
        partitions = self._partitions()
        yield from partitions
        if unfinished is None and not any(partitions):
            readers = readers_of(self._admin, self._topic, recorded, self._deadline)
            yield from self._groups(recorded, frozenset(readers))

    def _partitions(self) -> tuple[Check, ...]:
        topics = self._admin.topics()
        return failed(
            partition_obstacle(state, topics) for state in self._session.states(self._topic, self._deadline)
        )

    def _groups(self, recorded: Enrolment, sharing: frozenset[str]) -> tuple[Check, ...]:
        """Return which groups do not stand right; ``sharing``: those whose members may have slots.

        Range commits are read first: a group that goes on has an ordinary offset that is not less.
        """
        states = self._session.states(self._topic, self._deadline)
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
        return failed(looks)

    # -- doing -------------------------------------------------------------------------------------

    def _do(self, act: Act, recorded: Enrolment, seen: Seen) -> None:
        started = monotonic()
        match act:
            case Act.RECORD:
                self._record(recorded)
            case Act.CLAIM:
                self._claim(recorded)
            case Act.LEASE:
                wait_a_lease(self._session.tail(self._deadline), self._deadline)
                self._done_for[Act.LEASE] = recorded
                self._done("Lease", started, "one lease has passed")
            case Act.RELEASE:
                self._await(f"group {seen.readers[0]} to release the slots of {self._topic}")
            case Act.DELETE:
                if (former := recorded.former) and self._admin.delete(
                    former.topic, answer_within(self._deadline)
                ):
                    self._done("DeleteSlots", started, former.topic)
                self._deadline.pause(LOOK_AGAIN_SECONDS)  # a broker may list it for a moment
            case Act.AWAIT:
                obstacle = seen.obstacles[0]
                again = f"; then run again: kpsplit unenroll {self._topic}"
                self._await(obstacle.message, f"{obstacle.remedy}{again}")
            case Act.WITHDRAW:
                self._withdraw(recorded)

    def _record(self, recorded: Enrolment) -> None:
        record = following(recorded)
        if record is None:
            return
        if not recorded.returning:
            self._refuse_what_cannot_end(recorded)
        name = _NAMES[record.settled, record.former is None]
        try:
            self._records.write(name, recorded, record, self._deadline, _GO_ON.format(self._topic))
        except ConflictError:
            if not self._others_are_further(record):
                raise
        self._changed = True

    def _others_are_further(self, record: Enrolment) -> bool:
        """Return whether another operator is at this return, so that this one goes on from there."""
        found = self._session.recorded(self._topic, self._deadline)
        return found.returning and found.generation == record.generation

    def _refuse_what_cannot_end(self, recorded: Enrolment) -> None:
        """Raises where it is known beforehand that a return that begins now cannot be finished."""
        SlotsTopics(self._admin).check_rights(self._topic, recorded.generation)
        needed = 2 * lease_seconds(self._session.tail(self._deadline)) + EFFORT_SECONDS
        left = self._deadline.left()
        if left < needed:
            whole = self._seconds - left + needed  # groups may have been waited for
            raise DeadlineExceededError(
                f"a return takes two leases and more, {duration(needed)}, and {duration(left)} are left",
                hint=f"give a --timeout of more than {whole:.0f}",
            )

    def _claim(self, recorded: Enrolment) -> None:
        """Claim each partition: operators of before are fenced, later ones then read the record."""
        started, states = monotonic(), self._session.states(self._topic, self._deadline)
        for state in states:
            log = OperationLog(self._session.connection, state.parent)
            try:
                now = log.claim(self._deadline, lambda found: partition_obstacle(found) is None)
            finally:
                log.close()
            if (obstacle := partition_obstacle(now)) is not None:
                raise refusal(self._topic, (obstacle,), changed=True)
        self._done_for[Act.CLAIM] = recorded
        self._done("ClaimAll", started, many(len(states), "partition"))

    def _withdraw(self, recorded: Enrolment) -> None:
        """Withdraw the range commits of all groups, by a claim: an enrolment after it has its own.

        Raises:
            UsageError: the topic is gone.
        """
        started = monotonic()
        self._admin.describe(self._topic)

        def withdraw(log: EnrolmentLog) -> None:
            for group in withdraw_commits(self._admin, log.withdraw, self._topic, self._deadline):
                self._done("Withdraw", started, f"the range commits of {group}")

        self._records.by_claim(self._topic, recorded, (), withdraw, self._deadline)
        self._done_for[Act.WITHDRAW] = recorded

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


def refusal(topic: str, obstacles: tuple[Check, ...], *, changed: bool) -> CheckFailedError:
    """Return the error for a topic that cannot return; the hint is the command for the first obstacle."""
    first = next((check for check in obstacles if check.name != GROUPS), obstacles[0])
    more = f" (and {len(obstacles) - 1} more, see --dry-run)" if len(obstacles) > 1 else ""
    what = f"topic {topic} cannot return to plain clients yet: {first.message}{more}"
    return CheckFailedError(what, hint=first.remedy, changed=changed)
