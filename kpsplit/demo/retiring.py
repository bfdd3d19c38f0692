"""Retirement: refused while a group has not read the phantoms, done once it has."""

from __future__ import annotations

from kpsplit.control.operations import Operations
from kpsplit.demo.narrator import Narrator, tell_step
from kpsplit.demo.reading_group import commit
from kpsplit.demo.result import DemoResult, Verdict
from kpsplit.errors import CheckFailedError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import SubTopicState


def group_of(topic: str) -> str:
    """Return the name of the demo's own consumer group."""
    return f"{topic}-readers"


def refused_before_reading(
    connection: Connection, operations: Operations, hot: PhysicalPartition, narrator: Narrator
) -> None:
    """Try to retire while a group that has read nothing of the phantoms is known.

    Raises:
        KpsplitError: sub-topics with records were deleted although the group had not read them.
    """
    group = group_of(hot.topic)
    state = operations.view().states[hot]
    unread = {s.source.topic for s in state.lineage if s.end is not None and s.length() and s.source != hot}
    commit(connection, group, [(hot, 0)])
    narrator.say(f"retire {hot}, too early: group {group} has read nothing yet")
    try:
        deleted = operations.retire(hot)
    except CheckFailedError as error:
        narrator.say(f"    refused: {error.message}")
        return
    lost = sorted(unread.intersection(deleted))
    if lost:
        raise KpsplitError(f"retire deleted {', '.join(lost)}, which group {group} had not read")
    narrator.say(f"    deleted {', '.join(deleted)}: nothing was ever written there")


def retire_after_reading(
    connection: Connection, operations: Operations, result: DemoResult, narrator: Narrator
) -> Verdict:
    """Let the group be at the ends, retire, and tell whether all sub-topics are gone."""
    hot = result.state.parent
    kept = {t.name for t in result.state.subtopics if t.state is not SubTopicState.RETIRED}
    ends = {s.source: s.end for s in result.state.lineage if s.end is not None and s.source.topic in kept}
    commit(connection, group_of(hot.topic), ends.items())
    narrator.say(f"retire {hot}: the group has read all phantoms")
    deleted = operations.retire(hot, observer=lambda step: tell_step(narrator, step))
    narrator.say(f"    deleted {', '.join(deleted) or 'nothing more'}")
    state = operations.view().state(hot)
    left = [] if state is None else [t.name for t in state.subtopics if t.state is not SubTopicState.RETIRED]
    ok = state is not None and not left
    return Verdict("retire", ok, f"{len(deleted)} sub-topics deleted, {len(left)} left")
