"""What operators do: plan and run operations, resume, abort, take over, retire sub-topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kpsplit.control.retirement import ends_to_reach, undrained
from kpsplit.errors import ConflictError
from kpsplit.kafka.groups import proven_positions
from kpsplit.producer import takeover
from kpsplit.splitter.events import Retire
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import SegmentKind
from kpsplit.splitter.partition_state import (
    Attempt,
    EndedBy,
    OperationKind,
    PartitionState,
    SubTopicState,
    Target,
)
from kpsplit.splitter.records.keys import subtopic_name
from kpsplit.splitter.states import Phase
from kpsplit.splitter.steps import numbered
from tests.sim.group import GROUP, OffsetTail
from tests.sim.logs import PARENT
from tests.sim.operators import CALL_SECONDS, Operator
from tests.sim.process import Effect

if TYPE_CHECKING:
    from tests.sim.world import World

MAX_PAUSES_MS = (3_000, 12_000, 40_000)
Work = Callable[[Operator], Any]


def planned(state: PartitionState, name: str, choice: tuple[int, int, int], pause: int) -> Attempt:
    """Return the operation that three numbers choose among those that a state allows."""
    what, first, count = choice
    layout = state.lineage.open_segments()
    attempt = _merge(state, name, what, first, count) if len(layout) > 1 and what % 10 < 5 else None
    if attempt is None:
        source = layout[first % len(layout)]
        lo, hi = source.range.lo, source.range.hi
        middle = lo + (hi - lo) * (1 + count % 3) // 4
        attempt = _attempt(state, name, (source.id,), (KeyRange(lo, middle), KeyRange(middle, hi)))
    return replace(attempt, max_pause_ms=MAX_PAUSES_MS[pause % len(MAX_PAUSES_MS)])


def _merge(state: PartitionState, name: str, what: int, first: int, count: int) -> Attempt | None:
    layout = state.lineage.open_segments()
    if layout[0].kind is SegmentKind.PARENT:
        return None
    if what % 10 < 3 or len(layout) == 2:
        return _attempt(state, name, tuple(s.id for s in layout), (WHOLE,))
    begin = first % (len(layout) - 1)
    chosen = layout[begin : begin + 2 + count % (len(layout) - begin - 1)]
    union = KeyRange(chosen[0].range.lo, chosen[-1].range.hi)
    return _attempt(state, name, tuple(s.id for s in chosen), (union,))


def _attempt(
    state: PartitionState, name: str, sources: tuple[int, ...], ranges: tuple[KeyRange, ...]
) -> Attempt:
    kind = OperationKind.SPLIT if len(ranges) > 1 else OperationKind.MERGE
    target = Target.PARENT if ranges == (WHOLE,) else Target.PHANTOMS
    subtopic = subtopic_name(PARENT, state.next_split) if target is Target.PHANTOMS else None
    return Attempt(name, kind, name, 0, sources, ranges, target, subtopic, 0)


def run(attempt: Attempt, epoch: int) -> Work:
    """Run a planned operation."""
    return lambda operator: operator.driver.run(attempt, epoch, operator.deadline(CALL_SECONDS))


def resume(operator: Operator) -> object:
    """Finish what a dead operator left."""

    def renew(state: PartitionState, last: Attempt) -> Attempt:
        return replace(numbered(last, state), id=operator.name, operator=operator.name)

    return operator.driver.resume(renew, operator.deadline(CALL_SECONDS))


def abort(operator: Operator) -> object:
    """Roll back what is under way."""
    return operator.driver.abort(EndedBy.REQUEST, "somebody asked for it", operator.deadline(CALL_SECONDS))


def take_over(attempt_id: str) -> Work:
    """Roll back an attempt whose operator is gone, as a producer does."""
    return lambda operator: takeover.roll_back(cast(Any, operator), PARENT, attempt_id)


def retire(operator: Operator) -> int:
    """Delete the sub-topics that the group has drained, as the product's ``Retirement`` does."""
    deadline = operator.deadline(CALL_SECONDS)
    before: PartitionState = operator.process.call(lambda: _look(operator))
    sealed = [t.name for t in before.subtopics if t.state is SubTopicState.SEALED]
    going = [name for name in sealed if operator.process.call(partial(_drained, operator, before, name))]
    if before.phase is not Phase.STEADY or not going:
        return 0
    state = operator.claim(deadline, lambda now: now.revision == before.revision)
    if state.revision != before.revision:
        raise ConflictError("it has changed meanwhile")
    for name in going:
        state = operator.record(state, Retire(name), deadline)
        operator.process.call(partial(_delete, operator, name))
    return len(going)


def _look(operator: Operator) -> Effect:
    yield "reads the control topic"
    return operator.world.control.seen()


def _drained(operator: Operator, state: PartitionState, name: str) -> Effect:
    yield f"looks who has to read {name}"
    world = operator.world
    tail = OffsetTail(world.offsets)
    tail.follow()
    ordinary = {GROUP: dict(world.coordinator.offsets)} if world.coordinator.offsets else {}
    positions = proven_positions(ordinary, tail.fold, state)
    operator.group_known = bool(positions)
    starts = {place: log.start for place, log in world.brokers.logs.items()}
    return not undrained(ends_to_reach(state, name), starts, positions)


def _delete(operator: Operator, name: str) -> Effect:
    yield f"deletes {name}"
    operator.world.oracle.deleting(name, known=operator.group_known)
    operator.world.brokers.delete(name)
    operator.world.count("retired")


def due_for_takeover(world: World, state: PartitionState) -> str | None:
    """Return the attempt that has held producers up for longer than it may, if there is one."""
    if state.phase is not Phase.FENCED or state.attempt is None:
        return None
    fenced_at = next((r.opened for r in world.control.records if r.state == state), world.timeline.now)
    due = fenced_at + state.attempt.max_pause_ms / 1000 + takeover.GRACE_SECONDS
    return state.attempt.id if world.timeline.now > due else None
