"""Which producers an operator waits for, for how long, and whose registration is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.errors import FutureVersionError
from kpsplit.splitter.control_plane import (
    ACKNOWLEDGEMENT,
    Registrations,
    Silence,
    named,
    not_acknowledged,
    not_ready,
    unacknowledged,
)
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, Prepare
from kpsplit.splitter.records.producers import Entry, Newer, ProducerRegistration, Removed
from tests.unit.samples import PARENT, UNSPLIT, fenced, split_attempt
from tests.unit.test_driver import assert_resting, run, with_producers

A = ProducerRegistration(1, 1, "a", topics=("orders", "bills"))
B = ProducerRegistration(2, 5, "b", topics=("orders",))
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
PREPARING = apply(UNSPLIT, Prepare(SPLIT))


def folded(*records: Entry) -> Registrations:
    registrations = Registrations()
    for record in records:
        registrations.fold(record)
    return registrations


def test_only_producers_of_the_topic_that_did_not_close_are_asked() -> None:
    assert folded(A, B).to_ask("orders") == (A, B)
    assert folded(A, B).to_ask("bills") == (A,)
    assert folded(A, replace(B, closed=True)).to_ask("orders") == (A,)
    assert len(folded(A, replace(B, closed=True)).all()) == 2


def test_a_registration_that_was_removed_is_gone() -> None:
    assert folded(A, B, Removed(B.key)).all() == (A,)
    assert folded(A, Removed(B.key), Removed(b"any key")).all() == (A,)


def test_a_removal_never_reaches_the_next_registration_of_the_instance() -> None:
    again = replace(B, generation=6)
    assert folded(A, B, again, Removed(B.key)).to_ask("orders") == (A, again)
    assert folded(A, B, Removed(B.key), again).to_ask("orders") == (A, again)


def test_two_registrations_of_one_instance_are_removed_in_any_order() -> None:
    again = replace(B, generation=6)
    for first, last in ((B, again), (again, B)):
        assert folded(B, again).to_ask("orders") == (B, again)
        assert folded(B, again, Removed(first.key)).all() == (last,)
        assert folded(B, again, Removed(first.key), Removed(last.key)).all() == ()


def test_a_forged_close_of_a_greater_generation_hides_nobody() -> None:
    forged = replace(B, generation=2**63 - 1, closed=True, client_id="forged")
    assert folded(B, forged).to_ask("orders") == (B,)


def test_a_record_of_another_instance_under_the_same_key_leaves_nobody_whom_no_tombstone_removes() -> None:
    step = replace(A, generation=2).key  # the key of generation 2 of A is that of generation 1 of another
    other = ProducerRegistration(int(step, 16), 1, "other", topics=("orders",))
    second = replace(A, generation=2)
    assert other.key == second.key
    assert folded(second, other).all() == (other,)
    assert folded(second, other, Removed(other.key)).all() == ()


NEWER = Newer(b"00000000000000ff", ("orders", "returns"))


def test_a_producer_of_a_newer_version_refuses_operations_on_its_topics_alone() -> None:
    registrations = folded(A, B, NEWER)
    assert registrations.to_ask("bills") == (A,)
    with pytest.raises(FutureVersionError, match="00000000000000ff"):
        registrations.to_ask("orders")
    assert registrations.open("orders") == (A, B), "who only looks sees what can be read"


@pytest.mark.parametrize("step", ["Claim", "Prepare", "Fence"])
def test_a_producer_of_a_newer_version_that_comes_meanwhile_has_the_attempt_rolled_back(step: str) -> None:
    cluster = with_producers("answers")

    def register(done: StepDone) -> None:
        if done.name == step:
            cluster.registrations.fold(Newer(NEWER.key, (PARENT.topic,)))

    with pytest.raises(FutureVersionError) as refused:
        run(cluster, observer=register)
    assert refused.value.changed is False
    assert_resting(cluster)
    assert (cluster.state.epoch, cluster.logs) == (0, {})


def test_a_record_of_a_newer_version_is_forgotten_with_its_key_and_replaces_nothing() -> None:
    assert folded(A, B, NEWER, Removed(NEWER.key)).to_ask("orders") == (A, B)
    over = Newer(B.key, ("returns",))
    assert folded(A, B, over).to_ask("orders") == (A, B)
    assert folded(A, B, over, B).newer == {}


def test_who_is_waited_for_is_named() -> None:
    assert named([]) == ""
    assert named([A]) == " (of a 0000000000000001)"
    many = [replace(A, client_id="x" * 1000)] * 5
    assert named(many).endswith(" and 2 more)") and len(named(many)) < 250


def test_who_never_acknowledged_the_fence_of_the_last_attempt_is_known() -> None:
    reason = f"waited for the producers' {ACKNOWLEDGEMENT} (of b)"
    ready = replace(B, ready={"orders/3": SPLIT.id})
    done = replace(A, ready={"orders/3": SPLIT.id}, acknowledged={"orders/3": SPLIT.id})
    rolled_back = apply(fenced(UNSPLIT, SPLIT), Abort(SPLIT.id, EndedBy.OPERATOR, reason))
    assert unacknowledged([ready, done, replace(ready, closed=True)], rolled_back) == (ready,)
    other = apply(fenced(UNSPLIT, SPLIT), Abort(SPLIT.id, EndedBy.OPERATOR, "interrupted"))
    assert unacknowledged([ready, done], other) == ()


def listened(*times: tuple[float, float], seconds: float = 5.5) -> Silence:
    silence = Silence(seconds)
    for began, ended in times:
        silence.reading(began, ended, [A, B])
    return silence


def test_silence_is_counted_from_the_first_reading() -> None:
    assert listened((100.0, 100.2)).left() == 5.5
    assert listened((100.0, 100.2), (101.2, 101.3)).left() == 4.5
    many = [(100.0 + n, 100.1 + n) for n in range(7)]
    assert listened(*many).left() == 0.0
    assert listened(*many[:6]).left() > 0


def test_a_time_in_which_nothing_could_be_read_counts_for_little() -> None:
    assert listened((100.0, 100.0), (104.0, 104.0)).left() == 5.5 - 5.5 / 4


def test_behind_an_outage_silence_is_counted_anew() -> None:
    before = [(100.0 + n, 100.0 + n) for n in range(6)]
    assert listened(*before, (105.2, 130.0)).left() == 5.5
    assert listened(*before, (130.0, 130.1)).left() == 5.5


def test_an_outage_is_longer_than_a_slow_reading_whatever_the_lease() -> None:
    slow = [(100.0 + n, 101.0 + n) for n in range(4)]
    assert listened(*slow, seconds=0.5).left() == 0.0


def test_a_registration_is_over_if_it_was_silent_from_the_first_reading_on() -> None:
    silence = listened((100.0, 100.0))
    young = replace(B, generation=6)
    assert silence.ended([A, young], PREPARING, SPLIT.id) == (A,)


def test_no_registration_is_over_because_of_an_attempt_that_is() -> None:
    """Producers that saw its end owe it no answer, and may write with a valid lease."""
    silence = listened((100.0, 100.0))
    rolled_back = apply(PREPARING, Abort(SPLIT.id, EndedBy.TAKEOVER, "gone"))
    for state in (rolled_back, fenced(UNSPLIT, SPLIT)):
        assert silence.ended([A], state, SPLIT.id) == ()
    assert silence.ended([A], PREPARING, "another") == ()


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
