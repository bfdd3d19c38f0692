"""Warm copies follow from the group's assignment alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer.state.follower import standbys

MEMBERS = st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=8)


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
