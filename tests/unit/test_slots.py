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
from kpsplit.splitter.records.keys import (
    MOST_GENERATIONS,
    changelog_topic,
    is_changelog_of,
    is_topic_name,
    slots_generation,
    slots_topic,
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


TOPICS = ("orders", "2.orders", "-2.orders", "slots", "t" * 230, "t" * 249, "t" * 248 + "u")


def test_each_number_of_slots_of_each_topic_has_a_slots_topic_of_its_own() -> None:
    names = {(t, g): slots_topic(t, g) for t in TOPICS for g in (1, 2, 3, 10, MOST_GENERATIONS)}
    assert all(is_topic_name(name) for name in names.values())
    assert len(set(names.values())) == len(names)
    assert (names["orders", 1], names["orders", 10]) == (
        "__kpsplit.slots.orders",
        "__kpsplit.slots-10.orders",
    )
    for (topic, generation), name in names.items():
        assert {t: slots_generation(name, t) for t in TOPICS} == dict.fromkeys(TOPICS) | {topic: generation}


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "__kpsplit.slots",
        "__kpsplit.slots-0.orders",
        "__kpsplit.slots-1.orders",
        "__kpsplit.slots-02.orders",
    ],
)
def test_no_other_topic_is_taken_for_a_slots_topic(name: str) -> None:
    assert slots_generation(name, "orders") is None


@pytest.mark.parametrize("group", ["g", "g.h", "g/h", "g" * 121])
def test_a_changelog_is_known_by_its_name_whatever_the_group(group: str) -> None:
    for topic in TOPICS:
        name = changelog_topic(group, topic)
        assert [t for t in TOPICS if is_changelog_of(name, t)] == [topic]
    assert not is_changelog_of(changelog_topic("g", "a.orders"), "orders")
    assert not is_changelog_of("orders", "orders")
