"""Operators that die, that are too late, that meet each other: the partition comes to rest, old or new."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Producer

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.errors import CheckFailedError, ConflictError, DeadlineExceededError, FencedError
from kpsplit.kafka import control_log
from kpsplit.kafka.control_log import OperationLog
from kpsplit.producer import fence_task
from kpsplit.producer.fence_task import roll_back
from kpsplit.splitter import claimed_log
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import (
    Abort,
    Commit,
    Cut,
    EndedBy,
    Fence,
    Finish,
    Phase,
    Prepare,
    Result,
    SubTopicState,
)
from kpsplit.splitter.records.control import Claim
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    STATE_PARTITIONS,
    control_partition,
    operator_transactional_id,
    partition_key,
)
from tests.broker.operating import (
    PAUSE_MS,
    DiedError,
    dying_after,
    enrolled,
    operating,
    split,
    state_of,
    write,
    write_error,
)
from tests.broker.topic_config import set_config
from tests.nights import others_at_night

pytestmark = pytest.mark.broker

SPLIT_STEPS = ["Prepare", "CreateSubTopic", "Fence", "AppendMarkers"]


def split_that_dies(operations: Admin, parent: PhysicalPartition, step: str) -> None:
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.raises(DiedError):
        operations.run(plan, max_pause_ms=PAUSE_MS, observer=dying_after(step))


def assert_at_rest(operations: Admin, parent: PhysicalPartition, epoch: int) -> None:
    state = state_of(operations, parent)
    assert (state.phase, state.attempt, state.epoch) == (Phase.STEADY, None, epoch)
    assert not state.lineage.problems()


@pytest.mark.parametrize("step", others_at_night(SPLIT_STEPS, {"Prepare", "AppendMarkers"}.__contains__))
def test_a_split_whose_operator_died_before_its_commit_is_resumed(operations, make_topic, step) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split_that_dies(operations, parent, step)
    with pytest.raises(ConflictError, match=r"a split by .+@.+ pid \d+ is in progress since"):
        split(operations, parent)
    report = operations.resume(parent, max_pause_ms=PAUSE_MS)
    assert report is not None and report.outcome.result is Result.COMMITTED
    assert_at_rest(operations, parent, epoch=1)
    states = [t.state for t in report.state.subtopics]
    assert states == [SubTopicState.RETIRED, SubTopicState.ACTIVE]
    assert operations.resume(parent) is None


def test_what_is_begun_anew_by_resume_is_checked_again(operations, bootstrap, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split_that_dies(operations, parent, "AwaitReady")
    set_config(bootstrap, parent.topic, "min.insync.replicas", "1")
    with pytest.raises(CheckFailedError, match="min.insync.replicas"):
        operations.resume(parent)
    assert_at_rest(operations, parent, epoch=0)
    set_config(bootstrap, parent.topic, "min.insync.replicas", "2")
    report = operations.resume(parent)
    assert report is not None and report.outcome.result is Result.COMMITTED


@pytest.mark.parametrize("step", ["AppendMarkers"])
def test_a_split_whose_operator_died_before_its_commit_is_aborted(
    operations, admin, bootstrap, make_topic, step
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split_that_dies(operations, parent, step)
    outcome = operations.abort(parent, "not today")
    assert outcome is not None
    assert (outcome.result, outcome.ended_by) == (Result.ROLLED_BACK, EndedBy.REQUEST)
    assert_at_rest(operations, parent, epoch=0)
    assert write_error(bootstrap, parent) is None
    assert operations.abort(parent, "again") is None
    assert operations.resume(parent) is None


def test_what_an_attempt_leaves_behind_is_retired_later(
    operations, bootstrap, admin, make_topic, monkeypatch
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    name = f"{parent.topic}.split-0-1"
    split_that_dies(operations, parent, "AwaitReady")

    def cannot(*_: object) -> None:
        raise CheckFailedError("not now")

    with monkeypatch.context() as patched:
        patched.setattr("kpsplit.control.subtopics.PartitionTopics.delete_abandoned", cannot)
        operations.abort(parent, "not today")
    assert state_of(operations, parent).subtopics[0].state is SubTopicState.ABANDONED
    assert [c.name for c in operations.doctor() if not c.ok and name in c.message] == ["sub-topics"]
    write(bootstrap, name, 1, partition=0)
    with pytest.raises(CheckFailedError, match="holds records"):
        operations.retire(parent)
    admin.delete_topics([name])[name].result(30)
    assert operations.retire(parent) == [name]
    assert state_of(operations, parent).subtopics[0].state is SubTopicState.RETIRED


def test_a_committed_split_only_goes_forward(operations, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split_that_dies(operations, parent, "Commit")
    with pytest.raises(ConflictError, match="committed and can only go forward"):
        operations.abort(parent, "too late")
    report = operations.resume(parent)
    assert report is not None and report.outcome.result is Result.COMMITTED
    assert_at_rest(operations, parent, epoch=1)


@pytest.mark.parametrize(
    "step", others_at_night(["CoLocateLeaders", "Commit"], lambda step: step == "Commit")
)
def test_a_merge_whose_operator_died_is_resumed(operations, bootstrap, make_topic, step) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split(operations, parent, 2)
    with pytest.raises(DiedError):
        operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, observer=dying_after(step))
    assert operations.resume(parent) is not None
    assert_at_rest(operations, parent, epoch=2)
    assert write_error(bootstrap, parent) is None
    phantom = PhysicalPartition(f"{parent.topic}.split-0-1", 0)
    assert write_error(bootstrap, phantom) is not None


KILLED = """
import os, sys
from kpsplit.kafka.connection import Connection
from kpsplit.admin import Admin
from kpsplit.producer import fence_task
from kpsplit.producer.fence_task import roll_back
from kpsplit.splitter.lineage import PhysicalPartition
with Admin(Connection({"bootstrap.servers": sys.argv[1]})) as operations:
    plan = operations.plan_split(PhysicalPartition(sys.argv[2], 0), 2, even=True)
    operations.run(plan, max_pause_ms=5000, observer=lambda s: os._exit(9) if s.name == sys.argv[3] else None)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["Fence"])
def test_a_killed_process_leaves_what_a_resume_finishes(operations, bootstrap, make_topic, step) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    killed = subprocess.run([sys.executable, "-c", KILLED, bootstrap, parent.topic, step], timeout=180)
    assert killed.returncode == 9
    assert operations.resume(parent) is not None
    assert_at_rest(operations, parent, epoch=1)


def test_an_interrupted_operator_rolls_back(operations, admin, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))

    def interrupt(step) -> None:
        if step.name == "Fence":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operations.run(operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, observer=interrupt)
    assert_at_rest(operations, parent, epoch=0)
    assert f"{parent.topic}.split-0-1" not in admin.list_topics(timeout=10).topics


def test_of_two_operators_the_second_is_refused_while_the_first_is_at_work(operations, bootstrap, make_topic):
    parent = enrolled(operations, make_topic(partitions=1))
    refused = []
    with operating(bootstrap) as second:
        plan = second.plan_split(parent, 2, even=True)

        def meanwhile(step) -> None:
            if step.name == "AwaitReady":
                with pytest.raises(ConflictError, match="in progress since") as caught:
                    second.run(plan, max_pause_ms=PAUSE_MS)
                refused.append(caught.value)

        state = operations.run(
            operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, observer=meanwhile
        ).state
        assert len(refused) == 1 and state.epoch == 1
        with pytest.raises(ConflictError, match="is at epoch 1; the plan was made for epoch 0"):
            second.run(plan, max_pause_ms=PAUSE_MS)


def test_an_operator_whose_attempt_was_aborted_meanwhile_is_fenced(operations, bootstrap, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    with operating(bootstrap) as second:

        def meanwhile(step) -> None:
            if step.name == "AwaitReady":
                second.abort(parent, "by somebody else")

        with pytest.raises(FencedError):
            operations.run(
                operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, observer=meanwhile
            )
    assert_at_rest(operations, parent, epoch=0)


def test_a_claim_fences_the_one_before(operations, make_topic, monkeypatch) -> None:
    monkeypatch.setattr(claimed_log, "TURN_SECONDS", 0.5)
    parent = enrolled(operations, make_topic(partitions=1))
    attempt = operations.plan_split(parent, 2, even=True).attempt("zombie", PAUSE_MS)
    older, newer = (OperationLog(operations._session.connection, parent) for _ in range(2))
    state = older.claim(Deadline(120))
    newer.claim(Deadline(120))
    with pytest.raises(FencedError):
        older.record(state, Prepare(attempt), Deadline(120))
    prepared = newer.record(state, Prepare(attempt), Deadline(120))
    newer.record(prepared, Abort(attempt.id, EndedBy.OPERATOR, "done"), Deadline(120))
    older.close()
    newer.close()
    assert_at_rest(operations, parent, epoch=0)


def test_a_claim_that_led_to_nothing_is_withdrawn(operations, make_topic, monkeypatch) -> None:
    monkeypatch.setattr(claimed_log, "turn_seconds", lambda _: 3600.0)
    parent = enrolled(operations, make_topic(partitions=1))
    for _ in range(2):
        log = OperationLog(operations._session.connection, parent)
        log.claim(Deadline(60))
        log.close()


def test_who_gives_up_after_its_turn_withdraws_only_its_own_claim(operations, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    slow, next_one = (OperationLog(operations._session.connection, parent) for _ in range(2))
    revision = slow.claim(Deadline(60)).revision
    next_one.peek(Deadline(60))
    turn = Claim("next", revision, 2)
    next_one._announce(turn, Deadline(60))
    slow.close()
    assert turn in next_one._announced(Deadline(60))
    next_one.close()


def test_a_thaw_and_a_freeze_fence_nobody_who_is_at_work(operations, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    attempt = operations.plan_split(parent, 2, even=True).attempt("at work", PAUSE_MS)
    with closing(OperationLog(operations._session.connection, parent)) as at_work:
        state = at_work.record(at_work.claim(Deadline(60)), Prepare(attempt), Deadline(60))
        with operations._on(parent) as ours:
            assert ours.freeze("a look at an older state") is False
        assert operations.resume(parent, thaw=True) is None
        at_work.record(state, Abort(attempt.id, EndedBy.OPERATOR, "done"), Deadline(60))
    assert_at_rest(operations, parent, epoch=0)


def test_an_operator_that_meets_anothers_claim_waits_and_leaves_its_attempt_alone(
    operations, bootstrap, make_topic
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    attempt = operations.plan_split(parent, 2, even=True).attempt("first", PAUSE_MS)
    with operating(bootstrap) as second, ThreadPoolExecutor(1) as pool:
        plan = second.plan_split(parent, 2, even=True)
        first = OperationLog(operations._session.connection, parent)
        state = first.claim(Deadline(120))
        meeting = pool.submit(second.run, plan, max_pause_ms=PAUSE_MS)
        with pytest.raises(TimeoutError):
            meeting.result(timeout=2.0)
        state = first.record(state, Prepare(attempt), Deadline(120))
        with pytest.raises(ConflictError, match="a split by first is in progress") as caught:
            meeting.result(timeout=60)
        assert not isinstance(caught.value, FencedError) and caught.value.changed is False
        state = first.record(state, Fence(attempt.id, "some-id"), Deadline(120))
        first.record(state, Abort(attempt.id, EndedBy.OPERATOR, "done"), Deadline(120))
        first.close()
    assert_at_rest(operations, parent, epoch=0)


def test_of_many_that_take_over_at_once_one_does_and_none_is_fenced(
    operations, make_topic, monkeypatch
) -> None:
    """Whose turn it is counts here, not whether a machine makes the claim within a turn."""
    monkeypatch.setattr(claimed_log, "turn_seconds", lambda _: 3600.0)
    parent = enrolled(operations, make_topic(partitions=1))
    split_that_dies(operations, parent, "Fence")
    attempt = state_of(operations, parent).attempt
    assert attempt is not None
    with ThreadPoolExecutor(12) as pool:
        ends = [pool.submit(roll_back, operations._session.connection, parent, attempt.id) for _ in range(12)]
    assert [end.exception() for end in ends] == [None] * 12
    assert sum(end.result() for end in ends) == 1
    assert_at_rest(operations, parent, epoch=0)


@contextmanager
def strangers_transaction(operations: Admin, parent: PhysicalPartition) -> Iterator[Producer]:
    """The operator of another partition is in the middle of a transaction in the same control partition."""
    other = PhysicalPartition(parent.topic, parent.partition + STATE_PARTITIONS)
    stranger = operations._session.connection.open_producer(
        "stranger", transactional_id=operator_transactional_id(other), transaction_timeout_ms=60_000
    )
    stranger.init_transactions(60)
    stranger.begin_transaction()
    place = control_partition(other)
    stranger.produce(CONTROL_TOPIC, b"of an open transaction", partition_key(other), place)
    assert stranger.flush(60) == 0
    yield stranger
    stranger.abort_transaction(60)


@pytest.mark.nightly
def test_a_commit_that_a_strangers_transaction_hides_is_never_rolled_back(
    operations, make_topic, monkeypatch
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    attempt = operations.plan_split(parent, 2, even=True).attempt("slow", PAUSE_MS)
    log = OperationLog(operations._session.connection, parent)
    state = log.claim(Deadline(120))
    for event in (Prepare(attempt), Fence(attempt.id, "some-id")):
        state = log.record(state, event, Deadline(120))
    monkeypatch.setattr(control_log, "READ_BACK_SECONDS", 0.5)
    monkeypatch.setattr(fence_task, "CLAIM_SECONDS", 3.0)
    with strangers_transaction(operations, parent):
        with pytest.raises(DeadlineExceededError):  # acknowledged; it cannot be read back
            log.record(state, Commit(attempt.id, (Cut(0, 0, 0),)), Deadline(3))
        assert state_of(operations, parent).phase is Phase.FENCED, "readers do not see the commit yet"
        with pytest.raises(DeadlineExceededError):
            roll_back(operations._session.connection, parent, attempt.id)
    assert not roll_back(operations._session.connection, parent, attempt.id)
    state = log.claim(Deadline(120))
    assert (state.phase, state.epoch) == (Phase.COMMITTED, 1)
    log.record(state, Finish(attempt.id), Deadline(120))
    log.close()
    assert_at_rest(operations, parent, epoch=1)


def test_a_truncated_log_freezes_the_partition_until_a_human_thaws_it(operations, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    attempt = operations.plan_split(parent, 2, even=True).attempt("somebody", PAUSE_MS)
    log = OperationLog(operations._session.connection, parent)
    state = log.claim(Deadline(120))
    for event in (
        Prepare(attempt),
        Fence(attempt.id, "some-id"),
        Commit(attempt.id, (Cut(0, 1000, 0),)),  # nothing is there: as if the log had lost it
        Finish(attempt.id),
    ):
        state = log.record(state, event, Deadline(120))
    log.close()
    with pytest.raises(CheckFailedError, match="it was truncated"):
        operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, force=True)
    assert state_of(operations, parent).phase is Phase.FROZEN
    with pytest.raises(ConflictError, match="is frozen"):
        operations.resume(parent)
    assert any(c.name == "frozen" and str(parent) in c.message for c in operations.doctor())
    assert operations.resume(parent, thaw=True) is None
    assert state_of(operations, parent).phase is Phase.STEADY


def test_the_merge_goes_on_when_leaders_cannot_be_moved(operations, make_topic, monkeypatch) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split(operations, parent, 2)

    def refused(*_: object) -> None:
        from kpsplit.kafka.kafka_python import NotExpressibleError

        raise NotExpressibleError("oauth_cb")

    monkeypatch.setattr("kpsplit.control.subtopics.reassign", refused)
    told = []
    operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, observer=told.append)
    assert "leaders stay where they are: kafka-python cannot be given oauth_cb" in {
        s.detail for s in told if s.name == "Leaders"
    }
    assert state_of(operations, parent).epoch == 2
