"""The folded offset log, and the ordinary offsets that follow from it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.consumer.commit.writes import CommitMember, Processed, writes
from kpsplit.control import seeking
from kpsplit.control.seeking import Forgettable, Seeker
from kpsplit.control.session import ClusterSession
from kpsplit.errors import ConflictError, DeadlineExceededError, FutureVersionError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.splitter import commits
from kpsplit.splitter.commits import MOST_WITHDRAWN, CommitFold, ordinary_offsets
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import offsets_partition
from kpsplit.splitter.records.offsets import (
    CommitKey,
    Position,
    RangeCommit,
    boundaries,
    is_of_others,
    key_start,
    parse_offset_key,
)
from tests.unit.samples import PARENT, life, phantom

LIFE = life()
QUARTERS = WHOLE.split_evenly(4)
LEFT = KeyRange(0, KEY_SPACE // 2)


def commit(range_: KeyRange, positions: dict[int, int], group: str = "g") -> RangeCommit:
    return RangeCommit(group, PARENT, range_, {s: Position(n, 4) for s, n in positions.items()}, "m", 7)


def folded(*records: RangeCommit | CommitKey) -> CommitFold:
    fold = CommitFold()
    for offset, record in enumerate(records):
        if isinstance(record, RangeCommit):
            fold.fold(record.key, record.encode(), offset)
        else:
            fold.fold(record.encode(), None, offset)
    return fold


def held(fold: CommitFold, group: str = "g") -> list[tuple[KeyRange, dict[int, int]]]:
    return [(r, {s: p.next for s, p in c.positions.items()}) for r, c in fold.commits(group, PARENT)]


def test_the_newest_commit_wins_point_by_point() -> None:
    fold = folded(commit(WHOLE, {0: 5}), commit(QUARTERS[1], {0: 9}), commit(QUARTERS[0], {0: 8}))
    assert held(fold) == [
        (QUARTERS[0], {0: 8}),
        (QUARTERS[1], {0: 9}),
        (KeyRange(QUARTERS[2].lo, KEY_SPACE), {0: 5}),
    ]


def test_a_wide_commit_wins_over_all_narrow_ones_before_it() -> None:
    fold = folded(*(commit(q, {0: i}) for i, q in enumerate(QUARTERS)), commit(LEFT, {0: 77}))
    assert held(fold) == [(LEFT, {0: 77}), (QUARTERS[2], {0: 2}), (QUARTERS[3], {0: 3})]


def test_a_commit_inside_another_leaves_it_on_both_sides() -> None:
    inner = KeyRange(10, 20)
    fold = folded(commit(LEFT, {0: 1}), commit(inner, {0: 2}))
    assert [r for r, _ in fold.commits("g", PARENT)] == [KeyRange(0, 10), inner, KeyRange(20, LEFT.hi)]


def test_groups_and_partitions_do_not_mix() -> None:
    fold = folded(commit(WHOLE, {0: 5}), commit(WHOLE, {0: 6}, "other"))
    assert fold.groups(PARENT) == ("g", "other")
    assert held(fold, "other") == [(WHOLE, {0: 6})]
    assert fold.groups(phantom(0)) == ()
    assert fold.commits("g", phantom(0)) == ()


def test_points_that_were_never_committed_have_no_cursor() -> None:
    fold = folded(commit(QUARTERS[1], {0: 9}))
    pieces = fold.cursor("g", PARENT, WHOLE, LIFE.split.lineage)
    assert pieces == [
        (QUARTERS[0], None),
        (QUARTERS[1], Cursor(QUARTERS[1], {0: 9})),
        (KeyRange(QUARTERS[2].lo, KEY_SPACE), None),
    ]
    assert CommitFold().cursor("g", PARENT, LEFT, LIFE.split.lineage) == [(LEFT, None)]


def test_neighbours_at_the_same_positions_are_one_piece() -> None:
    fold = folded(*(commit(q, {0: 1000}) for q in QUARTERS[:2]), commit(QUARTERS[2], {0: 3}))
    pieces = fold.cursor("g", PARENT, KeyRange(0, QUARTERS[2].hi), LIFE.split.lineage)
    assert [r for r, _ in pieces] == [QUARTERS[0], QUARTERS[1], QUARTERS[2]]
    unsplit = folded(*(commit(q, {0: 900}) for q in QUARTERS))
    assert unsplit.cursor("g", PARENT, LEFT, LIFE.split.lineage) == [(LEFT, Cursor(LEFT, {0: 900}))]


def test_a_withdrawn_commit_is_gone_where_it_won_and_nowhere_else() -> None:
    fold = folded(
        commit(LEFT, {0: 1}),
        commit(QUARTERS[0], {0: 2}),
        CommitKey("g", PARENT, LEFT),
        commit(QUARTERS[3], {0: 3}),
    )
    assert held(fold) == [(QUARTERS[0], {0: 2}), (QUARTERS[3], {0: 3})]


def test_the_keys_of_a_topic_are_those_of_each_partition_and_of_what_wins_nowhere_too() -> None:
    """A withdrawal that was broken off may have left a key that wins nowhere until the log is compacted."""
    other = PhysicalPartition(PARENT.topic, PARENT.partition + 7)
    elsewhere = PhysicalPartition("elsewhere", PARENT.partition)
    more = [RangeCommit("h", place, WHOLE, {0: Position(4)}, "m", 1) for place in (other, elsewhere)]
    fold = folded(commit(LEFT, {0: 5}), commit(WHOLE, {0: 6}), CommitKey("g", PARENT, WHOLE), *more)
    assert fold.groups(PARENT) == ()
    assert fold.keys_of(PARENT.topic) == (CommitKey("g", PARENT, LEFT), CommitKey("h", other, WHOLE))


def test_only_keys_that_the_new_commits_cover_are_stale() -> None:
    fold = folded(
        commit(WHOLE, {0: 1}), commit(LEFT, {0: 2}), commit(QUARTERS[0], {0: 3}), commit(QUARTERS[1], {0: 3})
    )
    assert fold.stale_keys("g", PARENT, QUARTERS[2:]) == ()
    assert fold.stale_keys("g", PARENT, QUARTERS[:2]) == (CommitKey("g", PARENT, LEFT),)
    assert set(fold.stale_keys("g", PARENT, QUARTERS)) == {
        CommitKey("g", PARENT, LEFT),
        CommitKey("g", PARENT, WHOLE),
    }
    assert fold.stale_keys("nobody", PARENT, [WHOLE]) == ()


def test_a_member_that_reads_late_withdraws_nothing_of_another_one() -> None:
    """LEFT is overtaken in the late member's view, while its owner commits it once more."""
    seen = [commit(LEFT, {0: 2}), commit(QUARTERS[0], {0: 3}), commit(QUARTERS[1], {0: 4})]
    withdrawn = folded(*seen).stale_keys("g", PARENT, QUARTERS[2:])
    log = [*seen, commit(LEFT, {0: 9}), commit(QUARTERS[2], {0: 1}), *withdrawn]
    assert held(folded(*log)) == [(LEFT, {0: 9}), (QUARTERS[2], {0: 1})]


def test_a_key_that_is_written_again_is_not_stale() -> None:
    fold = folded(commit(QUARTERS[0], {0: 1}), commit(LEFT, {0: 2}))
    assert fold.stale_keys("g", PARENT, [QUARTERS[0]]) == ()
    assert fold.stale_keys("g", PARENT, [LEFT]) == (CommitKey("g", PARENT, QUARTERS[0]),)


def test_no_number_of_foreign_keys_makes_a_transaction_long() -> None:
    narrow = [commit(KeyRange(n, n + 1), {0: 1}) for n in range(MOST_WITHDRAWN + 5)]
    fold = folded(*narrow)
    first = fold.stale_keys("g", PARENT, [WHOLE])
    assert len(first) == MOST_WITHDRAWN
    log = [*narrow, commit(WHOLE, {0: 2}), *first]
    later = folded(*log)
    assert held(later) == [(WHOLE, {0: 2})]
    assert later.stale_keys("g", PARENT, [WHOLE]) == tuple(
        CommitKey("g", PARENT, c.range) for c in narrow[MOST_WITHDRAWN:]
    )


def test_a_part_of_the_log_that_is_read_twice_changes_nothing() -> None:
    fold = CommitFold()
    old, new = commit(WHOLE, {0: 1}), commit(WHOLE, {0: 2})
    for offset, record in ((0, old), (1, new), (0, old)):
        fold.fold(record.key, record.encode(), offset)
    assert held(fold) == [(WHOLE, {0: 2})]


def test_a_record_in_a_partition_that_is_not_its_keys_is_garbage() -> None:
    """Offsets of two partitions say nothing about which record is later: a forged one would win for good."""
    fold, home = CommitFold(partitions=16), offsets_partition(PARENT, 16)
    forged, honest = commit(WHOLE, {0: 5000}), commit(WHOLE, {0: 200})
    fold.fold(forged.key, forged.encode(), 900_000, (home + 1) % 16)
    fold.fold(forged.key, None, 900_001, (home + 1) % 16)
    assert fold.fold(honest.key, honest.encode(), 11, home) == CommitKey("g", PARENT, WHOLE)
    assert held(fold) == [(WHOLE, {0: 200})] and fold.garbage == 2


def test_garbage_is_counted_with_a_reason_and_skipped() -> None:
    fold = folded(commit(WHOLE, {0: 1}))
    good = commit(WHOLE, {0: 2})
    for key, value in (
        (None, b"x"),
        (b"{}", b"{}"),
        (good.key, b"not json"),
        (good.key, commit(LEFT, {0: 1}).encode()),
        (b"x" * 1_000_000, None),
    ):
        fold.fold(key, value, 5)
    assert fold.garbage == 5
    assert "900000" in fold.last_garbage
    assert held(fold) == [(WHOLE, {0: 1})]


def test_boundary_records_are_no_commits() -> None:
    fold = CommitFold()
    for offset, boundary in enumerate(boundaries(LIFE.split)):
        assert fold.fold(boundary.key, boundary.encode(), offset) is None
    assert not fold.garbage
    assert fold.groups(PARENT) == ()


def newer(record: RangeCommit) -> tuple[bytes, bytes]:
    """The key of a commit, with a value of a version that does not exist yet."""
    return record.key, b'{"v":99}'


def test_a_commit_of_a_newer_version_concerns_the_group_and_the_range_of_its_key_only() -> None:
    fold = folded(commit(WHOLE, {0: 1}), commit(WHOLE, {0: 2}, "other"))
    assert fold.fold(*newer(commit(QUARTERS[1], {})), 2) == CommitKey("g", PARENT, QUARTERS[1])
    error = fold.newer("g", PARENT)
    assert isinstance(error, FutureVersionError) and f"group g for {QUARTERS[1]} of {PARENT}" in str(error)
    assert fold.newer("g", PARENT, QUARTERS[0]) is None and fold.newer("other", PARENT) is None
    assert fold.cursors("g", PARENT, LEFT) == [
        (QUARTERS[0], Cursor(QUARTERS[0], {0: 1})),
        (QUARTERS[1], None),
    ]
    assert held(fold, "other") == [(WHOLE, {0: 2})] and not fold.garbage


def test_a_commit_over_one_of_a_newer_version_counts_and_so_does_its_withdrawal() -> None:
    fold = CommitFold()
    fold.fold(*newer(commit(LEFT, {})), 0)
    assert fold.groups(PARENT) == ("g",) and fold.last("g", PARENT) is None
    later = commit(QUARTERS[0], {0: 7})
    fold.fold(later.key, later.encode(), 1)
    assert fold.newer("g", PARENT, QUARTERS[0]) is None and fold.newer("g", PARENT, QUARTERS[1]) is not None
    fold.fold(CommitKey("g", PARENT, LEFT).encode(), None, 2)
    assert fold.newer("g", PARENT) is None and held(fold) == [(QUARTERS[0], {0: 7})]


def test_a_fold_of_one_group_keeps_nothing_of_others_and_looks_at_none_of_their_values() -> None:
    fold, strange = CommitFold("g"), commit(WHOLE, {0: 1}, "other")
    for offset, (key, value) in enumerate(
        ((strange.key, b"?"), newer(strange), (strange.key, strange.encode()))
    ):
        assert fold.fold(key, value, offset) is None
    assert fold.groups(PARENT) == () and not fold.garbage


def test_a_boundary_of_a_newer_version_concerns_no_group() -> None:
    boundary = next(iter(boundaries(LIFE.split)))
    assert CommitFold().fold(boundary.key, b'{"v":99}', 0) is None


def test_ordinary_offsets_are_the_least_position_of_any_range() -> None:
    cursors = [
        Cursor(QUARTERS[0], {0: 990}),
        *(Cursor(q, {1: 1001, i + 3: 4}) for i, q in enumerate(QUARTERS[1:])),
    ]
    offsets = ordinary_offsets(LIFE.split, cursors)
    assert offsets == {PARENT: 990, phantom(0): 0, phantom(1): 4, phantom(2): 4, phantom(3): 4}


def test_a_partition_that_everybody_has_read_gets_its_end() -> None:
    offsets = ordinary_offsets(LIFE.merged, [Cursor(WHOLE, {9: 1500})])
    assert offsets == {
        PARENT: 1500,
        phantom(0): 8,
        phantom(1): 5,
        phantom(2): 12,
        phantom(3): 6,
        phantom(0, 2): 3,
        phantom(1, 2): 2,
    }


def test_where_a_range_without_a_commit_has_a_part_the_ordinary_offsets_stay() -> None:
    """Whoever comes to own that range still starts from them."""
    cursors = [Cursor(q, {1: 1001, i + 3: 4}) for i, q in enumerate(QUARTERS[1:])]
    assert ordinary_offsets(LIFE.split, cursors) == {phantom(1): 4, phantom(2): 4, phantom(3): 4}
    assert ordinary_offsets(LIFE.split, []) == {}


def test_a_view_that_is_older_than_a_cursor_gives_no_ordinary_offsets() -> None:
    assert ordinary_offsets(LIFE.split, [Cursor(WHOLE, {9: 1500})]) == {}


def test_retired_sub_topics_have_no_ordinary_offsets() -> None:
    state = LIFE.merged
    first, *others = state.subtopics
    retired = replace(state, subtopics=(replace(first, state=SubTopicState.RETIRED), *others))
    topics = {p.topic for p in ordinary_offsets(retired, [Cursor(WHOLE, {9: 1500})])}
    assert topics == {"orders", "orders.split-3-2"}


@pytest.mark.parametrize("more", ["another key", "the same key, further", "an ordinary offset, further"])
def test_a_group_that_committed_since_the_question_is_not_forgotten(
    more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned again with the deadline that it is carried out with, and compared with what was shown."""
    folds, ordinary = (
        [folded(commit(WHOLE, {0: 5})), folded(commit(WHOLE, {0: 5}))],
        [{PARENT: 5}, {PARENT: 5}],
    )
    if more == "another key":
        folds[1] = folded(commit(WHOLE, {0: 5}), commit(LEFT, {0: 5}))
    elif more == "the same key, further":
        folds[1] = folded(commit(WHOLE, {0: 6}))
    else:
        ordinary[1] = {PARENT: 6}
    monkeypatch.setattr(seeking, "range_commits", lambda *_: folds.pop(0))
    monkeypatch.setattr(seeking, "positions_of", lambda *_: ordinary.pop(0))
    monkeypatch.setattr(Seeker, "_refuse_active", lambda *_, **__: None)
    begun: list[Deadline] = []

    def begin() -> Deadline:
        begun.append(Deadline(10))
        return begun[-1]

    admin: Any = object.__new__(Admin)
    session: Any = object.__new__(ClusterSession)
    view = SimpleNamespace(enrolments={}, enrolled_state=lambda place: PartitionState.unsplit(place, "id"))
    session.begin, session.read = begin, lambda _: view
    session.admin, session.connection = SimpleNamespace(partition_count=lambda *_: PARENT.partition + 1), None
    admin._session = session
    admin._seeker = Seeker(admin._session)
    seen = admin.plan_forget_group("g", "orders")
    with pytest.raises(ConflictError, match="group g has committed meanwhile on orders"):
        admin.forget_group(seen)
    assert len(begun) == 2, "one for each call"


@pytest.mark.parametrize(("slept", "removed"), [("check", []), ("withdrawn", ["commits"])])
def test_an_operator_that_sleeps_after_its_check_forgets_nothing_more_of_a_group(
    monkeypatch: pytest.MonkeyPatch, slept: str, removed: list[str]
) -> None:
    """The group may have members by then: one of them would begin at ``auto.offset.reset``."""
    done, time = list[str](), [0.0]
    found = Forgettable("g", "orders", (CommitKey("g", PARENT, WHOLE),), (PARENT,))

    def passes(step: str) -> None:
        time[0] += 3600.0 * (step == slept)

    def commit(*_: object) -> None:
        done.append("commits")
        passes("withdrawn")

    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(begin=lambda: Deadline(60, lambda: time[0]))
    seeker._admin = SimpleNamespace(connection=None)
    seeker._forgettable = lambda *_: found
    seeker._refuse_active = lambda *_, changed: None if changed else passes("check")
    seeker._writer = lambda *_: SimpleNamespace(commit=commit)
    monkeypatch.setattr(seeking, "delete_positions", lambda *_: done.append("offsets"))
    with pytest.raises(DeadlineExceededError) as caught:
        seeker.forget(found)
    assert (done, caught.value.changed) == (removed, bool(removed))


def test_to_forget_a_group_on_a_topic_that_is_not_listed_names_the_next_step() -> None:
    """A stale broker may leave it out of the list of topics."""
    cluster: Any = object.__new__(ClusterAdmin)
    cluster.topics, cluster.known = dict, lambda *_: None
    admin: Any = object.__new__(Admin)
    session: Any = object.__new__(ClusterSession)
    session.begin, session.read, session.admin = lambda: Deadline(10), lambda _: ControlView(), cluster
    admin._session = session
    admin._seeker = Seeker(admin._session)
    with pytest.raises(UsageError, match="there is no topic orders; check the name"):
        admin.plan_forget_group("g", "orders")


def test_one_transaction_withdraws_at_most_so_many_keys_whatever_it_commits() -> None:
    fold, places = CommitFold(), [PhysicalPartition("orders", n) for n in range(3)]
    for number in range(MOST_WITHDRAWN * 3 // 2):
        for n, place in enumerate(places):
            narrow = RangeCommit("g", place, KeyRange(number, number + 1), {0: Position(1)}, "attacker", 1)
            fold.fold(narrow.key, narrow.encode(), number * 3 + n)
    processed = [
        Processed(PartitionState.unsplit(p, "id"), Mode.SLOTS, (Cursor(WHOLE, {0: 9}),), (), p)
        for p in places
    ]
    wanted = writes(processed, CommitMember("g", "me", 1), fold)
    assert wanted is not None and len(wanted.tombstones) == MOST_WITHDRAWN


@pytest.mark.parametrize("group", ["g", "gr", "", 'g"', "\u00e9", "g,"])
def test_a_key_is_of_a_group_by_its_first_bytes_if_it_is_by_all_of_it(group: str) -> None:
    names = ["g", "gr", 'g"', "\u00e9", "g,", "G"]
    keys = {name: CommitKey(name, PARENT, WHOLE).encode() for name in names}
    assert [n for n, key in keys.items() if not is_of_others(key, key_start(group))] == [group] * bool(group)


def test_keys_of_other_groups_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner reads the log of all groups: that took it most of its start."""
    parsed: list[bytes | None] = []

    def parse(key: bytes | None) -> object:
        parsed.append(key)
        return parse_offset_key(key)

    monkeypatch.setattr(commits, "parse_offset_key", parse)
    keys = [CommitKey(name, PARENT, WHOLE).encode() for name in ("other", "g", "another")]
    fold = CommitFold("g")
    for offset, key in enumerate([*keys, b"garbage"]):
        fold.fold(key, None, offset)
    assert parsed == [keys[1], b"garbage"] and fold.garbage == 1
