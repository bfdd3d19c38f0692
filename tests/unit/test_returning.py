"""A topic goes back to plain clients: what is recorded, and who sees what of it (protocol, section 10.16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.clock import Deadline
from kpsplit.control.plans import Check
from kpsplit.control.returning import (
    GROUPS,
    Act,
    Seen,
    acts_left,
    enrolment_obstacle,
    following,
    group_obstacle,
    next_step,
    partition_obstacle,
    seek_obstacle,
)
from kpsplit.errors import KpsplitError
from kpsplit.kafka.control_log import OperationLog
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.group_slots import Mode, Subscribed, subscribed
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Freeze, Retire
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    SlotDivision,
    encode_enrolment,
    encode_state,
    enrolment_claim_key,
)
from kpsplit.splitter.records.keys import CONTROL_TOPIC, enrolment_key, partition_key
from tests.unit.samples import PARENT, UNSPLIT, fenced, life, merge_attempt, split_attempt
from tests.unit.test_commits import commit, folded

ENROLLED = Enrolment("orders", "id-orders", Partitioner.CONSISTENT_RANDOM, True, 8, 3)
STATE = life().merged
LOWER, UPPER = WHOLE.split_evenly(2)
OPEN = STATE.lineage.open_segments()[0]


def records(enrolment: Enrolment) -> list[Enrolment]:
    """All records of a return, from an enrolment on."""
    following_ = following(enrolment)
    return [] if following_ is None else [following_, *records(following_)]


FIRST, SECOND, THIRD, LAST = records(ENROLLED)
AGAIN = replace(ENROLLED, settled=False, generation=5)
CHANGING = replace(ENROLLED, settled=False, slots=4, former_slots=8, generation=4)


def test_the_records_of_a_return_are_those_of_the_protocol() -> None:
    said = [(e.returning, e.generation, e.slots, e.former_slots, e.settled) for e in records(ENROLLED)]
    assert said == [
        (True, 4, None, 8, False),
        (True, 4, None, 8, True),
        (True, 4, None, None, False),
        (True, 4, None, None, True),
    ]
    assert [e.left for e in records(ENROLLED)] == [False, False, False, True]
    assert FIRST.former == SlotDivision("__kpsplit.slots-3.orders", 8)


def test_members_share_partitions_as_wholes_in_between() -> None:
    former = SlotDivision("__kpsplit.slots-3.orders", 8)
    whole = Subscribed("orders", "orders", Mode.WHOLE, 1, former=former)
    plain = Subscribed("orders", "orders", Mode.PLAIN, 1)
    on_former = Subscribed("orders", former.topic, Mode.SLOTS, 8, begins=False)
    assert subscribed("orders", FIRST) == on_former
    assert subscribed("orders", FIRST, lease_over=True) == subscribed("orders", SECOND) == whole
    assert subscribed("orders", THIRD).mode is Mode.MOVING
    assert subscribed("orders", THIRD, lease_over=True) == subscribed("orders", LAST) == plain
    assert whole.predecessors(2) == frozenset(former.places(2))


def view_of(*enrolments: Enrolment) -> ControlView:
    view = ControlView()
    view.fold(partition_key(STATE.parent), encode_state(STATE))
    for enrolment in enrolments:
        view.fold(enrolment_key(enrolment.topic), encode_enrolment(enrolment))
    return view


@pytest.mark.parametrize("seen", [FIRST, SECOND, THIRD])
def test_a_topic_that_returns_is_enrolled(seen: Enrolment) -> None:
    view = view_of(ENROLLED, seen)
    assert view.recorded("orders") == view.enrolments["orders"] == seen
    assert view.state(STATE.parent) == STATE and not view.left


def test_a_topic_that_is_left_is_not_enrolled_and_its_states_are_set_aside() -> None:
    view = view_of(ENROLLED, FIRST, LAST)
    assert view.recorded("orders") == LAST
    assert "orders" not in view.enrolments and view.state(STATE.parent) is None
    assert not view.states and view.left_states == {STATE.parent: STATE}
    assert view.owner_of(STATE.subtopics[0].name) is None
    assert str(view.not_enrolled("orders")) == (
        "topic orders is not enrolled: it was returned to plain clients; "
        "any Kafka client may use it; to enrol it again run: kpsplit enroll orders"
    )


def test_the_states_of_a_topic_that_is_enrolled_again_go_on() -> None:
    again = replace(LAST, slots=4, returning=False, settled=False)
    view = view_of(LAST, again)
    assert view.recorded("orders") == again and not view.left and not view.left_states
    assert view.state(STATE.parent) == STATE
    assert view.state(PhysicalPartition("orders", 99)) is not None


def test_states_that_are_read_after_the_last_record_are_set_aside_too() -> None:
    """Partitions of the control topic are read in any order."""
    view = ControlView()
    view.fold(enrolment_key("orders"), encode_enrolment(LAST))
    view.fold(partition_key(STATE.parent), encode_state(STATE))
    assert not view.states and view.left_states == {STATE.parent: STATE}
    view.fold(partition_key(STATE.parent), None)
    assert not view.left_states


# -- what is next ------------------------------------------------------------------------------------

STUCK, LATE = Check("at rest", False, "no", "do"), Check(GROUPS, False, "not yet", "wait")


@pytest.mark.parametrize(
    ("recorded", "seen", "act"),
    [
        (ENROLLED, Seen(), Act.RECORD),
        (ENROLLED, Seen((STUCK,)), Act.REFUSE),
        (ENROLLED, Seen((LATE,)), Act.REFUSE),
        (ENROLLED, Seen((LATE,), patient=True), Act.AWAIT),
        (ENROLLED, Seen((LATE, STUCK), patient=True), Act.REFUSE),
        (FIRST, Seen(), Act.CLAIM),
        (FIRST, Seen(lease_over=True), Act.CLAIM),
        (FIRST, Seen((STUCK,)), Act.REFUSE),
        (FIRST, Seen(claimed=True), Act.LEASE),
        (FIRST, Seen(claimed=True, lease_over=True), Act.RECORD),
        (SECOND, Seen(readers=("billing",), slots_topic=True), Act.RELEASE),
        (SECOND, Seen(slots_topic=True), Act.DELETE),
        (SECOND, Seen((LATE,)), Act.AWAIT),
        (SECOND, Seen((STUCK,)), Act.REFUSE),
        (SECOND, Seen(), Act.RECORD),
        (THIRD, Seen(), Act.LEASE),
        (THIRD, Seen(lease_over=True), Act.RECORD),
        (LAST, Seen(), Act.WITHDRAW),
        (LAST, Seen(withdrawn=True), Act.DONE),
    ],
)
def test_the_record_and_what_is_seen_decide_what_is_next(recorded: Enrolment, seen: Seen, act: Act) -> None:
    assert next_step(recorded, seen) is act


def test_what_is_left_is_what_the_decision_will_ask_for() -> None:
    for number, recorded in enumerate((ENROLLED, FIRST, SECOND, THIRD, LAST)):
        left = acts_left(recorded)
        assert left.count(Act.RECORD) == 4 - number
        assert left[-1] is Act.WITHDRAW
    assert acts_left(FIRST)[0] is Act.CLAIM and acts_left(SECOND)[0] is Act.RELEASE


@pytest.mark.parametrize(
    "unfinished",
    [
        replace(ENROLLED, settled=False),
        replace(ENROLLED, slots=None, generation=1),
        replace(ENROLLED, former_slots=4),
    ],
)
def test_an_enrolment_that_is_not_finished_does_not_return(unfinished: Enrolment) -> None:
    assert enrolment_obstacle(ENROLLED) is None
    found = enrolment_obstacle(unfinished)
    assert found is not None and found.message == "the enrolment of orders is not finished"
    assert found.remedy == "run: kpsplit enroll orders"


def test_a_partition_returns_at_rest_merged_and_retired() -> None:
    def said(state, topics=()):  # type: ignore[no-untyped-def]
        found = partition_obstacle(state, topics)
        return found and (found.message, found.remedy)

    split = life().split
    merge = f"run: kpsplit merge {PARENT}, then kpsplit retire {PARENT}"
    retire = f"run: kpsplit retire {PARENT}"
    assert said(UNSPLIT) is None
    assert said(split) == (f"{PARENT} is split, into 4", merge)
    under_way = said(fenced(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))))
    assert under_way is not None and f"kpsplit abort {PARENT}" in under_way[1]
    assert said(apply(UNSPLIT, Freeze("lost"))) == (
        f"{PARENT} is frozen: lost",
        f"run: kpsplit resume {PARENT} --thaw",
    )
    assert said(STATE) == (f"{STATE.subtopics[0].name} of {PARENT} is not retired", retire)
    retired = STATE
    for subtopic in STATE.subtopics:
        retired = apply(retired, Retire(subtopic.name))
    assert said(retired) is None
    assert said(retired, {STATE.subtopics[1].name}) == (
        f"{STATE.subtopics[1].name} of {PARENT} is not retired",
        retire,
    )


def standing(fold: CommitFold, ordinary: int | None, *, shared: bool = False) -> str | None:
    found = group_obstacle("g", STATE, fold, ordinary, shared=shared)
    assert found is None or found.name == GROUPS
    return None if found is None else found.message.removeprefix(f"group g in {PARENT}: ")


BEFORE = f"it stands before the latest merge, at {OPEN.start}"


def test_a_group_stands_right_at_one_place_that_its_ordinary_offset_says() -> None:
    at = OPEN.start + 5
    one = folded(commit(WHOLE, {OPEN.id: at}))
    assert standing(one, at) is None
    assert standing(one, at + 3) is None, "the group went on between the two looks"
    assert standing(one, at - 1) == f"its ordinary offset is {at - 1}, not {at}"
    assert standing(one, None) == f"its ordinary offset is missing, not {at}"
    even = folded(commit(LOWER, {OPEN.id: at}), commit(UPPER, {OPEN.id: at}))
    assert standing(even, at) is None, "two commits of one place"


def test_a_group_whose_key_ranges_stand_apart_has_to_come_together() -> None:
    at = OPEN.start + 5
    apart = folded(commit(LOWER, {OPEN.id: at}), commit(UPPER, {OPEN.id: at + 1}))
    half = folded(commit(LOWER, {OPEN.id: at}))
    for fold in (apart, half):
        assert standing(fold, at) == "its key ranges stand apart"
        assert standing(fold, at, shared=True) is None, "its members may have slots still"


@pytest.mark.parametrize("recorded", [FIRST, SECOND, THIRD])
def test_no_seek_moves_the_key_ranges_of_a_group_apart_in_a_return(recorded: Enrolment) -> None:
    """After the third record nobody looks at the groups again."""
    part = Cursor(LOWER, {OPEN.id: OPEN.start})
    assert seek_obstacle(ENROLLED, STATE, part) is None
    obstacle = seek_obstacle(recorded, STATE, part)
    assert obstacle is not None and obstacle.message.startswith("topic orders is being returned")
    assert "leave --keys away" in obstacle.remedy
    assert seek_obstacle(recorded, STATE, Cursor(WHOLE, part.positions)) is None


def test_no_seek_goes_before_the_latest_merge_when_nobody_looks_again() -> None:
    before = Cursor(WHOLE, {0: 5})
    assert [seek_obstacle(e, STATE, before) for e in (ENROLLED, FIRST, SECOND)] == [None] * 3
    obstacle = seek_obstacle(THIRD, STATE, before)
    assert obstacle is not None and "before the latest merge" in obstacle.message
    assert f"--to {OPEN.logical(OPEN.start)}" in obstacle.remedy


def test_a_group_that_stands_before_the_latest_merge_would_see_markers() -> None:
    behind = folded(commit(LOWER, {OPEN.id: OPEN.start}), commit(UPPER, {5: 2}))
    for shared in (False, True):
        assert standing(behind, OPEN.start, shared=shared) == BEFORE
        assert standing(CommitFold(), OPEN.start - 1, shared=shared) == BEFORE, "a plain group"
        assert standing(CommitFold(), OPEN.start, shared=shared) is None
        assert standing(CommitFold(), None, shared=shared) is None, "it has read nothing here"


# -- an operator that claims later -------------------------------------------------------------------


class Reading:
    """The control topic of an operator that has claimed a partition; ``read``: what it did, in order."""

    def __init__(self, seen: Enrolment) -> None:
        self.view, self.read = view_of(ENROLLED), list[str]()
        self._seen = seen

    def write(self, topic: str, key: bytes, value: None, _deadline: Deadline, *, partition: int) -> int:
        assert (topic, key, partition) == (CONTROL_TOPIC, enrolment_claim_key("orders"), 0)
        self.read.append("mark")
        return 7

    def read_to(self, ends: dict[int, int], _deadline: Deadline) -> None:
        assert ends == {0: 8}, "up to the mark, with everything before it decided"
        self.read.append("read")
        self.view = view_of(ENROLLED, self._seen)


@pytest.mark.parametrize("seen", [ENROLLED, FIRST, SECOND, THIRD, LAST, AGAIN, CHANGING])
@pytest.mark.parametrize("kind", ["split", "merge"])
def test_an_operator_reads_the_enrolment_after_its_claim_and_splits_nothing_that_returns(
    seen: Enrolment, kind: str
) -> None:
    log = OperationLog.__new__(OperationLog)
    reading = Reading(seen)
    log._parent, log._tail, log._announcer = PARENT, reading, reading  # type: ignore[assignment]
    halves = WHOLE.split_evenly(2)
    attempt = split_attempt(UNSPLIT, 0, halves) if kind == "split" else merge_attempt(UNSPLIT, (0,), WHOLE)
    if kind == "merge":
        log._refuse_split(attempt, Deadline(1))
        assert not reading.read, "what was split in between has to be merged"
        return
    if seen.returning or seen is AGAIN:
        what = "is being returned|is not enrolled|is not settled"
        with pytest.raises(KpsplitError, match=what) as caught:
            log._refuse_split(attempt, Deadline(1))
        assert caught.value.changed is False
    else:
        log._refuse_split(attempt, Deadline(1))
    assert reading.read == ["mark", "read"]
