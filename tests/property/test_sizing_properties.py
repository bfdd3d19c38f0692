"""Boundaries from random distributions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.splitter.key_range import (
    WHOLE,
    KeyRange,
    Sizing,
    assess,
    balanced,
    even_ranges,
    union_of_adjacent,
)
from tests.property.strategies import hashes, key_ranges

histograms = st.dictionaries(hashes, st.integers(1, 60), max_size=12)


def samples(histogram: dict[int, int]) -> list[tuple[int, int]]:
    """One sample per record."""
    return [(h, 1) for h, n in histogram.items() for _ in range(n)]


def least_greatest_load(weights: list[int], parts: int) -> int:
    """The optimum by trying every way to cut."""
    best = sum(weights)
    for cuts in itertools.combinations(range(1, len(weights)), min(parts, len(weights)) - 1):
        bounds = [0, *cuts, len(weights)]
        best = min(best, max(sum(weights[a:b]) for a, b in itertools.pairwise(bounds)))
    return best


@given(histograms, key_ranges().filter(lambda r: r.width >= 64), st.integers(2, 64))
def test_the_ranges_always_tile_the_divided_range_and_shares_add_up(
    histogram: dict[int, int], whole: KeyRange, parts: int
) -> None:
    sizing = balanced(samples(histogram), whole, parts)
    assert len(sizing.ranges) == len(sizing.shares) == parts
    assert list(sizing.ranges) == sorted(sizing.ranges)
    assert union_of_adjacent(sizing.ranges) == whole
    assert sum(sizing.shares) == pytest.approx(1.0)
    assert 1.0 <= sizing.balance + 1e-9 <= parts + 1e-6


@given(histograms.filter(lambda h: sum(h.values()) >= 50), st.integers(2, 5))
def test_no_other_boundaries_have_a_smaller_greatest_share(histogram: dict[int, int], parts: int) -> None:
    sizing = balanced(samples(histogram), WHOLE, parts)
    best = least_greatest_load([n for _, n in sorted(histogram.items())], parts)
    assert max(sizing.shares) * sum(histogram.values()) == pytest.approx(best)


@given(histograms, st.integers(2, 16))
def test_following_the_load_is_never_worse_than_even_ranges(histogram: dict[int, int], parts: int) -> None:
    def greatest(sizing: Sizing) -> float:
        return max(sizing.shares)

    found = samples(histogram)
    assert (
        greatest(balanced(found, WHOLE, parts)) <= greatest(assess(found, even_ranges(WHOLE, parts))) + 1e-9
    )


@given(histograms, st.integers(2, 16), st.randoms())
def test_the_order_of_the_samples_does_not_matter(
    histogram: dict[int, int], parts: int, random: object
) -> None:
    found = samples(histogram)
    assert balanced(found, WHOLE, parts) == balanced(found[::-1], WHOLE, parts)


@given(histograms, st.integers(2, 16))
def test_a_useless_split_always_names_a_hash_that_was_seen(histogram: dict[int, int], parts: int) -> None:
    sizing = balanced(samples(histogram), WHOLE, parts)
    if not sizing.useful:
        assert "cannot be split usefully: key hash " in sizing.reason
        assert int(sizing.reason.split("key hash ")[1][:8], 16) in histogram
