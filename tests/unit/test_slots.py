"""Slots: key ranges, their numbers, and how many there are by default."""

from __future__ import annotations

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import (
    KEY_SPACE,
    MAX_SLOTS,
    WHOLE,
    check_slots,
    default_slots,
    slot_at,
    slot_index,
    slot_number,
    slot_range,
    union_of_adjacent,
)


@pytest.mark.parametrize("slots", range(1, MAX_SLOTS + 1))
def test_slots_tile_the_key_space_and_every_hash_is_found_in_its_own(slots: int) -> None:
    ranges = [slot_range(i, slots) for i in range(slots)]
    assert union_of_adjacent(ranges) == WHOLE
    assert max(r.width for r in ranges) - min(r.width for r in ranges) <= 1
    for index, range_ in enumerate(ranges):
        assert slot_index(range_.lo, slots) == slot_index(range_.hi - 1, slots) == index


@pytest.mark.parametrize(
    ("partitions", "slots"),
    [(1, 64), (3, 64), (4, 64), (5, 64), (6, 32), (12, 16), (100, 2), (256, 1), (5000, 1)],
)
def test_by_default_a_topic_has_about_256_slots(partitions: int, slots: int) -> None:
    assert default_slots(partitions) == slots


def test_a_slot_and_its_number_name_each_other() -> None:
    assert slot_number(3, 5, 16) == 53
    assert slot_at(53, 16) == (3, 5)


def test_numbers_out_of_bounds_are_refused() -> None:
    for wrong in (0, -1, MAX_SLOTS + 1):
        with pytest.raises(UsageError, match="1 to 64"):
            check_slots(wrong)
    assert check_slots(64) == 64
    with pytest.raises(UsageError):
        slot_range(4, 4)
    assert slot_index(KEY_SPACE - 1, 7) == 6
