"""How far a group has come, and where a seek goes: decided from positions alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.clock import Deadline
from kpsplit.control import seeking, status
from kpsplit.control.returning import following
from kpsplit.control.seeking import Seek, Seeker, SeekTarget, Whence, cursor_at
from kpsplit.control.status import Basis, Remaining, group_drains, owners, progress_of
from kpsplit.errors import ConflictError, DeadlineExceededError
from kpsplit.kafka import groups
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.offsets import Position, RangeCommit
from tests.unit.samples import PARENT, life, phantom

LIFE = life()
LEFT, RIGHT = WHOLE.split_evenly(2)
QUARTERS = WHOLE.split_evenly(4)
ONE, TWO = Owner("m-1", "app", "10.0.0.1"), Owner("m-2", "app", "10.0.0.2")
ENDS = {PARENT: 1500, **{phantom(i): 20 for i in range(4)}}
ENROLMENT = Enrolment("orders", "id", Partitioner.EXPLICIT, True, slots=4)


def folded(*commits: tuple[KeyRange, dict[int, int]]) -> CommitFold:
    fold = CommitFold()
    for offset, (range_, positions) in enumerate(commits):
        commit = RangeCommit("g", PARENT, range_, {s: Position(n) for s, n in positions.items()}, "m-1", 4)
        fold.fold(commit.key, commit.encode(), offset)
    return fold


def slot(number: int) -> PhysicalPartition:
    return PhysicalPartition("__kpsplit.slots.orders", number)


def test_each_range_has_its_owner_its_positions_and_what_it_still_has_to_drain() -> None:
    fold = folded((LEFT, {0: 900}), (RIGHT, {1: 1001, 4: 12, 5: 15}))
    progress = progress_of(LIFE.split, "g", fold, {}, [(LEFT, ONE), (RIGHT, TWO)], ENDS)
    left, right = progress.ranges
    assert (left.range, left.owner, left.basis, left.to_drain) == (LEFT, ONE, Basis.RANGE_COMMIT, (0,))
    assert [(s.segment.id, s.next, s.lag, s.ready) for s in left.left] == [
        (0, 900, 100, True),
        (1, 1001, 499, False),
        (2, 0, 20, False),
        (3, 0, 20, False),
    ]
    assert left.lag == 639
    assert (right.owner, right.to_drain, right.lag) == (TWO, (), 499 + 8 + 5)
    assert right.left[1].logical == 1003 + 5 * 12
    assert progress.lag == 100 + 499 + 20 + 20 + 8 + 5
    assert left.commit is not None
    assert left.commit.member == "m-1"


def test_a_range_is_shown_in_parts_where_its_owners_change() -> None:
    fold = folded((WHOLE, {0: 900}))
    progress = progress_of(LIFE.split, "g", fold, {}, [(QUARTERS[0], ONE), (RIGHT, TWO)], ENDS)
    assert [(r.range, r.owner) for r in progress.ranges] == [
        (QUARTERS[0], ONE),
        (QUARTERS[1], None),
        (RIGHT, TWO),
    ]


def test_the_slowest_range_says_how_far_a_group_is_from_draining_a_segment() -> None:
    fold = folded((LEFT, {0: 900}), (QUARTERS[2], {0: 400}), (QUARTERS[3], {1: 1001, 4: 12, 5: 15}))
    found = {"g": [progress_of(LIFE.split, "g", fold, {}, [(LEFT, ONE), (QUARTERS[2], TWO)], ENDS)]}
    (drain,) = group_drains(lambda: found, Deadline(0))
    assert (drain.segment.id, drain.group, drain.left) == (0, "g", Remaining(600))
    assert (drain.range, drain.owner) == (QUARTERS[2], TWO)


def test_ordinary_offsets_count_where_there_is_no_range_commit() -> None:
    progress = progress_of(LIFE.split, "g", folded((LEFT, {0: 900})), {PARENT: 950}, [], ENDS)
    assert [(r.basis, r.left[0].next) for r in progress.ranges] == [
        (Basis.RANGE_COMMIT, 900),
        (Basis.ORDINARY, 950),
    ]


def test_without_any_commit_nothing_is_known_to_be_drained() -> None:
    progress = progress_of(LIFE.split, "g", folded((LEFT, {0: 900})), {}, [], ENDS)
    assert [r.basis for r in progress.ranges] == [Basis.RANGE_COMMIT, Basis.NOTHING]
    assert progress.ranges[1].lag is None
    assert progress.lag is None


def test_a_log_that_is_not_there_has_no_lag() -> None:
    progress = progress_of(LIFE.split, "g", folded((WHOLE, {1: 1001, 2: 3})), {}, [], {PARENT: 1001})
    assert progress.ranges[0].lag is None


def test_owners_of_slots_are_joined_and_those_of_plain_partitions_own_everything() -> None:
    members = Members(True, True, {slot(12): ONE, slot(13): ONE, slot(14): TWO, slot(3): TWO})
    assert owners(members, PARENT, ENROLMENT) == [(LEFT, ONE), (QUARTERS[2], TWO)]
    assert owners(Members(True, True, {PARENT: ONE}), PARENT, None) == [(WHOLE, ONE)]
    assert owners(members, PARENT, None) == []


def test_groups_are_asked_for_their_members_within_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is not answered takes what is left, and the next one is not asked."""
    given: list[float] = []
    now = [0.0]

    def described(_admin: object, _group: str, seconds: float = 8.0) -> Members:
        given.append(seconds)
        now[0] += seconds
        return Members(False, True, {})

    monkeypatch.setattr(status, "describe_members", described)
    monkeypatch.setattr(status, "range_commits", lambda *_: CommitFold())
    monkeypatch.setattr(status, "known_groups", lambda *_: {g: {PARENT: 5} for g in "abc"})
    admin: Any = SimpleNamespace(partition_count=lambda *_: 4)
    deadline = Deadline(10, clock=lambda: now[0])
    with pytest.raises(DeadlineExceededError):
        status.progress_of_groups(admin, ControlView, "orders", None, deadline)
    assert given == [8.0, 2.0]


def test_a_group_is_on_a_topic_while_it_owns_something_of_it_or_may_be_about_to() -> None:
    topics = ("orders", "__kpsplit.slots.orders")
    assert Members(True, True, {slot(3): ONE}).on(topics)
    assert Members(True, False, {}).on(topics)
    assert not Members(True, True, {PhysicalPartition("other", 0): ONE}).on(topics)
    assert not Members(False, True, {}).on(topics)
    assert Members(True, True, {}, frozenset({slot(3)})).on(topics)
    assert not Members(True, True, {}, frozenset({PhysicalPartition("other", 0)})).on(topics)


def test_a_seek_is_refused_while_a_member_has_a_slot_to_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two rebalances of KIP-429 the group is stable, and nobody is assigned the slot."""
    between = Members(True, True, {}, frozenset({slot(3)}))
    asked: list[bool] = []

    def described(_admin: object, _group: str, *, kept: bool = False) -> Members:
        asked.append(kept)
        return between if kept else replace(between, kept=frozenset())

    monkeypatch.setattr(groups, "describe_members", described)
    seeker: Any = object.__new__(Seeker)
    view = ControlView()
    view.enrolments["orders"] = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=True, slots=4)
    seeker._admin, seeker._session = None, SimpleNamespace(read=lambda _: view)
    with pytest.raises(ConflictError, match="group g has active members on orders"):
        seeker._refuse_active("g", "orders", Deadline(10), changed=False)
    assert asked == [True]


STARTS = {PARENT: 5, **{phantom(i): 0 for i in range(4)}}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (SeekTarget(Whence.EARLIEST), {0: 5}),
        (SeekTarget(Whence.LATEST), {1: 1500, 2: 20, 3: 20}),
        (SeekTarget(Whence.OFFSET, 0), {0: 5}),
        (SeekTarget(Whence.OFFSET, 990), {0: 990}),
        (SeekTarget(Whence.OFFSET, 1038), {1: 1009, 2: 8, 3: 8}),
        (SeekTarget(Whence.OFFSET, 1 << 62), {1: 1500, 2: 20, 3: 20}),
        (SeekTarget(Whence.TIMESTAMP, 1), {1: 1500, 2: 7, 3: 20}),
    ],
)
def test_a_seek_stands_where_records_are_or_at_the_end(target: SeekTarget, expected: dict[int, int]) -> None:
    young = {phantom(0): 7}
    cursor = cursor_at(LIFE.split, LEFT, target, STARTS, ENDS, young)
    assert cursor.readable(LIFE.split.lineage) == expected


def test_a_seek_to_the_earliest_counts_what_was_deleted_with_its_topic_as_read() -> None:
    starts = {PARENT: 1001, phantom(1): 2}
    ends = {PARENT: 1500, phantom(1): 5}
    cursor = cursor_at(LIFE.merged, LEFT, SeekTarget(Whence.EARLIEST), starts, ends, {})
    assert cursor.readable(LIFE.merged.lineage) == {1: 1001, 3: 2}
    assert cursor.moved(1, 1003).moved(3, 5).readable(LIFE.merged.lineage) == {9: 1004}


@pytest.mark.parametrize("agreed", [False, True])
def test_a_seek_passes_over_a_sub_topic_only_when_it_is_certain_that_it_is_gone(agreed: bool) -> None:
    """The broker that is asked for the starts of the logs may be stale: its "no" skips nothing."""
    asked: list[str] = []

    def certain(topics: Iterable[str], deadline: Deadline) -> dict[str, None]:
        asked.extend(topics)
        if not agreed:
            raise DeadlineExceededError("waited 10 s for most brokers to agree")
        return dict.fromkeys(asked)

    retired = replace(LIFE.merged.subtopics[0], state=SubTopicState.RETIRED)
    state = replace(LIFE.merged, subtopics=(retired, *LIFE.merged.subtopics[1:]))
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(10), state=lambda *_: state, read=lambda _: ControlView()
    )
    seeker._admin = SimpleNamespace(
        start_offsets=lambda _: {PARENT: 0}, end_offsets=lambda *_: {}, certain=certain
    )
    seeker._refuse_active = lambda *_, **__: None
    target = SeekTarget(Whence.EARLIEST)
    if agreed:
        cursor = seeker.plan("g", PARENT, LEFT, target, True).cursor
        assert cursor.moved(0, 1000).readable(state.lineage) == {1: 1001}
    else:
        with pytest.raises(DeadlineExceededError, match="to agree"):
            seeker.plan("g", PARENT, LEFT, target, True)
    assert retired.name not in asked and len(asked) == len(state.subtopics) - 1


@pytest.mark.parametrize(
    "target",
    [SeekTarget(Whence.EARLIEST), SeekTarget(Whence.OFFSET, 0), SeekTarget(Whence.TIMESTAMP, 1)],
    ids=lambda target: str(target.whence),
)
def test_a_seek_passes_over_a_sub_topic_that_is_retired_and_not_deleted_yet(target: SeekTarget) -> None:
    """The next ``retire`` deletes it and asks no group."""
    subtopics = tuple(replace(t, state=SubTopicState.RETIRED) for t in LIFE.merged.subtopics)
    state = replace(LIFE.merged, subtopics=subtopics)
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(10), state=lambda *_: state, read=lambda _: ControlView()
    )
    seeker._admin = SimpleNamespace(
        start_offsets=lambda places: dict.fromkeys(places, 0),
        end_offsets=lambda *_: {},
        offsets_at=lambda places, _: dict.fromkeys(places, 0),
        certain=lambda topics, _: dict.fromkeys(topics),
    )
    seeker._refuse_active = lambda *_, **__: None
    cursor = seeker.plan("g", PARENT, LEFT, target, True).cursor
    assert cursor.moved(0, 1000).readable(state.lineage) == {1: 1001}
    read = cursor.pending(state.lineage)
    assert {state.lineage.get(segment).source.topic for segment in read} == {PARENT.topic}


RETIRED = replace(
    LIFE.merged,
    subtopics=(replace(LIFE.merged.subtopics[0], state=SubTopicState.RETIRED), *LIFE.merged.subtopics[1:]),
)


@pytest.mark.parametrize("looks", [(LIFE.merged, LIFE.merged), (LIFE.merged, RETIRED), (RETIRED, RETIRED)])
def test_a_seek_says_that_a_sub_topic_was_retired_meanwhile(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[PartitionState, PartitionState]
) -> None:
    """Before the transaction, and after it: a retirement that began earlier may not have seen it."""
    states, written = list(looks), list[object]()
    monkeypatch.setattr(seeking, "range_commits", lambda *_: CommitFold())
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(10),
        state=lambda *_: states.pop(0),
        read=lambda _: ControlView(),
        operator="operator",
    )
    seeker._admin = SimpleNamespace(start_offsets=lambda _: {})
    seeker._refuse_active = lambda *_, **__: None
    seeker._writer = lambda *_: SimpleNamespace(commit=lambda *record: written.append(record))
    cursor = Cursor(LEFT, {0: 5})
    seek = Seek("g", LIFE.merged, SeekTarget(Whence.EARLIEST), cursor)
    if RETIRED not in looks:
        seeker.carry_out(seek)
    else:
        with pytest.raises(
            ConflictError, match=f"{RETIRED.subtopics[0].name} was retired meanwhile"
        ) as caught:
            seeker.carry_out(seek)
        assert caught.value.changed is bool(written)
    assert bool(written) is (looks[0] is LIFE.merged)


def test_a_seek_that_was_planned_for_another_topic_of_the_name_writes_nothing() -> None:
    """Between the plan and the answer to the question it may be deleted, made again and enrolled again."""
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(10), state=lambda *_: PartitionState.unsplit(PARENT, "made again")
    )
    planned = PartitionState.unsplit(PARENT, "id")
    with pytest.raises(ConflictError, match="topic orders was deleted and made again meanwhile") as caught:
        seeker.carry_out(Seek("g", planned, SeekTarget(Whence.LATEST), Cursor(WHOLE, {0: 1000})))
    assert (caught.value.changed, caught.value.hint) == (False, "retry")


def test_an_operator_that_sleeps_after_its_check_moves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have members by then."""
    written, time = list[object](), [0.0]

    def checked(*_: object, changed: bool) -> None:
        time[0] += 3600.0

    monkeypatch.setattr(seeking, "range_commits", lambda *_: CommitFold())
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(60, lambda: time[0]),
        state=lambda *_: LIFE.merged,
        read=lambda _: ControlView(),
        operator="operator",
    )
    seeker._admin = SimpleNamespace(start_offsets=lambda _: {})
    seeker._refuse_active = checked
    seeker._writer = lambda *_: SimpleNamespace(commit=lambda *record: written.append(record))
    with pytest.raises(DeadlineExceededError) as caught:
        seeker.carry_out(Seek("g", LIFE.merged, SeekTarget(Whence.EARLIEST), Cursor(LEFT, {0: 5})))
    assert (written, caught.value.changed) == ([], False)


RETURNING = following(ENROLMENT)


@pytest.mark.parametrize("looks", [(ENROLMENT, ENROLMENT), (ENROLMENT, RETURNING), (RETURNING, RETURNING)])
def test_a_seek_of_a_key_range_is_refused_while_its_topic_returns(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[Enrolment, Enrolment]
) -> None:
    """When it is planned, before the transaction, and after it: a return may have begun since the look."""
    recorded, written = list(looks), list[object]()
    monkeypatch.setattr(seeking, "range_commits", lambda *_: CommitFold())
    seeker: Any = object.__new__(Seeker)
    seeker._session = SimpleNamespace(
        begin=lambda: Deadline(10),
        state=lambda *_: LIFE.merged,
        operator="operator",
        read=lambda _: SimpleNamespace(enrolments={PARENT.topic: recorded.pop(0)}),
    )
    seeker._admin = SimpleNamespace(
        start_offsets=lambda places: dict.fromkeys(places, 0),
        end_offsets=lambda *_: {},
        certain=lambda topics, _: dict.fromkeys(topics),
    )
    seeker._refuse_active = lambda *_, **__: None
    seeker._nobody = lambda _: None
    seeker._writer = lambda *_: SimpleNamespace(commit=lambda *record: written.append(record))
    seek = Seek("g", LIFE.merged, SeekTarget(Whence.EARLIEST), Cursor(LEFT, {0: 5}))
    if RETURNING not in looks:
        seeker.carry_out(seek)
        return
    with pytest.raises(ConflictError, match="topic orders is being returned to plain clients") as caught:
        seeker.carry_out(seek)
    assert (caught.value.changed, bool(written)) == (looks[0] is ENROLMENT,) * 2
    assert caught.value.hint is not None and "leave --keys away" in caught.value.hint
    assert caught.value.hint.startswith("the group is moved") is bool(written)
    recorded.append(looks[1])
    with pytest.raises(ConflictError, match="topic orders is being returned to plain clients"):
        seeker.plan("g", PARENT, LEFT, SeekTarget(Whence.EARLIEST), True)


def test_members_that_set_no_client_id_are_told_apart() -> None:
    """As both group protocols name their members."""
    classic = Owner("rdkafka-9b0b3a52-6f9b-4a9e-8f3c-111111111111", "rdkafka", "10.0.0.1")
    by_brokers = Owner("tKf1Hn2cTkq0b1ZrYQvRzQ", "rdkafka", "10.0.0.1")
    assert [str(classic), str(by_brokers)] == ["rdkafka-9b0b3a52@10.0.0.1", "rdkafka-tKf1Hn2c@10.0.0.1"]
