"""Tasks on workers: balanced, sticky, deterministic; warm copies follow from the assignment alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer.state.assignment import assign, standbys
from kpsplit.errors import UsageError

TASKS = st.dictionaries(st.integers(0, 500), st.integers(0, 50), max_size=60)
EVEN = st.sets(st.integers(0, 500), max_size=60).map(lambda tasks: dict.fromkeys(tasks, 1))
WORKERS = st.integers(1, 12).map(lambda count: [f"w{i:02}" for i in range(count)])
MEMBERS = st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=8)


def loads(tasks: dict[int, int], workers: list[str], placed: dict[int, str]) -> Counter[str]:
    found = Counter(dict.fromkeys(workers, 0))
    for task, worker in placed.items():
        found[worker] += tasks[task]
    return found


def spread(tasks: dict[int, int], workers: list[str], placed: dict[int, str]) -> int:
    found = loads(tasks, workers, placed)
    return max(found.values()) - min(found.values())


@given(TASKS, WORKERS, st.data())
def test_loads_differ_by_no_more_than_the_heaviest_task_wherever_tasks_were_before(
    tasks: dict[int, int], workers: list[str], data: st.DataObject
) -> None:
    anyone = st.sampled_from([*workers, "gone"])
    previous = data.draw(st.dictionaries(st.integers(0, 500), anyone, max_size=60))
    placed = assign(tasks, workers, previous)
    assert placed.keys() == tasks.keys()
    assert set(placed.values()) <= set(workers)
    assert spread(tasks, workers, placed) <= max(tasks.values(), default=0)


@given(TASKS, WORKERS)
def test_an_assignment_that_is_balanced_stays_as_it_is(tasks: dict[int, int], workers: list[str]) -> None:
    placed = assign(tasks, workers)
    assert assign(tasks, workers, placed) == placed


@given(TASKS, WORKERS, st.data())
def test_when_a_worker_leaves_only_its_tasks_move(
    tasks: dict[int, int], workers: list[str], data: st.DataObject
) -> None:
    before = assign(tasks, [*workers, "leaver"])
    after = assign(tasks, workers, before)
    assert {task for task in tasks if after[task] != before[task]} == {
        task for task in tasks if before[task] == "leaver"
    }


@given(TASKS, WORKERS, st.sampled_from(["a-newcomer", "w05x", "zz-newcomer"]))
def test_when_a_worker_joins_tasks_move_only_to_it(
    tasks: dict[int, int], workers: list[str], newcomer: str
) -> None:
    before = assign(tasks, workers)
    after = assign(tasks, [*workers, newcomer], before)
    assert {after[task] for task in tasks if after[task] != before[task]} <= {newcomer}


@given(EVEN, WORKERS)
def test_of_equal_tasks_no_more_move_to_a_newcomer_than_its_share(
    tasks: dict[int, int], workers: list[str]
) -> None:
    before = assign(tasks, workers)
    after = assign(tasks, [*workers, "newcomer"], before)
    assert sum(after[task] != before[task] for task in tasks) == len(tasks) // (len(workers) + 1)


@given(TASKS, WORKERS, st.randoms())
def test_the_order_in_which_tasks_and_workers_are_named_does_not_matter(
    tasks: dict[int, int], workers: list[str], random: object
) -> None:
    shuffled = list(tasks.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign(dict(shuffled), reversed(workers)) == assign(tasks, workers)


def test_no_workers_and_negative_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="no worker"):
        assign({1: 1}, [])
    with pytest.raises(UsageError, match="negative"):
        assign({1: -1}, ["w"])
    assert assign({}, []) == {}


@given(st.sets(st.integers(0, 200), max_size=40), MEMBERS, st.integers(0, 4), st.data())
def test_warm_copies_are_at_as_many_others_as_wanted_and_never_at_the_owner(
    slots: set[int], members: set[str], copies: int, data: st.DataObject
) -> None:
    owners = {slot: data.draw(st.sampled_from(sorted(members))) for slot in slots}
    placed = standbys(owners, members, copies)
    assert placed.keys() == owners.keys()
    for slot, keepers in placed.items():
        assert owners[slot] not in keepers
        assert len(set(keepers)) == len(keepers) == min(copies, len(members) - 1)


@given(st.sets(st.integers(0, 200), min_size=1, max_size=40), MEMBERS, st.integers(1, 3), st.data())
def test_a_member_that_joins_takes_copies_and_moves_none_among_the_others(
    slots: set[int], members: set[str], copies: int, data: st.DataObject
) -> None:
    owners = {slot: data.draw(st.sampled_from(sorted(members))) for slot in slots}
    before, after = standbys(owners, members, copies), standbys(owners, [*members, "newcomer"], copies)
    for slot in slots:
        assert set(after[slot]) - {"newcomer"} <= set(before[slot])


def test_warm_copies_are_spread_over_the_members() -> None:
    members = [f"m{i}" for i in range(4)]
    owners = {slot: members[slot % 4] for slot in range(256)}
    counted = Counter(keeper for keepers in standbys(owners, members, 1).values() for keeper in keepers)
    assert all(256 // 8 < counted[member] < 256 // 2 for member in members)
