"""What a producer owes operators."""

from __future__ import annotations

from kpsplit.splitter.control_plane import to_acknowledge, to_answer
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Prepare
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.unit.samples import PARENT, UNSPLIT, committed, fenced, split_attempt

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2), "mine")
PREPARING, FENCED = apply(UNSPLIT, Prepare(SPLIT)), fenced(UNSPLIT, SPLIT)
EVERY = [UNSPLIT, PREPARING, FENCED, committed(UNSPLIT, SPLIT, {0: 1})]


def own(ready: str = "older", acknowledged: str = "older") -> ProducerRegistration:
    place = str(PARENT)
    return ProducerRegistration(1, 1, "c", None, ("orders",), {place: ready}, {place: acknowledged})


def test_each_prepare_is_answered_once_per_attempt() -> None:
    assert to_answer(EVERY, own()) == [PREPARING]
    assert to_answer(EVERY, own("mine")) == []


def test_a_fence_is_acknowledged_once_if_its_prepare_was_answered() -> None:
    assert to_acknowledge(EVERY, own()) == []
    assert to_acknowledge(EVERY, own("mine")) == [FENCED]
    assert to_acknowledge(EVERY, own("mine", "mine")) == []
