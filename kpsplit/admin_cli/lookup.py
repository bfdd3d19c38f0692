"""Finds topics and partitions: by name, or the only one on which something is left to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kpsplit.admin_cli.call import Call, can_ask
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import EndedBy, PartitionState, Phase, Result

if TYPE_CHECKING:
    from kpsplit.admin import Admin
    from kpsplit.kafka.connection import Connection


def partition_count(connection: Connection, topic: str) -> int:
    """Return how many partitions a topic has.

    Raises:
        UsageError: there is no such topic.
    """
    from kpsplit.kafka.cluster_admin import ClusterAdmin

    return ClusterAdmin(connection).partition_count(topic)


def check_partition(connection: Connection, parent: PhysicalPartition) -> None:
    """Raise unless the partition exists.

    Raises:
        UsageError: there is no such topic or partition.
    """
    from kpsplit.kafka.cluster_admin import no_partition

    count = partition_count(connection, parent.topic)
    if parent.partition >= count:
        raise no_partition(parent, count)


def find_state(operations: Admin, connection: Connection, parent: PhysicalPartition) -> PartitionState:
    """Return the present state of a logical partition.

    Raises:
        UsageError: unknown topic, partition out of range, or not enrolled.
    """
    view = operations.view()
    if parent not in view.states:
        check_partition(connection, parent)
    state = view.state(parent)
    if state is None:
        raise view.not_enrolled(parent.topic)
    return state


Wanted = Callable[[PartitionState], bool]


def can_be_resumed(state: PartitionState) -> bool:
    """Return whether an operation is under way, be it of a dead operator or of one at work."""
    return state.attempt is not None


def can_be_aborted(state: PartitionState) -> bool:
    """Return whether an operation is under way that can be rolled back still."""
    return state.attempt is not None and state.phase is not Phase.COMMITTED


def can_be_thawed(state: PartitionState) -> bool:
    """Return whether the partition is frozen."""
    return state.phase is Phase.FROZEN


def can_be_begun_anew(state: PartitionState) -> bool:
    """Return whether a producer rolled back the last operation of a dead operator: resume starts it again."""
    last = state.last
    given_up = last is not None and (last.result, last.ended_by) == (Result.ROLLED_BACK, EndedBy.TAKEOVER)
    return state.attempt is None and state.phase is Phase.STEADY and given_up


def the_only_one(call: Call, verb: str, wanted: Wanted, yes: bool) -> PhysicalPartition | None:
    """Return the only partition that is wanted, None if there is none; ``verb``: with its options.

    Lists on stderr what is found; for ``resume`` also the operations that it could start again by name.

    Raises:
        UsageError: there are several, or there is no terminal to ask on.
    """
    with call.operations() as operations:
        states = _sorted(operations.view().states.values())
    found = [state for state in states if wanted(state)]
    anew = [state for state in states if can_be_begun_anew(state)] if wanted is can_be_resumed else []
    for state in (*found, *anew):
        call.say(f"kpsplit {verb} {state.parent}    # {_in_words(state)}")
    if not found:
        return None
    # The verb asks before it acts; without a terminal nobody could say that the wrong one was found.
    if len(found) == 1 and (yes or can_ask()):
        return found[0].parent
    if len(found) > 1:
        raise UsageError(f"{len(found)} partitions match", hint=f"name one: kpsplit {verb} TOPIC/P")
    raise UsageError("there is no terminal to confirm this partition on", hint="name it, or pass --yes")


def none_found(call: Call, text: str) -> None:
    """Print that there is nothing to do."""
    call.show({"result": None}, lambda console: console.print(text))


def _sorted(states: Iterable[PartitionState]) -> list[PartitionState]:
    return sorted(states, key=lambda state: state.parent)


def _in_words(state: PartitionState) -> str:
    from kpsplit.control.facts import under_way

    if state.last is not None and can_be_begun_anew(state):
        attempt = state.last.attempt
        return one_line(
            f"{attempt.kind} by {attempt.operator} was rolled back: {state.last.reason}; this starts it again"
        )
    return one_line(under_way(state) or f"{state.phase}: {state.frozen_reason}")
