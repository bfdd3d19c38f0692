"""``resume``, ``abort`` and ``retire`` without an argument: the only one that is meant, or a list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpsplit.admin import Admin
from kpsplit.admin_cli.call import (
    can_be_aborted,
    can_be_begun_anew,
    can_be_resumed,
    can_be_thawed,
)
from kpsplit.kafka.connection import Connection
from kpsplit.producer.fence_task import roll_back
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, Freeze, Phase
from tests.broker.operating import PAUSE_MS, DiedError, dying_after, enrolled, operating, state_of
from tests.unit.samples import UNSPLIT, committed, fenced, life, split_attempt


@pytest.fixture
def operations(bootstrap: str, kpsplit) -> Iterator[Admin]:
    """Operations on a cluster on which nothing is left to be finished."""
    with operating(bootstrap) as running:
        for state in list(running.view().states.values()):
            if can_be_thawed(state):
                running.resume(state.parent, thaw=True)
            elif can_be_aborted(state):
                running.abort(state.parent, "left over")
            elif can_be_resumed(state):
                running.resume(state.parent)
        yield running


def left_in_the_middle(operations: Admin, parent: PhysicalPartition, step: str) -> None:
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.raises(DiedError):
        operations.run(plan, max_pause_ms=PAUSE_MS, observer=dying_after(step), force=True)


def test_what_is_left_to_be_done_follows_from_the_state() -> None:
    attempt = split_attempt(UNSPLIT, 0, life().split.lineage.segments[0].range.split_evenly(2))
    cut, forward = fenced(UNSPLIT, attempt), committed(UNSPLIT, attempt, {0: 10})
    frozen = apply(UNSPLIT, Freeze("the log is shorter"))
    states = (UNSPLIT, cut, forward, frozen)
    assert [can_be_resumed(s) for s in states] == [False, True, True, False]
    assert [can_be_aborted(s) for s in states] == [False, True, False, False]
    assert [can_be_thawed(s) for s in states] == [False, False, False, True]
    ended = [apply(cut, Abort(attempt.id, by, "its operator is gone")) for by in EndedBy]
    assert [can_be_begun_anew(s) for s in (*states, *ended)] == [False] * 4 + [
        by is EndedBy.TAKEOVER for by in EndedBy
    ]


@pytest.mark.broker
def test_one_operation_is_meant_and_several_are_listed_and_left_alone(
    operations, kpsplit, new_topic, bootstrap
) -> None:
    assert kpsplit.ok("resume").out == "no operation is under way\n"
    assert kpsplit.ok("abort", "-o", "json").json == {"result": None}
    first, second = sorted(enrolled(operations, new_topic(name)) for name in ("first", "second"))
    for parent in (first, second):
        left_in_the_middle(operations, parent, "Prepare")

    for verb in ("resume", "abort"):
        refused = kpsplit(verb, "--yes")
        assert (refused.code, refused.out) == (2, "")
        assert "2 partitions match" in refused.error
        listed = [line.split("#")[0].strip() for line in refused.err.splitlines()]
        assert [
            line for line in listed if line in (f"kpsplit {verb} {first}", f"kpsplit {verb} {second}")
        ] == [
            f"kpsplit {verb} {first}",
            f"kpsplit {verb} {second}",
        ]
    assert kpsplit.ok("abort", str(second), "--yes", "-o", "json").json["result"] is not None

    refused = kpsplit("resume")  # there is no terminal: nobody says that this one is meant
    assert refused.code == 2 and f"kpsplit resume {first}" in refused.err and "--yes" in refused.error
    assert state_of(operations, first).phase is Phase.PREPARING
    assert kpsplit.ok("resume", "--yes", "-o", "json").json["partition"] == first.partition
    assert state_of(operations, first).epoch == 1
    assert state_of(operations, second).epoch == 0
    assert kpsplit.ok("resume", "--thaw").out == "no partition is frozen\n"

    third = enrolled(operations, new_topic("third"))
    left_in_the_middle(operations, third, "Fence")
    left = state_of(operations, third).attempt
    assert left is not None and roll_back(Connection({"bootstrap.servers": bootstrap}), third, left.id)
    told = kpsplit.ok("resume")
    assert told.out == "no operation is under way\n"
    assert f"kpsplit resume {third}    # split by " in told.err


@pytest.mark.broker
def test_retire_without_an_argument_lists_and_deletes_nothing(operations, kpsplit, new_topic) -> None:
    parent = enrolled(operations, new_topic("retired"))
    operations.run(operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
    operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, force=True)
    wanted = {
        "topic": parent.topic,
        "partition": 0,
        "subtopics": [{"name": f"{parent.topic}.split-0-1", "state": "sealed"}],
    }
    assert wanted in kpsplit.ok("retire", "-o", "json").json
    assert f"kpsplit retire {parent}    # {parent.topic}.split-0-1 (sealed)" in kpsplit.ok("retire").out
    for option in ("--yes", "--force"):
        assert kpsplit("retire", option).code == 2
    assert wanted in kpsplit.ok("retire", "-o", "json").json
