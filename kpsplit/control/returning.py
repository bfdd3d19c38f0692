"""The way of a topic back to plain clients, step by step (protocol, section 10.16); pure.

The latest record of the topic says how far the way is. What an operator sees besides decides about the next
step. So a run that was broken off is gone on with by the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from kpsplit.control.plans import Check, under_way
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import PartitionState, Phase, SubTopicState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import MOST_GENERATIONS


class Act(StrEnum):
    """What an operator does next."""

    REFUSE = "refuse"
    """It is forbidden, and only people can change that."""
    RECORD = "record"
    """Write the record that follows."""
    CLAIM = "claim"
    """Claim each partition once, so that no operator splits it any more."""
    LEASE = "lease"
    """Let a lease pass."""
    RELEASE = "release"
    """Wait until no group has a member on the slots topic."""
    DELETE = "delete"
    """Delete the slots topic."""
    AWAIT = "await"
    """Wait until each group stands at one place in each partition."""
    WITHDRAW = "withdraw"
    """Withdraw the range commits of all groups."""
    DONE = "done"


AT_REST, MERGED, GROUPS = "at rest", "merged", "groups"
"""Names of checks. A check of a group may hold later by itself, because the group reads on."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an operator knows besides the record. ``obstacles``: the checks that fail.

    ``claimed``: this run has claimed each partition since the first record. ``patient``: before the first
    record a group may be waited for. ``lease_over``: a lease has passed since the record was read.
    ``readers``: the groups that have a member on the slots topic. ``slots_topic``: it is there.
    ``withdrawn``: this run has withdrawn the range commits.
    """

    obstacles: tuple[Check, ...] = ()
    claimed: bool = False
    patient: bool = False
    lease_over: bool = False
    readers: tuple[str, ...] = ()
    slots_topic: bool = False
    withdrawn: bool = False


def following(enrolment: Enrolment) -> Enrolment | None:
    """Return the next record of a topic's return, the first where it has not begun; None after the last."""
    if not enrolment.returning:
        number = enrolment.generation + 1
        begun = replace(enrolment, slots=None, former_slots=enrolment.slots, generation=number)
        return replace(begun, settled=False, returning=True)
    if enrolment.left:
        return None
    if not enrolment.settled:
        return replace(enrolment, settled=True)
    return replace(enrolment, former_slots=None, settled=False)


_WAY = (
    Act.RECORD, Act.CLAIM, Act.LEASE, Act.RECORD, Act.RELEASE, Act.DELETE, Act.AWAIT, Act.RECORD, Act.LEASE,
    Act.RECORD, Act.WITHDRAW,
)  # fmt: skip


def acts_left(recorded: Enrolment) -> tuple[Act, ...]:
    """Return everything that is still to be done for a topic whose latest record is this."""
    if recorded.left:
        return _WAY[10:]
    if not recorded.returning:
        return _WAY
    if recorded.former is None:
        return _WAY[8:]
    return _WAY[4:] if recorded.settled else _WAY[1:]


def next_step(recorded: Enrolment, seen: Seen) -> Act:
    """Return what is done next for a topic whose latest record is this."""
    if recorded.left:
        return Act.DONE if seen.withdrawn else Act.WITHDRAW
    if any(obstacle.name != GROUPS for obstacle in seen.obstacles):
        return Act.REFUSE
    if recorded.returning and not recorded.settled:
        if recorded.former is not None and not seen.claimed:
            return Act.CLAIM
        return Act.RECORD if seen.lease_over else Act.LEASE
    if not recorded.returning:
        obstacle = Act.AWAIT if seen.patient else Act.REFUSE
        return obstacle if seen.obstacles else Act.RECORD
    if seen.readers:
        return Act.RELEASE
    if seen.slots_topic:
        return Act.DELETE
    return Act.AWAIT if seen.obstacles else Act.RECORD


def enrolment_obstacle(enrolment: Enrolment) -> Check | None:
    """Return why the return of an enrolled topic cannot begin yet, as far as its enrolment says that."""
    topic = enrolment.topic
    if not enrolment.settled or enrolment.slots is None or enrolment.former is not None:
        text = f"the enrolment of {topic} is not finished"
        return Check("enrolled", False, text, f"run: kpsplit enroll {topic}")
    if enrolment.generation >= MOST_GENERATIONS:
        text = f"the slots of {topic} were changed {MOST_GENERATIONS - 1} times"
        return Check("enrolled", False, text, "its generations are used up: it stays enrolled")
    return None


def partition_obstacle(state: PartitionState, topics: Collection[str] = ()) -> Check | None:
    """Return why a partition cannot return; ``topics``: those that there are."""
    parent = state.parent
    if state.phase is Phase.FROZEN:
        text = f"{parent} is frozen: {state.frozen_reason}"
        return Check(AT_REST, False, text, f"run: kpsplit resume {parent} --thaw")
    if (busy := under_way(state)) is not None:
        return Check(AT_REST, False, busy, f"run: kpsplit resume {parent}, or kpsplit abort {parent}")
    layout = state.lineage.open_segments()
    if [segment.source for segment in layout] != [parent]:
        text = f"{parent} is split, into {len(layout)}" if len(layout) > 1 else f"{parent} is not merged"
        return Check(MERGED, False, text, f"run: kpsplit merge {parent}, then kpsplit retire {parent}")
    for subtopic in state.subtopics:
        if subtopic.state is not SubTopicState.RETIRED or subtopic.name in topics:
            text = f"{subtopic.name} of {parent} is not retired"
            return Check(MERGED, False, text, f"run: kpsplit retire {parent}")
    return None


def group_obstacle(
    group: str, state: PartitionState, fold: CommitFold, ordinary: int | None, *, shared: bool
) -> Check | None:
    """Return why a group does not stand right in a partition that is not split.

    ``ordinary``: its ordinary offset there, read after the range commits. ``shared``: its members may read
    the partition by slots still, so they stand apart.
    """
    found = _standing(group, state, fold, ordinary, shared=shared)
    if found is None:
        return None
    topic = state.parent.topic
    remedy = (
        f"let it read on, or move it: kpsplit seek {state.parent} --group {group}, or remove it: "
        f"kpsplit forget {topic} --group {group}"
    )
    return Check(GROUPS, False, f"group {group} in {state.parent}: {found}", remedy)


def seek_obstacle(recorded: Enrolment | None, state: PartitionState, cursor: Cursor) -> Check | None:
    """Return why a group is not to be moved to a place while the topic returns, None if it may be.

    A key range that is moved alone stands apart until its group reads on. After the third record nobody looks
    again at where groups stand.
    """
    if recorded is None or not recorded.returning:
        return None
    if cursor.range != WHOLE:
        text = f"{recorded.change_text}: no key range of {state.parent} is moved alone"
        return Check(GROUPS, False, text, "move the whole partition: leave --keys away")
    now = state.lineage.open_segments()[0]
    if recorded.former is None and cursor.pending(state.lineage).keys() - {now.id}:
        text = f"{recorded.change_text}: no group is moved before the latest merge of {state.parent}"
        return Check(GROUPS, False, text, f"give --to {now.logical(now.start)}, or a later place")
    return None


def _standing(
    group: str, state: PartitionState, fold: CommitFold, ordinary: int | None, *, shared: bool
) -> str | None:
    lineage, parent = state.lineage, state.parent
    now = lineage.open_segments()[0]
    before = f"it stands before the latest merge, at {now.start}"
    pieces = fold.cursor(group, parent, WHOLE, lineage)
    left = [None if cursor is None else cursor.pending(lineage) for _, cursor in pieces]
    if fold.newer(group, parent) is not None:
        return "a newer kpsplit writes its range commits"
    if any(pending.keys() - {now.id} for pending in left if pending is not None):
        return before
    if None in left and ordinary is not None and ordinary < now.start:
        return before
    if shared or left == [None]:
        return None
    if len(left) > 1 or left[0] is None:
        return "its key ranges stand apart"
    at = left[0][now.id]
    if ordinary is None or ordinary < at:
        return f"its ordinary offset is {'missing' if ordinary is None else ordinary}, not {at}"
    return None


def failed(found: Iterable[Check | None]) -> tuple[Check, ...]:
    return tuple(check for check in found if check is not None)
