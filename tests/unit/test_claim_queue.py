"""Whose turn it is to claim, decided from the announcements in the log."""

from __future__ import annotations

import pytest

from kpsplit.splitter.claimed_log import (
    LONGEST_TURN_SECONDS,
    TURN_SECONDS,
    Announce,
    ClaimQueue,
    Go,
    WaitForTurn,
    turn_seconds,
)
from kpsplit.splitter.records.control import MOST_ROUNDS, Claim, encode_claim

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


def test_who_has_the_turn_is_known_also_when_it_is_over() -> None:
    queue = ClaimQueue("first")
    assert queue.decide(2, [FIRST], 0.0) == Go(FIRST)
    assert queue.has_turn(2, [FIRST, SECOND])
    assert not queue.has_turn(3, [FIRST, SECOND])
    assert not queue.has_turn(2, [])
    assert not queue.has_turn(2, [FIRST, Claim("second", 2, 2), Claim("first", 2, 2)])
