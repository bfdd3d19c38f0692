"""Arithmetic progressions of logical offsets."""

from __future__ import annotations

import pytest

from kpsplit.errors import InvariantError
from kpsplit.splitter.lineage import FIRST, MAX_OFFSET, Progression, merged_progression


def test_until_the_first_split_a_logical_offset_is_kafkas_own() -> None:
    assert [FIRST.at(i) for i in (0, 1, 999)] == [0, 1, 999]


def test_heirs_share_no_number_and_leave_none_out() -> None:
    source = Progression(17, 3)
    given = sorted(h.at(i) for h in source.heirs(4, 5) for i in range(10))
    assert given == [source.at(4 + i) for i in range(50)]


def test_a_number_of_another_progression_has_no_index() -> None:
    progression = Progression(1003, 5)
    assert progression.index_of(1038) == 7
    assert progression.index_of(1039) is None
    assert progression.index_of(998) is None


@pytest.mark.parametrize(("floor", "base"), [(0, 10), (10, 10), (11, 13), (13, 13), (14, 16)])
def test_the_rest_of_a_progression_begins_at_its_first_number_not_below_the_floor(
    floor: int, base: int
) -> None:
    assert Progression(10, 3).from_beyond(floor) == Progression(base, 3)


def test_a_merge_goes_on_with_the_densest_progression_beyond_every_end() -> None:
    merged = merged_progression([(Progression(1, 15), 2), (Progression(3, 5), 4), (Progression(2, 5), 30)])
    assert merged == Progression(152, 5)


def test_a_merge_of_nothing_is_refused() -> None:
    with pytest.raises(InvariantError):
        merged_progression([])


@pytest.mark.parametrize(
    ("base", "stride"), [(-1, 1), (0, 0), (0, -1), (MAX_OFFSET + 1, 1), (0, MAX_OFFSET + 1)]
)
def test_a_progression_that_does_not_rise_within_64_bits_is_refused(base: int, stride: int) -> None:
    with pytest.raises(InvariantError):
        Progression(base, stride)
