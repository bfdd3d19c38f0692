"""Boundaries from an observed distribution."""

from __future__ import annotations

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import (
    KEY_SPACE,
    WHOLE,
    KeyRange,
    assess,
    balanced,
    even_ranges,
    key_hash,
    union_of_adjacent,
    usefulness_limit,
)

EVENLY_SPREAD = [(key_hash(f"key-{i}".encode()), 1) for i in range(10_000)]


def times(samples: dict[int, int]) -> list[tuple[int, int]]:
    """One sample per record."""
    return [(h, 1) for h, n in samples.items() for _ in range(n)]


@pytest.mark.parametrize("parts", [2, 3, 4, 7, 64])
def test_evenly_spread_keys_are_balanced_almost_perfectly(parts: int) -> None:
    sizing = balanced(EVENLY_SPREAD, WHOLE, parts)
    assert len(sizing.ranges) == parts
    assert union_of_adjacent(sizing.ranges) == WHOLE
    assert sizing.balance < 1.01
    assert sizing.useful
    assert sizing.reason == ""


def test_a_skewed_key_space_is_cut_where_the_load_is() -> None:
    """All load in the lowest sixteenth of the key space: even ranges leave it in one piece."""
    crowded = [(h >> 4, w) for h, w in EVENLY_SPREAD]
    assert assess(crowded, even_ranges(WHOLE, 4)).balance == 4.0
    assert balanced(crowded, WHOLE, 4).balance < 1.01


def test_a_hot_key_is_left_in_a_range_of_its_own_and_the_rest_is_shared() -> None:
    hot = 0x80000000
    sizing = balanced([*EVENLY_SPREAD, (hot, 5_000)], WHOLE, 4)
    assert max(sizing.shares) == pytest.approx(1 / 3, abs=0.01)
    assert sizing.useful
    assert sizing.heaviest[0].hash == hot
    assert sizing.heaviest[0].share == pytest.approx(1 / 3, abs=0.001)


def test_a_key_with_61_percent_cannot_be_split_usefully_and_is_named() -> None:
    samples = times({0x8D3C2A11: 61, 5: 13, 0x20000000: 13, 0xF0000000: 13})
    sizing = balanced(samples, WHOLE, 4)
    assert not sizing.useful
    assert sizing.reason == "cannot be split usefully: key hash 8d3c2a11 has 61 %, its range keeps 61 %"


def test_the_key_behind_a_hash_is_named_if_it_is_known() -> None:
    sizing = balanced([(7, 100)] * 40, WHOLE, 2, {7: "customer-17"})
    named = "key hash 00000007 (customer-17) has 100 %"
    assert sizing.reason == f"cannot be split usefully: {named}, its range keeps 100 %"
    assert str(sizing.heaviest[0]) == "00000007 (customer-17)"


def test_a_heavy_hash_between_two_neighbours_makes_a_split_in_two_useless_although_it_has_only_half() -> None:
    sizing = balanced(times({10: 25, 20: 50, 30: 25}), WHOLE, 2)
    assert max(sizing.shares) == 0.75
    assert not sizing.useful
    assert "key hash 00000014 has 50 %" in sizing.reason


@pytest.mark.parametrize(("parts", "limit"), [(2, 0.6), (3, 0.5), (4, 0.5), (64, 0.5)])
def test_the_most_loaded_range_of_a_useful_split_keeps_at_most_half(parts: int, limit: float) -> None:
    assert usefulness_limit(parts) == limit
    rest = 1000 - int(1000 * limit)
    others = {1000 + i: rest // (4 * parts) for i in range(4 * parts)}
    at_limit = balanced(times({5: int(1000 * limit) * sum(others.values()) // rest, **others}), WHOLE, parts)
    assert at_limit.useful
    assert not balanced(times({5: 2 * int(1000 * limit), **others}), WHOLE, parts).useful


def test_the_boundaries_are_the_best_there_are() -> None:
    """A left-packed greedy would give 4+1, 3, 3 or worse; the best greatest load is 5 of 11."""
    sizing = balanced(times({10: 20, 20: 20, 30: 10, 40: 30, 50: 30}), WHOLE, 3)
    assert max(sizing.shares) == pytest.approx(40 / 110)


def test_cuts_lie_half_way_between_the_hashes_beside_them() -> None:
    sizing = balanced(times({100: 20, 300: 20}), WHOLE, 2)
    assert sizing.ranges == (KeyRange(0, 200), KeyRange(200, KEY_SPACE))


def test_a_cut_between_direct_neighbours_separates_them() -> None:
    sizing = balanced(times({100: 20, 101: 20}), WHOLE, 2)
    assert sizing.ranges[0].hi == 101
    assert sizing.shares == (0.5, 0.5)


def test_fewer_keys_than_ranges_still_make_that_many_ranges() -> None:
    sizing = balanced(times({100: 40, KEY_SPACE - 1: 40, 0x80000000: 40}), WHOLE, 5)
    assert len(sizing.ranges) == 5
    assert union_of_adjacent(sizing.ranges) == WHOLE
    assert max(sizing.shares) == pytest.approx(1 / 3)


def test_too_few_samples_give_even_ranges_and_say_so() -> None:
    sizing = balanced([(7, 1_000_000)] * 39, WHOLE, 4)
    assert sizing.ranges == even_ranges(WHOLE, 4)
    assert sizing.useful
    assert sizing.reason.startswith("only 39 samples for 4 ranges: too few")


def test_an_empty_partition_is_predicted_to_be_even() -> None:
    sizing = balanced([], WHOLE, 4)
    assert sizing.shares == (0.25,) * 4
    assert sizing.balance == 1.0
    assert sizing.heaviest == ()


def test_only_keys_of_the_divided_range_count() -> None:
    whole = KeyRange(0x80000000, 0xC0000000)
    sizing = balanced([*EVENLY_SPREAD, (5, 1_000_000)], whole, 2)
    assert union_of_adjacent(sizing.ranges) == whole
    assert sizing.balance < 1.01
    assert sizing.samples == sum(h in whole for h, _ in EVENLY_SPREAD)


def test_weights_count_not_samples() -> None:
    samples = [(100, 1)] * 50 + [(200, 99)] * 50 + [(300, 100)] * 50
    assert balanced(samples, WHOLE, 2).shares == (0.5, 0.5)


@pytest.mark.parametrize("parts", [-1, 0, 1, 65])
def test_only_2_to_64_ranges_are_made(parts: int) -> None:
    with pytest.raises(UsageError):
        balanced(EVENLY_SPREAD, WHOLE, parts)
    with pytest.raises(UsageError):
        even_ranges(WHOLE, parts)


def test_a_range_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(UsageError):
        balanced(EVENLY_SPREAD, KeyRange(5, 7), 3)


def test_the_narrowest_range_is_divided_into_single_hashes() -> None:
    sizing = balanced(times({5: 30, 6: 30}), KeyRange(5, 9), 4)
    assert [r.width for r in sizing.ranges] == [1, 1, 1, 1]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(UsageError):
        balanced([(5, -1)], WHOLE, 2)


def test_ranges_with_a_hole_cannot_be_assessed() -> None:
    with pytest.raises(UsageError):
        assess([], [KeyRange(0, 5), KeyRange(6, 9)])
