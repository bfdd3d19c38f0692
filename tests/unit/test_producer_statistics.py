"""What a producer remembers of the records that failed: enough for a certificate, and no more."""

from __future__ import annotations

from kpsplit.producer import send_state
from kpsplit.producer.send_state import FailedNumbers


def failed(*numbers: int) -> FailedNumbers:
    noted = FailedNumbers()
    noted.add(numbers)
    return noted


def test_numbers_that_failed_are_told_in_order_and_once() -> None:
    noted = failed(7, 8, 9, 2, 3, 8)
    assert (noted.numbers(), noted.count) == ([2, 3, 7, 8, 9], 6)


def test_an_outage_costs_no_memory_however_many_records_fail_in_a_row() -> None:
    noted = failed(*range(50_000))
    assert noted.numbers() == list(range(50_000)) and len(noted) == 1


def test_who_fails_here_and_there_for_ever_is_counted_and_named_no_more() -> None:
    noted = failed(*range(0, 4 * send_state.MOST_RUNS, 2))
    assert noted.count == 2 * send_state.MOST_RUNS
    assert (noted.numbers(), len(noted)) == (None, 0)
    noted.add([5])
    assert noted.count == 2 * send_state.MOST_RUNS + 1


def test_more_numbers_than_a_certificate_can_hold_are_counted_and_named_no_more() -> None:
    noted = failed(*range(send_state.MOST_NAMED + 1))
    assert (noted.numbers(), noted.count) == (None, send_state.MOST_NAMED + 1)
