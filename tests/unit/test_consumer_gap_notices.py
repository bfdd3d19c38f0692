"""Which gaps are told, and how many of their records for the first time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer.fetch.gaps import Gap, GapNotices
from kpsplit.splitter.reading import GapReason
from tests.unit.engine_world import PARENT


def gap(start: int, end: int, reason: GapReason = GapReason.EXPIRED, segment: int = 0) -> Gap:
    return Gap(segment, PARENT, start, end, reason)


def give(notices: GapNotices, found: Gap) -> int:
    """Report a gap; return how many of its records were not reported before."""
    records = notices.new(found)
    notices.given(found)
    return records


def test_what_retention_takes_while_a_notice_waits_is_counted_once() -> None:
    notices = GapNotices()
    assert give(notices, gap(10, 20)) == 10
    assert give(notices, gap(10, 30)) == 10
    assert give(notices, gap(10, 30)) == 0
    notices.told(gap(10, 20))
    assert not notices.knows(gap(10, 30))
    notices.told(gap(10, 30))
    assert notices.knows(gap(10, 30))
    assert notices.knows(gap(15, 25))


def test_what_a_slot_missed_that_stood_further_back_is_told_besides() -> None:
    notices = GapNotices()
    give(notices, gap(10, 20))
    notices.told(gap(10, 20))
    assert not notices.knows(gap(5, 20))
    assert give(notices, gap(5, 20)) == 5


def test_another_segment_and_another_reason_are_other_gaps() -> None:
    notices = GapNotices()
    give(notices, gap(10, 20))
    notices.told(gap(10, 20))
    for other in (gap(10, 20, segment=1), gap(10, 20, GapReason.MADE_ANEW)):
        assert not notices.knows(other)
        assert give(notices, other) == 10


STRETCH = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda at: (at[0], at[0] + at[1]))


@given(st.lists(st.tuples(st.booleans(), STRETCH), max_size=20), STRETCH)
def test_it_counts_and_knows_what_a_set_of_offsets_does(
    events: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    notices, given_, told = GapNotices(), set[int](), set[int]()
    for is_told, (start, end) in events:
        offsets = set(range(start, end))
        if is_told:
            notices.told(gap(start, end))
            told |= offsets
        else:
            assert give(notices, gap(start, end)) == len(offsets - given_)
            given_ |= offsets
    assert notices.knows(gap(*asked)) == (set(range(*asked)) <= told)
