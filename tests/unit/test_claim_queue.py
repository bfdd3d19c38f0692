"""Whose turn it is to claim, decided from the announcements in the log."""

from __future__ import annotations

import pytest

from kpsplit.splitter.claimed_log import (
    LONGEST_TURN_SECONDS,
    RESERVED_SECONDS,
    TURN_SECONDS,
    Announce,
    ClaimQueue,
    Go,
    WaitForTurn,
    turn_seconds,
)
from kpsplit.splitter.records.control import MOST_ROUNDS, RESERVED, Claim, encode_claim

FIRST, SECOND = Claim("first", 2, 1), Claim("second", 2, 1)


def test_who_finds_no_announcement_makes_one_and_goes_when_it_is_the_first() -> None:
    queue = ClaimQueue("first")
    assert queue.decide(2, [], 0.0) == Announce(FIRST)
    assert queue.decide(2, [FIRST, SECOND], 1.0) == Go(FIRST)


def test_the_second_waits_for_the_turn_of_the_first_and_then_announces_the_next_round() -> None:
    queue = ClaimQueue("second")
    assert queue.decide(2, [FIRST, SECOND], 10.0) == WaitForTurn(TURN_SECONDS)
    assert queue.decide(2, [FIRST, SECOND], 10.0 + TURN_SECONDS - 1) == WaitForTurn(1.0)
    again = queue.decide(2, [FIRST, SECOND], 10.0 + TURN_SECONDS)
    assert again == Announce(Claim("second", 2, 2))
    later = Claim("second", 2, 2)
    assert queue.decide(2, [FIRST, SECOND, later], 10.0 + TURN_SECONDS) == Go(later)


def test_who_is_too_slow_stands_in_line_again() -> None:
    queue = ClaimQueue("first")
    assert queue.decide(2, [FIRST], 0.0) == Go(FIRST)
    assert queue.decide(2, [FIRST], TURN_SECONDS) == Announce(Claim("first", 2, 2))
    overtaken = [FIRST, Claim("second", 2, 2), Claim("first", 2, 2)]
    assert queue.decide(2, overtaken, TURN_SECONDS) == WaitForTurn(turn_seconds(2))


def test_announcements_about_another_revision_say_nothing() -> None:
    assert ClaimQueue("other").decide(3, [FIRST, SECOND], 0.0) == Announce(Claim("other", 3, 1))


@pytest.mark.parametrize("number", range(1, 9))
def test_turns_grow_up_to_a_limit(number: int) -> None:
    assert turn_seconds(number) <= turn_seconds(number + 1) <= LONGEST_TURN_SECONDS


def test_a_turn_begins_with_its_own_announcement_whatever_was_withdrawn_before() -> None:
    """The second waits almost for the whole turn of the first, which gives up: now the third has the turn."""
    queue, third = ClaimQueue("second"), Claim("third", 2, 1)
    assert queue.decide(2, [FIRST], 0.0) == WaitForTurn(TURN_SECONDS)
    assert queue.decide(2, [third], TURN_SECONDS - 1) == WaitForTurn(TURN_SECONDS)


def test_the_last_round_that_can_be_written_holds_nobody_up_for_good() -> None:
    """Whoever may write the control topic can announce it; a greater one could not be encoded."""
    forged, queue = Claim("forged", 2, MOST_ROUNDS), ClaimQueue("first")
    assert queue.decide(2, [FIRST, forged], 0.0) == WaitForTurn(LONGEST_TURN_SECONDS)
    own = queue.decide(2, [FIRST, forged], LONGEST_TURN_SECONDS)
    assert isinstance(own, Announce) and encode_claim(own.claim)
    assert queue.decide(2, [FIRST, forged, own.claim], LONGEST_TURN_SECONDS) == Go(own.claim)


def test_after_the_last_round_turns_go_in_the_order_of_the_log() -> None:
    """So a forged last round does not make all claimers go at once."""
    forged = Claim("forged", 2, MOST_ROUNDS)
    log, queues = [forged], [ClaimQueue(name) for name in ("a", "b", "c")]
    for queue in queues:
        assert queue.decide(2, log, 0.0) == WaitForTurn(LONGEST_TURN_SECONDS)
    for queue in queues:
        decision = queue.decide(2, log, LONGEST_TURN_SECONDS)
        assert isinstance(decision, Announce)
        log += [decision.claim, decision.claim]
    for turn in range(1, 12):
        now = turn * LONGEST_TURN_SECONDS + 1.0
        goes = [queue.claimer for queue in queues if isinstance(queue.decide(2, log, now), Go)]
        assert goes == [["forged", "a", "b", "c"][turn % 4]][turn % 4 == 0 :]
        waits = [d for queue in queues if isinstance(d := queue.decide(2, log, now), WaitForTurn)]
        assert {w.seconds for w in waits} == {LONGEST_TURN_SECONDS - 1.0}


def test_the_first_reservation_has_the_turn_when_it_is_due() -> None:
    first, second = ClaimQueue("first", due=30.0), ClaimQueue("second", due=31.0)
    assert first.decide(2, [], 20.0) == Announce(Claim("first", 2, RESERVED))
    reserved = [Claim("first", 2, RESERVED), Claim("second", 2, RESERVED)]
    assert first.decide(2, reserved, 21.0) == WaitForTurn(9.0) and first.has_turn(2, reserved)
    assert first.decide(2, reserved, 30.0) == Go(FIRST)
    assert second.decide(2, reserved, 21.0) == WaitForTurn(10.0 + RESERVED_SECONDS)
    assert second.decide(2, [*reserved, FIRST], 31.0) == WaitForTurn(TURN_SECONDS)
    assert not second.has_turn(2, reserved)


def test_a_reservation_of_a_dead_producer_holds_the_others_up_for_a_moment() -> None:
    queue, reserved = ClaimQueue("second", due=30.0), [Claim("first", 2, RESERVED)]
    assert queue.decide(2, reserved, 21.0) == WaitForTurn(9.0 + RESERVED_SECONDS)
    assert queue.decide(2, reserved, 30.0 + RESERVED_SECONDS) == Announce(SECOND)
    assert queue.decide(2, [*reserved, SECOND], 36.0) == Go(SECOND)


def test_an_operator_waits_for_no_reservation() -> None:
    reserved = [Claim("first", 2, RESERVED)]
    assert ClaimQueue("operator").decide(2, reserved, 0.0) == Announce(Claim("operator", 2, 1))
    assert not ClaimQueue("first").has_turn(2, reserved)


def test_a_reservation_that_comes_too_late_is_a_claim() -> None:
    assert ClaimQueue("first", due=30.0).decide(2, [], 30.0) == Announce(FIRST)


def test_who_has_the_turn_is_known_also_when_it_is_over() -> None:
    queue = ClaimQueue("first")
    assert queue.decide(2, [FIRST], 0.0) == Go(FIRST)
    assert queue.has_turn(2, [FIRST, SECOND])
    assert not queue.has_turn(3, [FIRST, SECOND])
    assert not queue.has_turn(2, [])
    assert not queue.has_turn(2, [FIRST, Claim("second", 2, 2), Claim("first", 2, 2)])
