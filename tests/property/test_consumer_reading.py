"""Members of a group read a partition through random operations, hand-overs, commits and crashes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.property.consumer_world import Group, World

STEPS = 250
seeds = st.integers(0, 1 << 32)


def run(seed: int, members: int, slots: int, *, crashes: bool = False, seeks: bool = False) -> Group:
    random = Random(seed)
    world = World(random)
    group = Group(world, members, slots)

    def somebody(what: Callable[[int], None]) -> None:
        what(random.randrange(members))

    actions: list[tuple[int, Callable[[], None]]] = [
        (30, world.produce),
        (4, world.foreign),
        (2, world.stray),
        (10, world.operate),
        (6, lambda: somebody(lambda i: group.members[i].see_some())),
        (12, lambda: somebody(lambda i: group.members[i].ask())),
        (random.choice((3, 25)), lambda: somebody(lambda i: group.members[i].fetch(5) and None)),
        (20, lambda: somebody(lambda i: group.members[i].work(4))),
        (5, group.commit_some),
        (5, group.hand_over),
        (1, lambda: somebody(lambda i: group.members[i].pause())),
    ]
    if crashes:
        actions += [(1, group.crash), (1, group.seek_back)]
    if seeks:
        actions += [(2, group.seek_to_end)]
    weights = [weight for weight, _ in actions]
    for _, action in random.choices(actions, weights, k=STEPS):
        action()
    group.drain()
    return group


@given(seeds, st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 8]))
def test_every_record_is_processed_once_and_in_order_whoever_owns_its_slot(
    seed: int, members: int, slots: int
) -> None:
    """And each commit says exactly what was processed, at any moment of any operation."""
    run(seed, members, slots).check()


@given(seeds, st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 8]))
def test_after_a_crash_everything_behind_the_last_commit_is_delivered_again_and_nothing_else(
    seed: int, members: int, slots: int
) -> None:
    run(seed, members, slots, crashes=True).check()


@given(seeds, st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 8]))
def test_reading_that_begins_anywhere_never_takes_what_is_behind_a_marker_for_what_is_before_it(
    seed: int, members: int, slots: int
) -> None:
    run(seed, members, slots, seeks=True).check()
