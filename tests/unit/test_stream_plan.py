"""The planning of micro-batches at the places where it could go wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline
from kpsplit.errors import (
    ConflictError,
    FutureVersionError,
    KpsplitError,
    RecordError,
    UnreachableError,
    UsageError,
)
from kpsplit.spark_jobs.streaming import planner
from kpsplit.spark_jobs.streaming.plan import (
    Frontier,
    Query,
    SegmentStretch,
    StreamOffset,
    StreamPosition,
    advance,
    between,
    readable_ends,
    tasks,
    without_lost,
)
from kpsplit.spark_jobs.streaming.source import LogicalStreamReader
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor, GapReason
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment, encode_state
from kpsplit.splitter.records.keys import enrolment_key, partition_key
from kpsplit.splitter.records.strict_json import MAX_BYTES, encode
from tests.unit.samples import PARENT, life, phantom

LIFE = life()
SPLIT, MERGED = LIFE.split.lineage, LIFE.merged.lineage
AT_START = Cursor.at_start(WHOLE)


def ends(lineage, **open_ones: int) -> dict[int, int]:
    return {s.id: s.end if s.end is not None else open_ones.get(f"s{s.id}", s.start) for s in lineage}


def extents(stretches) -> list[tuple[int, int, int]]:
    return [(s.segment.id, s.first, s.behind) for s in stretches]


class Planner:
    """Plans the next batch; ``silent``: so many times no broker answers."""

    def __init__(self, silent: int) -> None:
        self.silent = silent

    def next(self, before: StreamOffset) -> StreamOffset:
        self.silent -= 1
        if self.silent >= 0:
            raise UnreachableError("could not read the end of a topic: the brokers cannot be reached")
        return replace(before, at={0: StreamPosition(0, Cursor(WHOLE, {0: 9}))})


STOOD = StreamOffset("orders", {0: StreamPosition(0, Cursor(WHOLE, {0: 3}))})


def from_checkpoint(silent: int, patience: float) -> tuple[LogicalStreamReader, Planner]:
    query = Query({"bootstrap.servers": "127.0.0.1:1"}, "orders", None, patience, "earliest", None, True)
    reader, planner = LogicalStreamReader(query), Planner(silent)
    reader._planner = planner
    assert reader.partitions(STOOD.as_json(), STOOD.as_json()) == []
    return reader, planner


def test_a_query_does_not_end_as_if_everything_were_read_while_brokers_are_away() -> None:
    """``AvailableNow`` asks once: an offset that is repeated would end it."""
    reader, planner = from_checkpoint(silent=3, patience=60)
    assert reader.latestOffset()["at"] != STOOD.as_json()["at"] and planner.silent == -1


def test_a_query_that_no_broker_answers_from_its_start_ends_with_its_patience_and_says_so() -> None:
    reader, _ = from_checkpoint(silent=1_000_000, patience=0.2)
    with pytest.raises(UnreachableError) as caught:
        reader.latestOffset()
    assert str(caught.value) == (
        "nothing was read, and the checkpoint is as it was: could not read the end of a topic: the brokers "
        "cannot be reached; start the query again when brokers answer: it goes on from its checkpoint"
    )


def test_a_query_that_brokers_have_answered_goes_on_while_they_are_away() -> None:
    reader, planner = from_checkpoint(silent=0, patience=60)
    at = reader.latestOffset()
    planner.silent = 3
    assert [reader.latestOffset() for _ in range(3)] == [at] * 3, "nothing new, for Spark"
    assert planner.silent == 0 and reader.latestOffset() == at


def test_a_query_ends_when_brokers_are_away_for_longer_than_its_patience() -> None:
    reader, planner = from_checkpoint(silent=0, patience=0.2)
    reader.latestOffset()
    planner.silent, limit = 1_000_000, Deadline(60)
    with pytest.raises(UnreachableError, match="could not read the end of a topic"):
        while not limit.expired():
            reader.latestOffset()


def test_a_limit_is_shared_in_proportion_by_what_is_readable_at_once() -> None:
    start = Cursor(WHOLE, {0: 1000})
    frontier = Frontier(SPLIT, ends(SPLIT, s2=100, s3=300, s4=0, s5=0))
    moved = advance({3: start}, {3: frontier}, 40)[3]
    assert extents(between(SPLIT, start, moved)) == [(2, 0, 10), (3, 0, 30)]


def test_a_limit_below_the_number_of_segments_is_kept_and_used() -> None:
    start = Cursor(WHOLE, {0: 1000})
    frontier = Frontier(SPLIT, ends(SPLIT, s2=1, s3=1, s4=1, s5=9))
    moved = advance({3: start}, {3: frontier}, 2)[3]
    assert sum(behind - first for _, first, behind in extents(between(SPLIT, start, moved))) == 2


def test_what_is_left_of_a_limit_goes_to_the_successors() -> None:
    start = Cursor(WHOLE, {0: 990})
    moved = advance({3: start}, {3: Frontier(SPLIT, ends(SPLIT, s2=100))}, 15)[3]
    assert extents(between(SPLIT, start, moved)) == [(0, 990, 1000), (2, 0, 5)]


def test_a_segment_is_not_entered_while_one_of_those_before_it_waits() -> None:
    """A phantom whose log is decided only in part holds up the reopened parent, not its siblings."""
    known = ends(MERGED, s6=5000)
    held_up = next(s for s in MERGED if s.source == phantom(1))
    known[held_up.id] = held_up.start + 1
    moved = advance({3: AT_START}, {3: Frontier(MERGED, known)})[3]
    read = {s.segment.id for s in between(MERGED, AT_START, moved)}
    assert read == {s.id for s in MERGED if s.end is not None and s.end > s.start}


def test_phantoms_are_read_by_tasks_of_their_own_and_with_their_parent_by_one() -> None:
    moved = advance({3: AT_START}, {3: Frontier(SPLIT, ends(SPLIT, s2=7, s3=7, s4=7, s5=7))})[3]
    whole = between(SPLIT, AT_START, moved)
    assert [[s.segment.id for s in t] for t in tasks(SPLIT, whole)] == [[0, 2, 3, 4, 5]]
    behind = between(SPLIT, Cursor(WHOLE, {0: 1000}), moved)
    assert [[s.segment.id for s in t] for t in tasks(SPLIT, behind)] == [[2], [3], [4], [5]]


def test_an_end_that_does_not_come_from_the_start_is_noticed() -> None:
    assert between(SPLIT, Cursor(WHOLE, {0: 500}), Cursor(WHOLE, {0: 400})) is None


def test_a_segment_with_no_known_end_is_not_read_on() -> None:
    assert advance({3: AT_START}, {3: Frontier(SPLIT, {})})[3].positions == {0: 0}
    assert advance({3: AT_START}, {}) == {3: AT_START}


def test_no_more_than_the_stable_part_of_a_closed_segment_is_read() -> None:
    """An open transaction before the marker."""
    assert readable_ends(LIFE.split, {PARENT: 300})[0] == 300
    assert readable_ends(LIFE.split, {PARENT: 1500})[0] == 1000


def test_what_retention_took_is_told_and_the_rest_is_kept() -> None:
    stretch = SegmentStretch(SPLIT.get(0), 100, 900)
    kept, lost = without_lost(LIFE.split, [stretch], {PARENT: 400}, {})
    assert extents(kept) == [(0, 400, 900)]
    assert [str(x) for x in lost] == ["segment 0: offsets 100 to 399 of orders/3: retention removed them"]
    assert without_lost(LIFE.split, [stretch], {PARENT: 100}, {}) == ([stretch], [])
    kept, lost = without_lost(LIFE.split, [stretch], {PARENT: 4000}, {})
    assert not kept and extents(lost) == [(0, 100, 900)]


def test_a_sub_topic_that_is_gone_is_lost_as_a_whole() -> None:
    stretch = SegmentStretch(SPLIT.get(2), 3, 9)
    kept, lost = without_lost(LIFE.split, [stretch], {}, {stretch.segment.source: GapReason.RETIRED})
    assert not kept and [x.reason for x in lost] == [GapReason.RETIRED]


def test_the_offset_in_the_checkpoint_has_this_form() -> None:
    """Whoever changes it raises the version: queries go on from offsets that older versions wrote."""
    offset = StreamOffset("orders", {3: StreamPosition(2, Cursor(WHOLE, {4: 1200, 5: 7}))}, {})
    text = json.dumps(offset.as_json(), separators=(",", ":"))
    assert text == '{"at":[{"e":2,"p":3,"s":{"4":1200,"5":7}}],"from":[],"topic":"orders","v":1}'
    assert StreamOffset.parse(json.loads(text)) == offset


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({"v": 2}, FutureVersionError),
        ({"v": None}, RecordError),
        ({"at": [{"p": 3, "e": 2, "s": {"x": 1}}]}, RecordError),
        ({"at": [{"p": 3, "e": 2, "s": {"4": -1}}]}, RecordError),
        ({"more": 1}, RecordError),
    ],
)
def test_an_offset_that_is_newer_or_damaged_is_refused(damage, error) -> None:
    good = StreamOffset("orders", {3: StreamPosition(2, Cursor(WHOLE, {4: 1200}))}).as_json()
    with pytest.raises(error):
        StreamOffset.parse(good | damage)


@pytest.mark.parametrize(
    ("high", "why"),
    [(900, "has to read of it: the log ends before the segment does"), (1001, None)],
    ids=["cut off", "held up"],
)
def test_a_closed_segment_whose_log_ends_before_it_ends_the_query_and_an_open_transaction_does_not(
    monkeypatch, high, why
) -> None:
    """The rest is never there: without that the query would wait for it for ever."""
    state = LIFE.split
    first = state.lineage.get(0)
    assert first.end == 1000

    class Cluster:
        def end_offsets(self, logs, isolation=IsolationLevel.READ_UNCOMMITTED):
            committed = isolation is IsolationLevel.READ_COMMITTED
            return {log: SimpleNamespace(offset=900 if committed else high) for log in logs}

        def certain(self, topics, _):
            return {topic: SimpleNamespace(topic_id=state.topic_id) for topic in topics}

        def partition_count(self, _):
            return PARENT.partition + 1

    view = SimpleNamespace(enrolled_state=lambda _: state, left={})
    tail = SimpleNamespace(read_to_end=lambda _: None, view=view)
    monkeypatch.setattr(planner, "ClusterAdmin", lambda _: Cluster())
    monkeypatch.setattr(planner, "ControlTail", lambda _: tail)
    query = Query({}, PARENT.topic, (PARENT.partition,), 60.0, "earliest", None, True)
    cluster = planner.ClusterSnapshot(None, query)
    cursors = {PARENT.partition: Cursor(WHOLE, {0: 900})}
    cluster.frontiers(cursors)
    cluster.short_patience = 0.0
    if why is None:
        cluster.frontiers(cursors)
    else:
        with pytest.raises(KpsplitError, match=why):
            cluster.frontiers(cursors)


def test_a_partition_that_does_not_exist_ends_a_query_that_goes_on_from_its_checkpoint(monkeypatch) -> None:
    """Nothing can ever be read of it, and nothing else says so: the query would read the others for ever."""
    view = SimpleNamespace(enrolled_state=lambda _: LIFE.split)
    monkeypatch.setattr(planner, "ClusterAdmin", lambda _: SimpleNamespace(partition_count=lambda _: 4))
    monkeypatch.setattr(
        planner, "ControlTail", lambda _: SimpleNamespace(read_to_end=lambda _: None, view=view)
    )
    cluster = planner.ClusterSnapshot(None, Query({}, "orders", (3, 4), 60.0, "earliest", None, True))
    with pytest.raises(UsageError, match="topic orders has no partition 4; its partitions are 0 to 3"):
        cluster.states()


NEWEST = MERGED.open_segments()[0]


@pytest.fixture
def returned(monkeypatch) -> planner.ClusterSnapshot:
    """A look at a topic that is back with plain clients; on its partition 4 nothing was ever done."""
    left = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True, None, 2, returning=True)
    view = ControlView()
    view.fold(enrolment_key("orders"), encode_enrolment(left))
    view.fold(partition_key(PARENT), encode_state(LIFE.merged))
    assert view.left and view.left_states == {PARENT: LIFE.merged}
    tail = SimpleNamespace(read_to_end=lambda _: None, view=view)
    monkeypatch.setattr(planner, "ClusterAdmin", lambda _: SimpleNamespace(partition_count=lambda _: 5))
    monkeypatch.setattr(planner, "ControlTail", lambda _: tail)
    return planner.ClusterSnapshot(None, Query({}, "orders", (3, 4), 60.0, "earliest", None, True))


@pytest.mark.parametrize(
    "position", [{NEWEST.id: NEWEST.start + 9}, {8: 2, 7: 3, 2: 8, 3: 5, 5: 6, NEWEST.id: 0}]
)
def test_a_query_whose_topic_returned_ends_where_plain_readers_go_on(returned, position) -> None:
    at = max(NEWEST.start, position[NEWEST.id])
    with pytest.raises(ConflictError) as caught:
        returned.frontiers({3: Cursor(WHOLE, position)})
    assert f'it stands at {{"orders": {{"3": {at}, "4": 0}}}}' in caught.value.message
    assert caught.value.hint is not None
    assert "startingOffsets" in caught.value.hint and "run: kpsplit enroll orders" in caught.value.hint


@pytest.mark.parametrize("position", [{0: 500}, {2: 8, 3: 5, 5: 6, 7: 3, 8: 1}, {NEWEST.id + 1: 5}])
def test_a_query_that_had_not_read_up_to_the_merge_goes_on_only_if_its_topic_is_enrolled_again(
    returned, position
) -> None:
    """What is left lies in sub-topics that are gone, and among markers and strays."""
    start = {3: StreamPosition(1, Cursor(WHOLE, position))}
    with pytest.raises(
        ConflictError, match="before this query had read orders/3 up to its latest merge"
    ) as caught:
        returned.states_since(start, start)
    assert "run: kpsplit enroll orders, and start this query again" in str(caught.value)


def test_a_new_query_of_a_topic_that_returned_is_refused_as_for_any_that_is_not_enrolled(returned) -> None:
    with pytest.raises(UsageError, match="is not enrolled: it was returned to plain clients"):
        returned.frontiers({})


def test_the_longest_offset_that_can_be_written_can_be_read() -> None:
    """Spark hands it back as JSON with other spaces than it was given."""
    one = Cursor(WHOLE, dict.fromkeys(range(100), 10**18))
    partitions = range(355)
    longest = StreamOffset("orders", {number: StreamPosition(2, one) for number in partitions})
    assert 0.95 * MAX_BYTES < len(encode(longest.as_json())) <= MAX_BYTES
    assert StreamOffset.parse(longest.as_json()) == longest
