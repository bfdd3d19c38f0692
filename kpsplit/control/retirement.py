"""Deletes sub-topics that nobody needs; a missing commit means *not drained* (protocol, section 8.3).

A group has drained what its ordinary offsets and its range commits both say (``groups.proven_positions``). A
retirement is recorded before the sub-topic is deleted: from then on members commit no offset of it. What was
recorded and not deleted the next ``retire`` deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from kpsplit.clock import Deadline
from kpsplit.control.plans import under_way
from kpsplit.control.status import Retirable
from kpsplit.control.subtopics import SubTopics
from kpsplit.errors import CheckFailedError, ConflictError, after_a_change
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts, answer_within
from kpsplit.kafka.control_log import OperationLog
from kpsplit.kafka.groups import (
    Positions,
    known_groups,
    positions_by_range_commits,
    proven_positions,
    range_commits,
    topics_of,
)
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.driver import Observer, StepDone, record_decided
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, Phase, Retire, SubTopic, SubTopicState
from kpsplit.splitter.records.control import Enrolment

_SHOWN = 5

_Groups = tuple[Mapping[str, Positions], CommitFold]
"""What each group has read for certain, and the range commits that say so."""


@dataclass(frozen=True, slots=True)
class Undrained:
    """A group that still has something to read, and where it stands (None: it never committed there).

    ``note``: why that may surprise.
    """

    group: str
    place: PhysicalPartition
    position: int | None
    end: int
    note: str = ""

    def __str__(self) -> str:
        at = "has no commit" if self.position is None else f"stands at {self.position}"
        return f"group {self.group} {at} in {self.place}, which ends at {self.end}{self.note}"


def ends_to_reach(state: PartitionState, subtopic: str) -> dict[PhysicalPartition, int]:
    """Return the end of each partition of a sub-topic that ever held records of a segment."""
    ends: dict[PhysicalPartition, int] = {}
    for segment in state.lineage:
        if segment.source.topic == subtopic and segment.end is not None and segment.length():
            ends[segment.source] = max(ends.get(segment.source, 0), segment.end)
    return ends


def undrained(
    ends: Mapping[PhysicalPartition, int],
    log_starts: Mapping[PhysicalPartition, int],
    groups: Mapping[str, Positions],
) -> list[Undrained]:
    """Return which groups still have to read what; a partition whose data have expired holds nobody up."""
    left = []
    for group, positions in sorted(groups.items()):
        for place, end in sorted(ends.items()):
            position = positions.get(place)
            if log_starts.get(place, 0) < end and (position is None or position < end):
                left.append(Undrained(group, place, position, end))
    return left


class Retirement:
    """Retires the sub-topics of one logical partition. Not thread safe.

    ``enrolment`` reads the topic's, at each look: its slots may be changed between two.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        log: OperationLog,
        enrolment: Callable[[Deadline], Enrolment | None],
        observer: Observer,
    ) -> None:
        self._admin = admin
        self._log = log
        self._enrolment = enrolment
        self._observe = observer
        self._subtopics = SubTopics(admin)
        self._gone: set[str] = set()

    def plan(self, force: bool, deadline: Deadline) -> Retirable:
        return self._look(self._resting(self._log.peek(deadline)), force, deadline)

    def run(self, force: bool, deadline: Deadline) -> list[str]:
        state = self._resting(self._log.peek(deadline))
        found = self._look(state, force, deadline)
        for name, reason in found.kept.items():
            self._keep(name, reason)
        if found.kept and not found.going:
            raise _nothing_retired(found.kept, found.undrained)
        going = [t for t in state.subtopics if t.name in found.going]
        return self._delete(going, state, force, deadline) if going else []

    def _keep(self, name: str, reason: str) -> None:
        self._observe(StepDone("Keep", 0.0, f"{name}: {reason}"))

    def _look(self, state: PartitionState, force: bool, deadline: Deadline) -> Retirable:
        candidates = [*state.to_retire(), *self._left_over(state)]
        there = self._admin.certain([t.name for t in candidates], deadline)
        self._gone = {name for name, topic in there.items() if topic is None}
        kept: dict[str, str] = {}
        undrained: list[str] = []
        groups = cache(partial(self._groups, state, deadline))  # one look for all of them
        for subtopic in candidates:
            topic = there[subtopic.name]
            reason = None if topic is None else self._foreign(state, subtopic, topic)
            if reason is None:
                reason = self._readers(state, subtopic, force, groups)
                undrained += [] if reason is None else [subtopic.name]
            if reason is not None:
                kept[subtopic.name] = reason
        going = tuple(t.name for t in candidates if t.name not in kept)
        return Retirable(going, kept, tuple(undrained))

    def _left_over(self, state: PartitionState) -> list[SubTopic]:
        """Return the sub-topics that are recorded as retired and were not deleted."""
        retired = [t for t in state.subtopics if t.state is SubTopicState.RETIRED]
        names = self._admin.topics() if retired else {}
        found = [(t, self._admin.known(t.name)) for t in retired if t.name in names]
        return [t for t, topic in found if topic is not None and t.topic_id in (None, topic.topic_id)]

    def _resting(self, state: PartitionState) -> PartitionState:
        busy = under_way(state)
        if busy is not None:
            raise ConflictError(
                busy, hint=f"run: kpsplit resume {state.parent}, or kpsplit abort {state.parent}"
            )
        if state.phase is not Phase.STEADY:
            raise ConflictError(
                f"{state.parent} is {state.phase}: {state.frozen_reason}", hint="thaw it first"
            )
        return state

    def _foreign(self, state: PartitionState, subtopic: SubTopic, found: TopicFacts) -> str | None:
        """Return why a topic is left alone whoever has read it: it may be somebody else's."""
        if subtopic.topic_id is not None and found.topic_id != subtopic.topic_id:
            return "this is another topic of the same name; kpsplit does not touch it"
        if not held_segments(state, subtopic.name):
            if len(found.partitions) != subtopic.partitions:
                return "this is no sub-topic of kpsplit's: its partitions differ"
            empty = self._subtopics.is_empty(found)
            return (
                None if empty else "it holds records, and kpsplit wrote none: look at it, delete it yourself"
            )
        return None

    def _readers(
        self, state: PartitionState, subtopic: SubTopic, force: bool, groups: Callable[[], _Groups]
    ) -> str | None:
        """Return which group has not drained a sub-topic; ``groups`` looks, where it has to be known.

        None has one to drain that is gone. Brokers forget a group's offsets with the topic, so each group
        would seem to stand before it for good.
        """
        there = subtopic.state is not SubTopicState.RETIRED and subtopic.name not in self._gone
        if not there or not held_segments(state, subtopic.name):
            return None
        left = self._undrained(state, subtopic, groups)
        if left and force:
            for item in left[:_SHOWN]:
                self._observe(StepDone("Forced", 0.0, f"{subtopic.name}: {item}"))
            return None
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        return f"{left[0]}{more}" if left else None

    def _undrained(
        self, state: PartitionState, subtopic: SubTopic, groups: Callable[[], _Groups]
    ) -> list[Undrained]:
        ends = ends_to_reach(state, subtopic.name)
        if not ends:
            return []
        positions, fold = groups()
        left = undrained(ends, self._admin.start_offsets(ends), positions)
        return [replace(item, note=_note(item, fold, state)) for item in left]

    def _groups(self, state: PartitionState, deadline: Deadline) -> _Groups:
        known = known_groups(self._admin, topics_of(state, self._enrolment(deadline)), deadline)
        fold = range_commits(self._admin, [state.parent], deadline)
        return proven_positions(known, fold, state), fold

    def _delete(
        self, going: list[SubTopic], before: PartitionState, force: bool, deadline: Deadline
    ) -> list[str]:
        """Claim, and retire; the readers are looked at again, because a claim may wait for its turn."""
        self._subtopics.check_rights(before.parent, {t.name for t in going} - self._gone)

        def unchanged(now: PartitionState) -> bool:
            if self._resting(now).revision != before.revision:
                raise ConflictError(f"{now.parent} has changed meanwhile", hint="retry")
            return True

        state = self._log.claim(deadline, unchanged)
        unchanged(state)
        deleted: list[str] = []
        kept: dict[str, str] = {}
        changed = False
        for subtopic in going:
            if subtopic.state is not SubTopicState.RETIRED:
                with after_a_change(done=changed):
                    look = partial(self._groups, state, deadline)
                    reason = None if force else self._readers(state, subtopic, force, look)
                    if reason is not None:
                        kept[subtopic.name] = reason
                        self._keep(subtopic.name, reason)
                        continue
                    state = record_decided(self._log, state, Retire(subtopic.name), deadline)
                changed = True
                self._observe(StepDone("Retire", 0.0, subtopic.name))
            with after_a_change(f"run again: kpsplit retire {state.parent}"):
                if self._deleted(state, subtopic, deadline):
                    self._observe(StepDone("Delete", 0.0, subtopic.name))
                    deleted.append(subtopic.name)
                    changed = True
        if kept and not changed:
            raise _nothing_retired(kept, kept)
        return deleted

    def _deleted(self, state: PartitionState, subtopic: SubTopic, deadline: Deadline) -> bool:
        """Delete a sub-topic and wait until no broker lists it; delete nothing that was not looked at.

        Return False also for one that an earlier ``retire`` has deleted: a stale broker lists it.
        """
        if subtopic.name in self._gone:
            return True
        deleted = True
        try:
            if held_segments(state, subtopic.name):
                there = self._admin.delete(subtopic.name, answer_within(deadline))
                deleted = there or subtopic.state is not SubTopicState.RETIRED
            else:
                self._subtopics.delete_abandoned(subtopic.name, deadline)
        except CheckFailedError as error:
            self._keep(subtopic.name, error.message)
            return False
        self._admin.await_gone(subtopic.name, deadline)
        return deleted


def _nothing_retired(kept: Mapping[str, str], undrained: Container[str]) -> CheckFailedError:
    name, reason = next(iter(kept.items()))
    hint = f"look at {name}, delete it yourself if nobody needs it, then retry"
    if name in undrained:
        hint = "let the group read on, kpsplit seek or kpsplit forget it, or go on with --force"
    return CheckFailedError(f"nothing was retired: {name}: {reason}", hint=hint)


def _note(item: Undrained, fold: CommitFold, state: PartitionState) -> str:
    """Say what makes a group stand where ``kpsplit offsets`` does not show it."""
    if fold.newer(item.group, state.parent) is not None:
        return " (a newer kpsplit writes its range commits)"
    by_range = positions_by_range_commits(fold, state).get(item.group, {})
    if by_range.get(item.place, -1) < item.end:
        return ""
    return " (by its ordinary offsets; its range commits are further, and its next commit rights them)"


def held_segments(state: PartitionState, subtopic: str) -> bool:
    return any(segment.source.topic == subtopic for segment in state.lineage)
