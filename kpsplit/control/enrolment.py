"""Setting up: kpsplit's own topics with the cluster's settings, then the topics of applications.

Enrolment: a topic is recorded with its slots, one lease passes, and only then it is settled (protocol,
sections 6.10 and 10.10). Another number of slots is recorded in the same way, and the former ones are removed
when no group has them any more (protocol, section 10.15).
"""

from __future__ import annotations

import time
from dataclasses import replace

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.own_topics import AGAIN, SlotsTopics, changed, create_own_topics
from kpsplit.control.plans import Check, Sample, partitioner_check, sample_partition
from kpsplit.control.session import (
    LOOK_AGAIN_SECONDS,
    ClusterSession,
    EnrolmentRecords,
    Withdraw,
    ignore_steps,
    lease_seconds,
    wait_a_lease,
)
from kpsplit.control.unenrolment import EFFORT_SECONDS, Unenroller, changelogs_of, withdraw_commits
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    UsageError,
    after_a_change,
    duration,
)
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts, answer_within
from kpsplit.kafka.coordinators import group_names
from kpsplit.kafka.groups import readers_of, readers_of_topics
from kpsplit.kafka.kafka_python import refuse_another_topic
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import (
    DEFAULT_LEASE_MS,
    Enrolment,
    Partitioner,
    Settings,
    SlotDivision,
    decode_settings,
    encode_settings,
)
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    SETTINGS_KEY,
)

MOST_OFFSETS_PARTITIONS = 10_000


def settings_to_write(view: ControlView, lease_ms: int | None) -> Settings | None:
    """Return the settings that are to be written, None if those in force stay.

    Raises:
        ConflictError: producers of enrolled topics count on another lease. RecordError: it is out of bounds.
    """
    wanted = Settings(lease_ms if lease_ms is not None else DEFAULT_LEASE_MS)
    decode_settings(encode_settings(wanted))
    if not view.initialised:
        return wanted
    if lease_ms is None or wanted == view.settings:
        return None
    if view.enrolments:
        raise ConflictError(
            f"the lease is {view.settings.lease_ms} ms; producers of enrolled topics count on it",
            hint="keep it: leave the lease away, or give the same",
        )
    return wanted


def initialise(session: ClusterSession, lease_ms: int | None, offsets_partitions: int | None) -> list[str]:
    deadline = session.begin()
    if offsets_partitions is not None and not 1 <= offsets_partitions <= MOST_OFFSETS_PARTITIONS:
        raise UsageError(
            f"offset-log partitions must be 1 to {MOST_OFFSETS_PARTITIONS}, got {offsets_partitions}"
        )
    settings_to_write(ControlView(), lease_ms)  # out of bounds, it is refused before anything is created
    created = create_own_topics(session.admin, offsets_partitions, deadline)
    with after_a_change(AGAIN, done=bool(created)):
        settings = _settings_after_a_lease(session, lease_ms, deadline)
        if settings is not None:
            session.writer().write(CONTROL_TOPIC, SETTINGS_KEY, encode_settings(settings), deadline)
    return created


def _settings_after_a_lease(
    session: ClusterSession, lease_ms: int | None, deadline: Deadline
) -> Settings | None:
    """Return the settings that are to be written, when the lease in force has passed; None: those stay.

    An enrolment waits for the new lease only. While this one passes others may enrol topics, or set a lease.
    """
    passed: Settings | None = None
    while True:
        view = session.read(deadline)
        wanted = settings_to_write(view, lease_ms)
        if wanted is None or view.settings == passed:
            return wanted
        passed = view.settings
        wait_a_lease(session.tail(deadline), deadline)


PARTITIONS_SAMPLED = 8
RECORDS_SAMPLED = 250
_OWN_PREFIX = "__"
_UNSETTLED = "groups go on a lease after they have seen it; to have it settled run: kpsplit enroll {}"
_UNFINISHED = "groups go on with the new slots; to have the former ones removed run: kpsplit enroll {}"


def refuse_unfit(topic: TopicFacts, view: ControlView) -> None:
    """Raises UsageError for a topic that is internal, a sub-topic, or compacted."""
    if topic.name.startswith(_OWN_PREFIX):
        raise UsageError(f"{topic.name} is an internal topic", hint="enroll topics of applications only")
    owner = view.owner_of(topic.name)
    if owner is not None:
        raise UsageError(f"{topic.name} is a sub-topic of {owner}", hint=f"to split it again, split {owner}")
    if topic.compacted:
        raise UsageError(
            f"topic {topic.name} is compacted: key ranges of it cannot be moved to another topic",
            hint="kpsplit splits topics with cleanup.policy=delete only",
        )


def existing_enrolment(topic: TopicFacts, partitioner: Partitioner, view: ControlView) -> Enrolment | None:
    """Return the enrolment that a topic has already, None if it has none.

    Raises:
        ConflictError: it is enrolled with another partitioner, the topic is not the one that was enrolled, or
            it is being returned to plain clients.
    """
    known = view.recorded(topic.name)
    if known is None:
        return None
    if known.topic_id != topic.topic_id:
        touched = sorted(str(p) for p in (*view.states, *view.left_states) if p.topic == topic.name)
        if touched:
            raise ConflictError(
                f"topic {topic.name} was deleted and made again; {touched[0]} has a lineage of the old one",
                hint="make the topic under another name and enroll that",
            )
        return None
    if known.left:
        return None
    if known.returning:
        raise ConflictError(
            known.change_text,
            hint=f"to finish that run: kpsplit unenroll {topic.name}; then it can be enrolled again",
        )
    if known.partitioner is not partitioner:
        raise ConflictError(
            f"topic {topic.name} is enrolled with partitioner {known.partitioner}, not {partitioner}",
            hint=f"give --partitioner {known.partitioner}",
        )
    return known


def check_records(
    admin: ClusterAdmin, topic: TopicFacts, partitioner: Partitioner, deadline: Deadline
) -> Check:
    count = len(topic.partitions)
    step = max(1, count // PARTITIONS_SAMPLED)
    everything = Sample()
    if partitioner is not Partitioner.EXPLICIT and count > 1:
        for number in range(0, count, step):
            place = PhysicalPartition(topic.name, number)
            everything.merge(sample_partition(admin, place, RECORDS_SAMPLED, (number, count), deadline))
    return partitioner_check(everything, partitioner, count)


class Enroller:
    """Writes enrolments. Not thread safe.

    The steps, each harmless if the next does not follow: the slots topic; the enrolment with its slots, not
    settled; one lease; the enrolment, settled. While an enrolment is not settled no group's member begins to
    hand out records of the topic's partitions; when it is, the first owner of a slot waits until nobody has
    the partition itself (``consumer.commit.group_offsets``). Where the last step does not follow each member
    waits a lease on its own.

    Another number of slots takes the same steps with a slots topic of its own, and three more: wait until no
    group has a member on the former slots topic; delete that; record that it is gone. While the record names
    it, an owner of a slot waits until nobody has a former one. So it does not depend on the last steps who
    reads what.
    """

    def __init__(self, session: ClusterSession, slots_topics: SlotsTopics, observer: Observer) -> None:
        self._admin = session.admin
        self._tail = session.tail
        self._records = EnrolmentRecords(session.enrolments, observer)
        self._slots_topics = slots_topics
        self._observe = observer
        self._made_slots = False
        """Whether a slots topic was created, or has grown."""

    def enrol(
        self,
        topic: TopicFacts,
        partitioner: Partitioner,
        known: Enrolment | None,
        slots: int | None,
        deadline: Deadline,
        before: Enrolment | None = None,
    ) -> Enrolment:
        """Enrol a topic, change its slots, or repair what its enrolment (``known``) lacks.

        ``before``: the enrolment of another topic of the name, where this one has none.

        Raises:
            ConflictError: somebody enrolled the topic otherwise meanwhile, or the change before this one is
                not finished.
            CheckFailedError: a topic stands in the slots topic's place, or groups keep state by the slots.
        """
        change = changed(known, slots)
        if change is not None:
            self._refuse_unchangeable(change, deadline)
        enrolment = self._settled(topic, partitioner, known, slots, deadline, before)
        with after_a_change(done=self._made_slots):
            if change is not None:
                enrolment = self._change(topic, enrolment, change, deadline)
            return self._finish(enrolment, deadline)

    def settle(self, topic: TopicFacts, enrolment: Enrolment, deadline: Deadline) -> Enrolment:
        """Settle an enrolment that was broken off."""
        return self._settled(topic, enrolment.partitioner, enrolment, None, deadline)

    def _settled(
        self,
        topic: TopicFacts,
        partitioner: Partitioner,
        known: Enrolment | None,
        slots: int | None,
        deadline: Deadline,
        before: Enrolment | None = None,
    ) -> Enrolment:
        """Return the enrolment by the slots that are recorded, or are to be; record and settle it first."""
        recorded = known is not None and known.slots is not None
        generation = 1 if before is None else before.generation
        first = known or Enrolment(topic.name, topic.topic_id, partitioner, False, None, generation)
        wanted = self._slots_topics.decide(topic, known, slots, first.slots_topic)
        begun = replace(first, settled=False, slots=wanted)
        complete = known is not None and known.settled and recorded
        if not complete and known != begun:
            self._refuse_too_little_time(deadline)
        self._ensure(topic, begun, recorded, deadline)
        if known is not None and complete:
            return known
        if known != begun:
            with after_a_change(done=self._made_slots):
                if known is None and before is not None:
                    self._write_over(before, begun, deadline)
                else:
                    self._write("Enrol", known, begun, deadline)
        with after_a_change(_UNSETTLED.format(topic.name)):
            return self._settle(replace(begun, settled=True), deadline)

    def _ensure(self, topic: TopicFacts, enrolment: Enrolment, recorded: bool, deadline: Deadline) -> None:
        started = monotonic()
        division = enrolment.divisions[-1]
        if self._slots_topics.ensure(topic, division, recorded, deadline):
            self._made_slots = True
            detail = f"{division.slots} per partition, in {division.topic}"
            self._observe(StepDone("Slots", monotonic() - started, detail))

    def _refuse_too_little_time(self, deadline: Deadline) -> None:
        """Raises unless a lease can pass in time: one that is left unsettled costs every member a lease."""
        wait = lease_seconds(self._tail(deadline))
        if deadline.left() <= wait:
            raise DeadlineExceededError(
                f"an enrolment takes a lease, {duration(wait)}, and {duration(deadline.left())} are left",
                hint=f"give a --timeout of more than {wait + EFFORT_SECONDS:.0f}",
            )

    def _settle(self, settled: Enrolment, deadline: Deadline) -> Enrolment:
        """Wait a whole lease, so that every client knows of the enrolment, and record that."""
        started = monotonic()
        wait_a_lease(self._tail(deadline), deadline)
        self._observe(StepDone("Settle", monotonic() - started, "one lease has passed"))
        self._write("Settled", replace(settled, settled=False), settled, deadline)
        return settled

    # -- another number of slots -------------------------------------------------------------------

    def _refuse_unchangeable(self, change: Enrolment, deadline: Deadline) -> None:
        """Raises where it is known beforehand that a change cannot be finished; nothing was changed."""
        former = change.former
        if former is None:
            return
        group_names(self._admin, deadline)  # groups that are hidden would keep the former slots unnoticed
        kept = changelogs_of(self._admin, change.topic)
        if kept:
            more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
            raise CheckFailedError(
                f"groups keep state of topic {change.topic} by its {former.slots} slots: {kept[0]}{more}",
                hint="state is not divided anew: where it may be rebuilt stop the group and delete its "
                "changelog, then retry",
            )
        self._slots_topics.check_rights(change.topic, change.generation - 1)
        self._refuse_too_little_time(deadline)

    def _change(
        self, topic: TopicFacts, known: Enrolment, change: Enrolment, deadline: Deadline
    ) -> Enrolment:
        """Have groups share a topic by another number of slots; return its settled enrolment."""
        self._ensure(topic, change, recorded=False, deadline=deadline)
        with after_a_change(done=self._made_slots):
            self._write("Change", known, change, deadline)
        with after_a_change(_UNSETTLED.format(topic.name)):
            return self._settle(replace(change, settled=True), deadline)

    def _finish(self, enrolment: Enrolment, deadline: Deadline) -> Enrolment:
        """Remove the former slots when no group has them any more; return the enrolment without them."""
        former = enrolment.former
        if former is None:
            return enrolment
        with after_a_change(_UNFINISHED.format(enrolment.topic)):
            self._await_released(former, deadline)
            self._records.expect(enrolment, deadline)
            if self._admin.delete(former.topic, answer_within(deadline)):
                self._observe(StepDone("DeleteSlots", 0.0, former.topic))
            finished = replace(enrolment, former_slots=None)
            self._write("Changed", enrolment, finished, deadline)
        return finished

    def _await_released(self, former: SlotDivision, deadline: Deadline) -> None:
        """Return when no member of any group has a former slot, or may still work on what it read of one."""
        started = monotonic()
        while groups := readers_of_topics(self._admin, {former.topic}, deadline):
            deadline.check(f"group {groups[0]} to release the slots of {former.topic}")
            time.sleep(LOOK_AGAIN_SECONDS)
        self._observe(StepDone("Release", monotonic() - started, former.topic))

    def _write(self, name: str, before: Enrolment | None, enrolment: Enrolment, deadline: Deadline) -> None:
        self._records.write(name, before, enrolment, deadline, _UNSETTLED.format(enrolment.topic))

    def _write_over(self, before: Enrolment, enrolment: Enrolment, deadline: Deadline) -> None:
        """Write an enrolment over that of another topic of the name, or of this one until it was left.

        What groups had committed until then is withdrawn by the same claim.
        """

        def withdraw_all(withdraw: Withdraw) -> bool:
            groups = withdraw_commits(self._admin, withdraw, enrolment.topic, deadline)
            for group in groups:
                self._observe(StepDone("Withdraw", 0.0, f"what {group} had committed of the topic before"))
            return bool(groups)

        hint = _UNSETTLED.format(enrolment.topic)
        self._records.write("Enrol", before, enrolment, deadline, hint, first=withdraw_all)


def enroller(session: ClusterSession, observer: Observer) -> Enroller:
    return Enroller(session, SlotsTopics(session.admin), observer)


def _refuse_readers(session: ClusterSession, before: Enrolment, deadline: Deadline) -> None:
    """Raises while somebody may have slots of a topic that is gone, and whose slots were being changed.

    The enrolment of the new topic names no former slots, so no owner of a slot waits until nobody has them.
    """
    topic = before.topic
    groups = readers_of(session.admin, topic, before, deadline)
    if groups:
        more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
        raise ConflictError(
            f"topic {topic} was deleted and made again while its slots were changed, and members of group "
            f"{groups[0]}{more} have it still",
            hint=f"stop them, then run: kpsplit enroll {topic}",
        )


def enrol(
    session: ClusterSession, topic: str, partitioner: Partitioner, observer: Observer, slots: int | None
) -> Enrolment:
    deadline = session.begin()
    view = session.read(deadline)
    if not view.initialised:
        raise UsageError("kpsplit is not set up on this cluster", hint="run: kpsplit init")
    facts = session.admin.describe(topic)
    refuse_unfit(facts, view)
    known = existing_enrolment(facts, partitioner, view)
    if known is None:
        check = check_records(session.admin, facts, partitioner, deadline)
        if not check.ok and not check.forceable:
            raise UsageError(f"topic {topic}: {check.message}", hint=check.remedy)
    gone = False
    before = view.recorded(topic)  # of the topic that had this name before, or of this one until it was left
    if known is None and before is not None:
        refuse_another_topic(session.connection, topic, facts.topic_id)
        if (former := before.former) is not None:
            _refuse_readers(session, before, deadline)
        if former is not None and session.admin.delete(former.topic, answer_within(deadline)):
            gone = True
            observer(StepDone("DeleteSlots", 0.0, former.topic))
    with after_a_change(done=gone):
        return enroller(session, observer).enrol(facts, partitioner, known, slots, deadline, before)


def plan_unenrol(session: ClusterSession, topic: str) -> list[Check]:
    return Unenroller(session, topic, ignore_steps).obstacles()


def unenrol(session: ClusterSession, topic: str, observer: Observer, patience: float) -> Enrolment:
    return Unenroller(session, topic, observer, patience).run()
