"""The demo's judge of its consumer group, the members' journals, and what is drained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from kpsplit.demo.endpoints import Endpoint, Endpoints, MemberNews
from kpsplit.demo.judge import CommitHistory, Committed, GroupVerdict, Victim, excuses, judge
from kpsplit.demo.records import NO_KEY_HASH, Worked, pack, read_worked
from kpsplit.demo.timeline import SegmentDrain, drained_line, undrained
from kpsplit.errors import DeadlineExceededError
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import Lineage
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.unit.samples import PARENT, life

STATE = life().merged
LINEAGE = STATE.lineage
PARENT_SEGMENT, OVERFLOW, PHANTOM = 0, 1, 2
KEY = 7


def worked(at: float, offset: int, segment: int = PARENT_SEGMENT, key: int = KEY) -> Worked:
    return Worked(at, key, offset, PARENT.partition, segment)


def committed(at: float, positions: dict[int, int], range_: KeyRange = WHOLE) -> Committed:
    places = {segment: Position(next_) for segment, next_ in positions.items()}
    return Committed(at, RangeCommit("g", PARENT, range_, places, "m", 1))


VICTIMS = {"killed": Victim("the kill", -math.inf), "slept": Victim("the sleep", 9.0)}


def judged(
    *entries: Worked, records: int | None = None, commits: Sequence[Committed] = (), **others: list[Worked]
) -> GroupVerdict:
    offsets = {e.offset for e in entries} | {e.offset for journal in others.values() for e in journal}
    read = {PARENT.partition: offsets if records is None else set(range(records))}
    excuse = excuses(VICTIMS, CommitHistory(commits, [LINEAGE]))
    return judge({"one": list(entries), **others}, read, [LINEAGE], excuse)


class Standing(Endpoint[MemberNews]):
    """A member without a process: only how it stands."""

    def __init__(self, name: str, news: MemberNews, killed: bool = False, suspended: bool = False) -> None:
        self.name, self.news, self.killed, self.suspended = name, news, killed, suspended

    def check(self) -> None:
        return


def test_a_group_that_is_late_tells_what_each_member_has_come_to() -> None:
    members = Endpoints[MemberNews]()
    members.all += [
        Standing("reader-1", MemberNews(worked_on=1200, slots=8)),
        Standing("reader-2", MemberNews(), killed=True),
        Standing("reader-3", MemberNews(), suspended=True),
    ]
    with pytest.raises(DeadlineExceededError, match=(
        r"^waited 0 s for the group to begin: reader-1 has 8 slots and worked on 1,200 records, "
        "reader-2 was killed, reader-3 is suspended$"
    )):  # fmt: skip
        members.wait("the group to begin", lambda: False, 0)


def test_records_that_are_worked_on_once_and_in_order_are_good() -> None:
    verdict = judged(worked(1, 10), worked(2, 11), worked(2, 4, key=8))
    assert verdict.good and verdict.shares == {"one": 3}
    assert str(verdict) == "3 of 3 records worked on, 0 out of order, 0 repeated without a reason"


def test_a_record_that_nobody_worked_on_is_missing() -> None:
    verdict = judged(worked(1, 0), worked(2, 2), records=3)
    assert (verdict.missing, verdict.good) == (1, False)


def test_a_record_that_no_reader_saw_is_told() -> None:
    verdict = judged(worked(1, 0), worked(2, 5), records=1)
    assert (verdict.unknown, verdict.missing, verdict.good) == (1, 0, False)


@pytest.mark.parametrize(
    ("first", "then", "late"),
    [
        (worked(1, 11), worked(2, 10), True),
        (worked(1, 11), worked(1, 10), True),
        (worked(1, 2000, PHANTOM), worked(2, 10, PARENT_SEGMENT), True),
        (worked(1, 2000, PHANTOM), worked(2, 1500, OVERFLOW), False),
        (worked(1, 11), worked(2, 10, key=8), False),
        (worked(1, 11, key=NO_KEY_HASH), worked(2, 10, key=NO_KEY_HASH), False),
    ],
    ids=[
        "in a segment",
        "in a batch",
        "before its ancestor",
        "siblings have no order",
        "another key",
        "no key",
    ],
)
def test_order_is_kept_per_key_along_the_lineage(first: Worked, then: Worked, late: bool) -> None:
    assert judged(first, then).out_of_order == late


def test_a_repetition_is_explained_by_a_victim_only() -> None:
    explained = judged(worked(3, 10), killed=[worked(1, 10)])
    assert explained.good and explained.redelivered == {"the kill": 1}
    assert str(explained).endswith("; 1 again after the kill")
    unexplained = judged(worked(1, 10), other=[worked(3, 10)])
    assert (unexplained.unexplained, unexplained.good) == (1, False)


@pytest.mark.parametrize(
    ("commit", "excused"),
    [
        (committed(2, {PARENT_SEGMENT: 10}), True),
        (committed(2, {PARENT_SEGMENT: 11}), False),
        (committed(4, {PARENT_SEGMENT: 11}), True),
        (committed(2, {PHANTOM: 0}), False),
        (committed(2, {PARENT_SEGMENT: 11}, KeyRange(KEY + 1, WHOLE.hi)), True),
    ],
    ids=["up to it", "after it", "later", "in the next segment", "of other keys"],
)
def test_nothing_explains_that_a_committed_record_is_handed_out_again(
    commit: Committed, excused: bool
) -> None:
    assert judged(worked(3, 10), killed=[worked(1, 10)], commits=[commit]).good == excused


def test_who_wakes_may_work_on_what_it_had_in_hand_though_it_is_committed_by_now() -> None:
    commits = [committed(4, {PARENT_SEGMENT: 100})]
    woken = judged(worked(3, 10), slept=[worked(9, 10)], commits=commits)
    assert woken.good and woken.redelivered == {"the sleep": 1}
    assert judged(worked(3, 11), slept=[worked(9.5, 11)], commits=commits).unexplained == 1


def test_a_journal_is_read_back_without_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert list(read_worked(path)) == []
    path.write_bytes(pack(1.5, b"k", 10, 3, 2) + pack(2.5, None, 11, 3, 0) + pack(3.5, b"k", 12, 3, 0)[:-1])
    assert list(read_worked(path)) == [
        Worked(1.5, key_hash(b"k"), 10, 3, 2),
        Worked(2.5, NO_KEY_HASH, 11, 3, 0),
    ]


def folded(positions: dict[int, int], lineage: Lineage = LINEAGE) -> CommitFold:
    fold = CommitFold()
    commit = RangeCommit("g", lineage.parent, WHOLE, {s: Position(n) for s, n in positions.items()}, "m", 1)
    fold.fold(commit.key, commit.encode(), 0)
    return fold


def test_segments_are_drained_when_every_range_of_the_group_is_past_them() -> None:
    closed = {s.id for s in LINEAGE if not s.is_open}
    last = next(s for s in LINEAGE if s.is_open)
    assert undrained(CommitFold(), "g", STATE) == closed
    assert undrained(folded({PARENT_SEGMENT: 5}), "g", STATE) == closed
    assert undrained(folded({last.id: last.start}), "g", STATE) == set()


def test_a_drain_tells_how_long_it_took() -> None:
    segment = next(s for s in LINEAGE if not s.is_open)
    done, waiting = SegmentDrain(segment, 10.0, 12.5), SegmentDrain(segment, 10.0)
    assert drained_line(done).endswith("2.5 s after the cut")
    assert (done.seconds, waiting.seconds) == (2.5, None)
