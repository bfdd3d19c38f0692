"""Micro-batches of any lineage: every offset once, and no key before what comes before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.spark_jobs.streaming.plan import (
    Frontier,
    StreamOffset,
    StreamPosition,
    advance,
    between,
    readable_ends,
    tasks,
)
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, Phase
from kpsplit.splitter.reading import Cursor
from tests.property.lineage_walk import Delivery, Group, check_everything, check_in_order, ends, group_of
from tests.property.strategies import History, counts, histories

BATCHES = 15
limits = st.none() | st.integers(1, 12) | st.integers(1, 3000)


def logs(world: PartitionState) -> dict[PhysicalPartition, int]:
    """The stable end of every log once all that was ever written is decided."""
    found: dict[PhysicalPartition, int] = {}
    for s in world.lineage:
        end = ends(world.lineage)[s.id] if s.end is None else s.end + 1
        found[s.source] = max(found.get(s.source, 0), end)
    return found


def batch(group: Group, view: Lineage, start: Cursor, end: Cursor) -> None:
    """Let a group read what lies between two places, task by task."""
    stretches = between(view, start, end)
    assert stretches is not None, "a batch never ends before it begins"
    for together in tasks(view, stretches):
        group.deliveries += [Delivery(WHOLE, s.segment.id, s.first, s.behind) for s in together]


@given(histories(least=8), limits, st.data())
def test_batches_read_every_offset_once_and_nothing_before_its_predecessors(
    history: History, most: int | None, data: st.DataObject
) -> None:
    """Each batch is planned with any later view and read with a still later one, as after a restart."""
    newest = len(history.states) - 1
    cursor, seen, group = Cursor.at_start(WHOLE), 0, group_of(history, [])
    for _ in range(data.draw(st.integers(0, BATCHES))):
        seen = data.draw(st.integers(seen, newest))
        view = history.states[seen]
        stable = {s: data.draw(st.just(end) | st.integers(0, end)) for s, end in logs(history.last).items()}
        known = _known(view, stable, history.last.lineage)
        after = advance({3: cursor}, {3: Frontier(view.lineage, known)}, most)[3]
        later = history.states[data.draw(st.integers(seen, newest))].lineage
        offset = StreamOffset("orders", {3: StreamPosition(view.epoch, after)})
        read_back = StreamOffset.parse(offset.as_json()).at[3].cursor
        batch(group, later, cursor, read_back)
        cursor = read_back
    check_in_order(group, {})
    whole = Frontier(history.last.lineage, ends(history.last.lineage))
    batch(group, history.last.lineage, cursor, advance({3: cursor}, {3: whole})[3])
    check_everything(group, {})


def _known(view: PartitionState, stable: dict[PhysicalPartition, int], world: Lineage) -> dict[int, int]:
    """The ends of a view, none behind a marker that the view does not know yet."""
    final = {s.id: s.end for s in world}
    found = readable_ends(view, stable)
    return {i: at if (end := final[i]) is None else min(at, end) for i, at in found.items()}


@given(histories(least=4), st.data())
def test_rows_of_one_key_in_a_batch_come_out_of_one_task_in_order(
    history: History, data: st.DataObject
) -> None:
    lineage = history.last.lineage
    frontier = Frontier(lineage, ends(lineage))
    start = advance({3: Cursor.at_start(WHOLE)}, {3: frontier}, data.draw(st.integers(1, 3000)))[3]
    end = advance({3: start}, {3: frontier}, data.draw(limits))[3]
    stretches = between(lineage, start, end) or []
    place = {s.segment.id: (i, n) for i, t in enumerate(tasks(lineage, stretches)) for n, s in enumerate(t)}
    assert sorted(place) == [s.segment.id for s in stretches]
    for s in stretches:
        for before in _ancestors(lineage, s.segment.id) & place.keys():
            assert place[before][0] == place[s.segment.id][0], "another task"
            assert place[before][1] < place[s.segment.id][1], "behind it"


def _ancestors(lineage: Lineage, segment: int) -> set[int]:
    found = set(lineage.get(segment).predecessors)
    return found.union(*(_ancestors(lineage, p) for p in found))


@given(histories(), st.dictionaries(st.integers(0, 40), counts), limits)
def test_a_batch_holds_no_more_offsets_than_it_may_and_something_if_there_is_anything(
    history: History, some: dict[int, int], most: int | None
) -> None:
    lineage = history.last.lineage
    known = {i: min(e, ends(lineage)[i]) for i, e in some.items() if i in ends(lineage)}
    start = Cursor.at_start(WHOLE)
    everything = between(lineage, start, advance({3: start}, {3: Frontier(lineage, known)})[3]) or []
    total = sum(s.behind - s.first for s in everything)
    limited = between(lineage, start, advance({3: start}, {3: Frontier(lineage, known)}, most)[3]) or []
    assert sum(s.behind - s.first for s in limited) == (total if most is None else min(most, total))


@given(histories(), counts)
def test_no_batch_passes_a_fence_whose_outcome_is_not_known(history: History, more: int) -> None:
    for state in history.states:
        if state.phase is not Phase.FENCED:
            continue
        far = dict.fromkeys(state.lineage.sources(), 1 << 40)
        found = readable_ends(state, far)
        assert not found.keys() & set(state.closing_segments())
        assert found.keys() | set(state.closing_segments()) == {s.id for s in state.lineage}
