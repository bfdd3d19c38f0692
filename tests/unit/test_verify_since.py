"""Where each log begins for a time, and what is given there: nothing that may be younger is passed over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpsplit.clock import wall_ms
from kpsplit.errors import AuthorizationError, UnreachableError, UsageError
from kpsplit.kafka.cluster_admin import TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.snapshot import LogEnds, LoggedCommit, Snapshot
from kpsplit.spark_jobs.verification import job
from kpsplit.spark_jobs.verification.checks import lost_findings
from kpsplit.spark_jobs.verification.commit_checks import (
    commits_leave_no_gap,
    commits_move_forward,
    commits_reach_the_end,
    commits_within_data,
    drained,
    in_order,
)
from kpsplit.spark_jobs.verification.findings import Finding, Severity
from kpsplit.spark_jobs.verification.start import (
    JudgedFrom,
    Since,
    doubtful,
    lost,
    not_whole,
    start_of,
    stretches_after,
    stretches_before,
    to_read,
)
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import GapReason
from kpsplit.splitter.records.keys import OFFSETS_TOPIC
from kpsplit.splitter.records.offsets import CommitKey, NewerCommit, Position, RangeCommit
from tests.spark.histories import World, busy

LOG = PhysicalPartition(OFFSETS_TOPIC, 0)


def merged() -> World:
    """Written to, split, written to, merged, written to."""
    world = World(0)
    busy(world, 1)
    world.split(0, 2)
    busy(world, 1)
    world.merge()
    busy(world, 1)
    return world


def since(world: World, moment: dict[PhysicalPartition, int]) -> Since:
    world.moment = moment
    return Since(1, world.first_offsets(), {})


def commit_findings(snapshot: Snapshot, groups: Collection[str] | None, start: JudgedFrom) -> list[Finding]:
    commits = in_order(snapshot, groups, start)
    return [
        *commits_within_data(snapshot, commits),
        *commits_move_forward(commits),
        *commits_leave_no_gap(snapshot, groups),
        *commits_reach_the_end(snapshot, groups),
    ]


@given(st.data())
def test_every_offset_is_given_or_read_or_told_as_gone(data) -> None:
    """And nothing that lies at or behind the first record of the time is given."""
    world = merged()
    for place, log in world.logs.items():
        world.lows[place] = data.draw(st.integers(0, len(log)), label=f"low of {place}")
    cuts = {p: data.draw(st.integers(world.lows[p], len(log)), label=str(p)) for p, log in world.logs.items()}
    snapshot = world.snapshot()
    start = start_of(snapshot, since(world, cuts))
    new = to_read(snapshot, start)
    gone = {
        (x.segment.source, offset) for x in lost(snapshot, start) for offset in range(x.first, x.behind or 0)
    }
    for s in world.state.lineage:
        for offset in range(s.start, s.end or len(world.logs[s.source])):
            given_ = offset < start.of(s.source)
            first, behind = new.get(s.source, (0, 0))
            assert given_ or first <= offset < behind or (s.source, offset) in gone
            assert not (given_ and offset >= max(cuts[s.source], world.lows[s.source]))


def test_a_retired_log_is_given_once_what_follows_it_has_an_older_record() -> None:
    world = merged()
    phantom = world.state.lineage.get(2)
    reopened = world.state.lineage.segments[-1]
    whole = world.snapshot()
    bounds = {p: b for p, b in whole.bounds.items() if p != phantom.source}
    snapshot = replace(whole, bounds=bounds, gone={phantom.source: GapReason.RETIRED})
    early = start_of(snapshot, since(world, {world.parent: reopened.start}))
    late = start_of(snapshot, since(world, {world.parent: reopened.start + 1}))
    assert (early.of(phantom.source), late.of(phantom.source)) == (0, phantom.end + 1)
    assert [x.segment.id for x in lost(snapshot, early)] == [phantom.id]
    assert lost(snapshot, late) == []
    assert (0, phantom.id) in not_whole(snapshot, late)


@pytest.mark.parametrize("written_since", [False, True], ids=["empty", "young"])
@pytest.mark.parametrize(("kept", "severity"), [(True, Severity.NOTE), (False, Severity.UNPROVEN)])
def test_what_retention_took_was_older_than_the_time_if_the_topic_keeps_records_longer(
    kept, severity, written_since
) -> None:
    world = World(0)
    busy(world, 1)
    world.lows[world.parent] = len(world.logs[world.parent])
    if written_since:
        busy(world, 1)
    logs = frozenset({world.parent} if kept else ())
    snapshot, at = world.snapshot(), replace(since(world, {}), kept=logs)
    assert doubtful(snapshot, at) == {world.parent}
    (finding,) = lost_findings(snapshot, start_of(snapshot, at))
    assert (finding.severity, finding.first, finding.last) == (severity, 0, world.lows[world.parent] - 1)
    assert ("retention.ms" in finding.message, "without --since" in finding.message) == (kept, not kept)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, True),
        ({"retention.ms": "3000000"}, False),
        ({"retention.ms": "3900000"}, False),
        ({"retention.ms": "-1"}, False),
        ({"retention.bytes": "1000"}, False),
        ({"cleanup.policy": "compact"}, False),
        ({"cleanup.policy": "compact,delete"}, True),
        (None, False),
        (AuthorizationError("no"), False),
    ],
    ids=str,
)
def test_only_settings_that_keep_what_is_younger_tell_that_it_was_older(config, kept, monkeypatch) -> None:
    """A time of an hour ago, and ten minutes by which clocks may differ."""
    world = World(0)
    busy(world, 1)
    world.lows[world.parent] = len(world.logs[world.parent])

    class Brokers:
        def __init__(self, _: Connection) -> None: ...

        def offsets_at(self, places: Collection[PhysicalPartition], _: int) -> dict[PhysicalPartition, int]:
            return {}

        def find(self, topic: str) -> TopicFacts | None:
            if isinstance(config, Exception):
                raise config
            usual = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}
            return None if config is None else TopicFacts(topic, "id", (), usual | config)

    monkeypatch.setattr(job, "ClusterAdmin", Brokers)
    connection = Connection({"bootstrap.servers": "x:1"})
    found = job._since(world.snapshot(), connection, wall_ms() - 3_600_000)
    assert found.kept == ({world.parent} if kept else set())


def test_range_commits_before_the_time_are_in_force() -> None:
    world = World(0)
    commit = RangeCommit("g", world.parent, WHOLE, {0: Position(1, 0)}, "m", 1)
    logged = tuple(LoggedCommit(CommitKey("g", world.parent, WHOLE), commit, LOG, at) for at in (3, 8))
    snapshot = replace(world.snapshot(), commits=logged)
    for first, known, read in (({LOG: 5}, 1, 5), ({}, 2, 9), ({LOG: 0}, 0, 0)):
        start = start_of(snapshot, Since(1, first, {}))
        assert start.commits_read == {0: read}
        assert [new for _, _, new in in_order(snapshot, None, start)] == [False] * known + [True] * (
            2 - known
        )


def test_a_commit_of_a_newer_version_leaves_its_own_group_unproven_and_no_other() -> None:
    world = World(0)
    commit = RangeCommit("g", world.parent, WHOLE, {0: Position(0, 0)}, "m", 1)
    logged = (
        LoggedCommit(CommitKey("g", world.parent, WHOLE), commit, LOG, 3),
        LoggedCommit(CommitKey("newer", world.parent, WHOLE), NewerCommit(WHOLE), LOG, 4),
    )
    snapshot = replace(world.snapshot(), commits=logged)
    start = start_of(snapshot, None)
    (finding,) = [f for f in commit_findings(snapshot, None, start) if f.severity is not Severity.NOTE]
    assert (finding.group, finding.severity) == ("newer", Severity.UNPROVEN)
    assert "a newer kpsplit has written the commit of group newer" in finding.message
    assert all(f.severity is Severity.NOTE for f in commit_findings(snapshot, ["g"], start))


def test_a_group_that_was_forgotten_is_not_missed() -> None:
    """Its commits are in the log until compaction, and the tombstones that withdrew them after it."""
    world = World(0)
    low, high = WHOLE.split_evenly(2)
    world.commit("stays", WHOLE, {0: 0})
    world.commit("half", low, {0: 0})
    world.commit("half", high, {0: 0})
    world.commit("gone", WHOLE, {0: 0})
    gone = replace(world.commits[-1], commit=None, log_offset=4)
    half = replace(world.commits[2], commit=None, log_offset=5)
    snapshot = replace(world.snapshot(), commits=(*world.commits, gone, half))
    found = commit_findings(snapshot, None, start_of(snapshot, None))
    assert [(f.group, f.severity) for f in found] == [("half", Severity.UNPROVEN)]
    assert f"no range commit for {high}" in found[0].message
    assert snapshot.groups() == ("half", "stays")


def test_what_was_committed_of_another_topic_of_the_name_is_not_judged() -> None:
    """It was withdrawn before this one was enrolled, and lies in the log until compaction."""
    world = World(0)
    world.foreign(b"k")
    low, high = WHOLE.split_evenly(2)
    for range_, next_ in ((low, 5000), (high, 4000)):
        world.commit("g", range_, {0: next_})
    for range_ in (low, high):
        world.withdraw("g", range_)
    world.commit("g", WHOLE, {0: 1})
    assert commit_findings(world.snapshot(), None, JudgedFrom()) == []
    world.commit("g", low, {0: 2})
    world.withdraw("g", WHOLE)
    (finding,) = [
        f for f in commit_findings(world.snapshot(), None, JudgedFrom()) if f.severity is Severity.FINDING
    ]
    assert (finding.group, finding.first) == ("g", 2), (
        "a range that others cover is withdrawn, not everything"
    )


@pytest.mark.parametrize(
    ("lower", "upper", "share", "left"),
    [(50, None, 0.5, 50), (None, 40, 0.0, 50), (50, 20, 0.5, 30), (50, 50, 1.0, 0)],
)
def test_a_range_without_a_commit_has_all_of_the_closed_segments_left(lower, upper, share, left) -> None:
    world = World(0)
    world.send(world.anna, b"a", times=50)
    world.split(0, 2)
    for range_, at in zip(WHOLE.split_evenly(2), (lower, upper), strict=True):
        if at is not None:
            world.commit("g", range_, {0: at})
    (one,) = drained(world.snapshot())
    assert (one.group, one.share, one.left) == ("g", share, left)


def test_numbers_are_looked_for_near_the_beginnings_first() -> None:
    world = World(0)
    busy(world)
    place, snapshot = world.parent, world.snapshot()
    at = Since(1, {place: 40}, {place: 30})
    start = start_of(snapshot, at)
    assert start.of(place) == 40
    assert stretches_before(snapshot, start, {0}) == [{place: (30, 40)}, {place: (0, 40)}]
    early = start_of(snapshot, replace(at, near={place: 0}))
    assert stretches_before(snapshot, early, {0}) == [{place: (0, 40)}]
    assert stretches_before(snapshot, start_of(snapshot, None), {0}) == []
    assert snapshot.bounds[place] == LogEnds(0, 200, 200)


def test_what_follows_the_ends_of_the_logs_is_read_also_in_logs_that_are_newer() -> None:
    world = merged()
    first, asked = world.parent, {place: len(log) for place, log in world.logs.items()}
    world.ends_asked({first: asked[first] - 2})
    world.split(world.state.lineage.open_segments()[0].id, 2)
    busy(world, 1)
    found = stretches_after(world.snapshot(), world.snapshot(later=True), {0})
    newer = {place: (0, len(log)) for place, log in world.logs.items() if place not in asked}
    assert newer and found == {first: (asked[first] - 2, len(world.logs[first])), **newer}
    assert stretches_after(world.snapshot(), world.snapshot(later=True), {1}) == {}


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (None, 1),
        (UnreachableError("no broker answers"), 0),
        (UsageError("topic orders is not enrolled: it was returned to plain clients"), 0),
    ],
)
def test_the_cluster_is_looked_at_again_until_time_is_over_or_it_does_not_answer(
    monkeypatch, error, looks
) -> None:
    """Nothing is proven by a look that fails, and nothing is refuted."""
    snapshot = World(0).snapshot()

    class Looking:
        def __init__(self, connection: object, topic: str, partitions: list[int], patience: float) -> None:
            assert (topic, partitions, patience) == (snapshot.topic, [0], 7.0)

        def snapshot(self) -> Snapshot:
            if error is not None:
                raise error
            return snapshot

    monkeypatch.setattr(job, "Gatherer", Looking)
    monkeypatch.setattr(job, "UNDER_WAY_SECONDS", 0.0)
    later = job._later(Connection({"bootstrap.servers": "127.0.0.1:1"}), snapshot, 7.0)
    assert list(later) == [snapshot] * looks


@pytest.mark.parametrize(
    ("partitions", "committed", "message", "hint"),
    [
        (None, False, "no range commit for topic orders", "no group has one"),
        (None, True, "no range commit for topic orders", "groups that have one: readers"),
        ([0], False, "no range commit in orders/0", "no group has one there"),
        ([3, 0, 3], True, "no range commit in orders/0, orders/3", "groups that have one there: readers"),
    ],
)
def test_a_group_is_missed_in_the_partitions_that_were_looked_at(
    monkeypatch, partitions, committed, message, hint
) -> None:
    world = World(0)
    if committed:
        world.commit_all("readers")

    class Looking:
        def __init__(self, *_: object) -> None: ...

        def snapshot(self, *, with_groups: bool) -> Snapshot:
            return world.snapshot()

    monkeypatch.setattr(job, "Gatherer", Looking)
    with pytest.raises(UsageError) as told:
        job.take_snapshot(Connection({"bootstrap.servers": "x:1"}), "orders", partitions, ["billing"])
    assert (told.value.message, told.value.hint) == (f"group billing has {message}", hint)
