"""Which producers an operator waits for."""

from __future__ import annotations

from dataclasses import replace

from kpsplit.splitter.records.producers import Expiry, ProducerRecord
from kpsplit.splitter.writers import Registrations, not_acknowledged, not_ready

A = ProducerRecord(1, 1, "a", topics=("orders", "bills"))
B = ProducerRecord(2, 5, "b", topics=("orders",))


def folded(*records: ProducerRecord | Expiry) -> Registrations:
    registrations = Registrations()
    for offset, record in enumerate(records):
        registrations.fold(record, offset)
    return registrations


def test_only_producers_of_the_topic_that_may_be_writing_are_live() -> None:
    assert folded(A, B).live("orders") == (A, B)
    assert folded(A, B).live("bills") == (A,)
    assert folded(A, replace(B, closed=True)).live("orders") == (A,)
    assert len(folded(A, replace(B, closed=True)).all()) == 2


def test_an_expiry_ends_a_generation_and_those_before_it_in_whatever_order_it_is_read() -> None:
    for records in ([A, B, Expiry(2, 5)], [Expiry(2, 5), A, B], [A, B, Expiry(2, 5), Expiry(2, 3)]):
        assert folded(*records).live("orders") == (A,)
    again = replace(B, generation=6)
    assert folded(A, B, Expiry(2, 5), again).live("orders") == (A, again)


def test_whoever_did_not_close_is_asked_even_if_somebody_noted_an_expiry() -> None:
    assert folded(A, B, Expiry(2, 5)).to_ask("orders") == (A, B)
    assert folded(A, replace(B, closed=True)).to_ask("orders") == (A,)


OLD = replace(A, transactional_id="tx")
NEW = replace(B, transactional_id="tx", fenced_below=1)


def test_an_id_that_another_producer_took_behind_the_first_registration_is_not_the_silent_ones() -> None:
    assert folded(OLD, NEW).superseded(OLD)
    assert not folded(OLD, NEW).superseded(NEW)
    assert folded(OLD, replace(NEW, closed=True)).superseded(OLD)
    again = replace(OLD, generation=2, since=0)
    assert folded(OLD, NEW, again).superseded(again)
    assert folded(OLD, NEW).to_ask("orders") == (OLD, NEW)


def test_an_id_may_be_that_of_a_producer_that_has_registered_since_another_one_took_it() -> None:
    later = replace(OLD, since=2)
    assert not folded(A, NEW, later).superseded(later)
    for below in (0, None):
        assert not folded(OLD, replace(NEW, fenced_below=below)).superseded(OLD)


def test_nobody_can_say_that_producers_are_fenced_that_register_later() -> None:
    assert not folded(replace(NEW, fenced_below=1 << 62), OLD).superseded(OLD)


def test_producers_of_other_transactional_ids_and_of_none_are_nobodys_predecessors() -> None:
    other = replace(OLD, transactional_id="other")
    assert not folded(other, NEW).superseded(other)
    assert not folded(A, NEW).superseded(A)


def test_an_answer_counts_for_its_attempt_alone() -> None:
    ready = replace(A, ready={"orders/3": "x"})
    assert not_ready((ready, B), "orders/3", "x") == (B,)
    assert not_ready((ready, B), "orders/3", "y") == (ready, B)
    assert not_ready((ready,), "orders/4", "x") == (ready,)


def test_only_those_that_answered_prepare_are_asked_for_the_fence() -> None:
    ready = replace(A, ready={"orders/3": "x"})
    assert not_acknowledged((ready, B), "orders/3", "x") == (ready,)
    stale = replace(ready, acknowledged={"orders/3": "w"})
    assert not_acknowledged((stale,), "orders/3", "x") == (stale,)
    done = replace(ready, acknowledged={"orders/3": "x"})
    assert not_acknowledged((done,), "orders/3", "x") == ()
