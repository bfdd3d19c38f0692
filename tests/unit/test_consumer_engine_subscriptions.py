"""Which topics of the group stand for what an application subscribed to."""

from __future__ import annotations

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.group_slots import Mode, Subscribed, resolve, subscribed
from kpsplit.splitter.records.control import Enrolment, Partitioner


def enrolment(*, settled, slots):
    return Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, settled, slots)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, Subscribed("orders", "orders", Mode.PLAIN, 1)),
        (enrolment(settled=False, slots=None), Subscribed("orders", "orders", Mode.MOVING, 1)),
        (enrolment(settled=False, slots=16), Subscribed("orders", "orders", Mode.MOVING, 1)),
        (enrolment(settled=True, slots=None), Subscribed("orders", "orders", Mode.WHOLE, 1)),
        (enrolment(settled=True, slots=16), Subscribed("orders", "__kpsplit.slots.orders", Mode.SLOTS, 16)),
    ],
)
def test_slots_are_used_once_the_enrolment_is_settled(known, expected):
    assert subscribed("orders", known) == expected


def test_a_pattern_means_neither_sub_topics_nor_topics_of_kpsplit():
    existing = {"orders", "orders.split-3-1", "orders-2", "__kpsplit.slots.orders", "payments"}
    assert resolve(["^.*orders.*"], existing, {"orders.split-3-1"}) == {"orders", "orders-2"}


def test_names_are_taken_as_they_are():
    assert resolve(["orders", "unknown"], set(), set()) == {"orders", "unknown"}


def test_a_topic_of_kpsplit_and_a_broken_pattern_are_refused():
    with pytest.raises(UsageError, match="internal topic of kpsplit"):
        resolve(["__kpsplit.control"], (), ())
    with pytest.raises(UsageError, match="pattern"):
        resolve(["^orders("], (), ())
