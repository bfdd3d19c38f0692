"""The engine, edge by edge: a coordinator that the test leads, an application that is the test."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.config import RevocationPolicy
from kpsplit.consumer.group.membership import Patience, State
from kpsplit.consumer.session import ConsumerSession
from kpsplit.consumer.slots.assigned import SlotStart
from kpsplit.errors import FencedError, FutureVersionError, UnreachableError
from kpsplit.splitter.reading import Cursor
from tests.unit import lane_samples
from tests.unit.engine_world import KEYS, TOPIC, World, record, slot


@pytest.fixture
def world():
    with World() as one:
        one.subscribe()
        yield one


def stable(world, *indexes):
    """Have the member own some slots."""
    world.coordinator.give(*indexes)
    wanted = set(map(slot, indexes))
    world.polls(lambda: world.state is State.STABLE and wanted <= set(world.reader.owned), "slots")


def handed_out(world, count):
    """Write records and have them handed out; return them."""
    world.reader.write(*[record(world.reader.written + n) for n in range(count)])
    return world.take(count)


def test_slots_that_arrive_are_looked_up_told_and_read(world):
    stable(world, 0, 1)
    assert world.told == [("assign", [0])]
    assert set(world.reader.owned) == {slot(0), slot(1)}
    assert world.stats()["rebalances"] == 1


def test_slots_whose_look_up_is_ended_by_an_internal_error_are_looked_up_again(world):
    """What ended it may pass: the process could start no thread, or had no memory."""
    real, errors = world.group_offsets.starts, [RuntimeError("can't start new thread")]

    def starts(wanted, me):
        if errors:
            raise errors.pop()
        return real(wanted, me)

    world.group_offsets.starts = starts
    world.coordinator.give(0)
    (event,) = world.polls(lambda: slot(0) in world.reader.owned, "the slot")
    assert "internal error: RuntimeError" in event.error().str()


def test_more_slots_of_a_partition_that_the_application_knows_come_without_a_word(world):
    stable(world, 0)
    stable(world, 1)
    assert world.told == [("assign", [0])]


def test_a_slot_is_let_go_once_its_record_is_processed_and_committed(world):
    stable(world, 0, 1)
    handed_out(world, 3)
    world.coordinator.take(0, 1)
    world.until(lambda: world.state is State.PREPARE_REVOCATION, "the pause")
    assert world.coordinator.held() == {0, 1}
    assert world.group_offsets.commits == []
    world.polls(lambda: not world.coordinator.held(), "the hand-over")
    assert world.group_offsets.commits == [{slot(0).range: 3, slot(1).range: 3}]
    assert world.told[-1] == ("revoke", [0])
    assert world.count("slots_handed_over") == 2


def test_a_slot_is_let_go_although_its_record_was_given_another_key_and_value(world):
    """DeserializingConsumer puts objects in the place of keys and values."""
    stable(world, 0, 1)
    world.reader.write(record(0), record(1))
    [first] = world.take(1)
    first.set_key("text")
    first.set_value(7)
    world.coordinator.take(0)
    world.until(lambda: world.state is State.PREPARE_REVOCATION, "the pause")
    world.until(lambda: not world.buffer.waiting_bytes(), "the other record to be taken back")
    assert world.coordinator.held() == {0, 1}, "the record is being worked on"
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert world.group_offsets.commits == [{slot(0).range: 1}]
    assert world.count("internal_errors") == 0


@pytest.mark.parametrize("place", ["release", "cursor", "dropped"])
def test_slots_whose_revocation_fails_are_lost_and_the_engine_goes_on(world, place, monkeypatch):
    stable(world, 0, 1)
    handed_out(world, 1)
    before = getattr(world.buffer, place)

    def fails(*_):
        monkeypatch.setattr(world.buffer, place, before)
        raise TypeError("a bug")

    monkeypatch.setattr(world.buffer, place, fails)
    world.coordinator.take(0)
    world.polls(lambda: world.state is State.STABLE and world.count("slots_lost"), "the loss")
    assert world.coordinator.held() == {1}
    assert world.count("internal_errors") == 1
    assert set(world.stats()["slots"]) == {str(slot(1))}
    stable(world, 0)
    assert world.count("slots_lost") == 1


@pytest.mark.parametrize("edge", ["lose", "take"])
def test_a_member_that_cannot_even_lose_slots_holds_them_no_more_and_leaves(world, edge, monkeypatch):
    stable(world, 0, 1)
    before = world.buffer.dropped

    def fails(*_):
        raise TypeError("a bug")

    monkeypatch.setattr(world.buffer, "dropped", fails)
    getattr(world.coordinator, edge)(0)
    world.polls(lambda: world.count("internal_errors") and world.coordinator.left, "leaving")
    monkeypatch.setattr(world.buffer, "dropped", before)
    world.polls(lambda: world.coordinator.topics and not world.engine.membership.away, "coming back")
    stable(world, 0, 1)


def test_a_member_that_cannot_take_slots_that_arrive_leaves_and_comes_back(world, monkeypatch):
    assigned_slots = world.slots
    before = assigned_slots.add

    def fails(_):
        monkeypatch.setattr(assigned_slots, "add", before)
        raise TypeError("a bug")

    monkeypatch.setattr(assigned_slots, "add", fails)
    world.coordinator.give(0)
    world.until(lambda: world.coordinator.left, "leaving")
    assert (world.count("internal_errors"), world.count("left_group")) == (1, 1)
    world.polls(lambda: world.coordinator.topics and not world.engine.membership.away, "coming back")
    stable(world, 0)


def test_slots_that_stay_are_read_and_handed_out_during_a_hand_over(world):
    stable(world, 0, 1, 2, 3)
    handed_out(world, 1)
    world.inside["revoke"] = lambda: seen.extend(handed_out_inside())
    seen = []

    def handed_out_inside():
        del world.inside["revoke"]  # when the member closes, no slot stays
        before = world.reader.written
        world.reader.write(*[record(before + n) for n in range(50)])
        world.until(world.fetch, "records of slots that stay")
        return [before]

    world.coordinator.take(0)
    world.polls(lambda: world.coordinator.held() == {1, 2, 3}, "the hand-over")
    assert seen
    assert world.told[-2:] == [("revoke", [0]), ("assign", [0])]
    world.until(lambda: world.state is State.STABLE, "the others to go on")


def test_a_revocation_during_an_assignment_takes_what_was_on_its_way(world):
    world.group_offsets.starts_gate.clear()
    world.coordinator.give(0, 1)
    world.until(lambda: world.group_offsets.asked, "the look-up")
    assert world.state is State.ASSIGNING_PARTITIONS
    world.coordinator.take(0)
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert world.state is State.ASSIGNING_PARTITIONS
    world.group_offsets.starts_gate.set()
    world.polls(lambda: world.state is State.STABLE, "the other slot")
    assert set(world.reader.owned) == {slot(1)}
    assert world.told == [("assign", [0])]


def test_lost_slots_are_dropped_without_a_commit_and_the_application_is_told(world):
    stable(world, 0, 1)
    handed_out(world, 3)
    world.reader.write(record(3), record(4))
    world.until(world.fetch, "records in the buffer")
    world.coordinator.lose(0, 1)
    world.until(lambda: world.state is State.PREPARING_REBALANCE, "the loss")
    assert world.polls(lambda: world.told[-1][0] == "lost", "on_lost") == []
    assert world.poll() is None
    assert world.group_offsets.commits == []
    assert world.count("slots_lost") == 2
    stable(world, 0)
    assert [name for name, _ in world.told] == ["assign", "lost", "assign"]


def test_a_slot_that_comes_back_while_on_assign_waits_does_not_begin_where_it_began_before(world):
    world.coordinator.give(0)
    world.until(lambda: world.events, "on_assign")
    world.coordinator.lose(0)
    world.until(lambda: world.count("slots_lost"), "the loss")
    world.group_offsets.starts_gate.clear()
    world.coordinator.give(0)
    world.until(lambda: world.group_offsets.asked == 2, "the second look-up")
    owner_of_before = SlotStart((Cursor(slot(0).range, {0: 500}),), committed=True)
    world.group_offsets.starts = lambda *_: [owner_of_before]
    world.polls(lambda: not world.events and not world.engine.initializer._announced, "on_assign of before")
    assert world.reader.owned == {}
    world.coordinator.lose(0)
    world.polls(lambda: world.count("slots_lost") == 2, "the second loss")
    world.group_offsets.starts_gate.set()
    world.coordinator.give(0)
    world.polls(lambda: world.reader.owned, "the slot")
    assert world.reader.owned == {slot(0): owner_of_before.pieces[0]}


def test_a_commit_of_a_member_that_was_fenced_is_counted_and_changes_nothing(world):
    stable(world, 0)
    handed_out(world, 2)
    world.group_offsets.failures.append(FencedError("fenced"))
    world.coordinator.take(0)
    world.polls(lambda: not world.coordinator.held(), "the hand-over")
    assert world.group_offsets.commits == []
    assert world.count("commits_rejected") == 1


def test_a_commit_is_repeated_with_newer_metadata_while_the_member_belongs_to_the_group(world):
    stable(world, 0)
    handed_out(world, 2)
    world.group_offsets.failures.extend([FencedError("moved on", retriable=True)] * 2)
    world.coordinator.generation = 7
    world.coordinator.take(0)
    world.polls(lambda: not world.coordinator.held(), "the hand-over")
    assert world.group_offsets.commits == [{slot(0).range: 2}]
    assert world.group_offsets.generations == [7, 7, 7]


def test_a_commit_is_begun_and_answered_at_once_however_long_the_engine_rests(world, monkeypatch):
    stable(world, 0)
    handed_out(world, 2)
    world.buffer.wait(0)
    monkeypatch.setattr("kpsplit.consumer.engine.SLICE_SECONDS", 3600.0)
    world.until(lambda: world.engine._chores_at > monotonic() + 1000, "the engine to rest for an hour")
    committed: Future[list[TopicPartition]] = Future()

    def commit():
        world.engine.committer.ask(world.slots.changed(world.slots), committed)

    world.engine.ask(commit)
    assert [part.offset for part in committed.result(lane_samples.PATIENCE)] == [2]
    assert world.group_offsets.commits == [{slot(0).range: 2}]


def test_an_executor_may_answer_as_soon_as_the_engine_knows_it(monkeypatch):
    """It may have a job already when the engine is made."""

    class Eager(BrokerExecutor):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "on_answer":
                value()

    monkeypatch.setattr("tests.unit.engine_world.BrokerExecutor", Eager)
    with World() as world:
        world.subscribe()
        stable(world, 0)


def test_a_hand_over_does_not_wait_for_an_automatic_commit_to_be_repeated(world):
    """Its slots are committed alone; what stays goes along with the next automatic commit."""
    stable(world, 0, 1)
    handed_out(world, 2)
    world.buffer.wait(0)
    offsets, committer = world.group_offsets, world.engine.committer

    def commit():
        committer.ask(world.slots.changed(world.slots))

    offsets.failures.append(FencedError("moved on", retriable=True))
    offsets.commit_gate.clear()
    world.engine.ask(commit).result(10)
    world.until(lambda: offsets.begun, "the automatic commit to be sent")
    world.coordinator.take(0)
    world.polls(lambda: world.state is State.PARTITION_REVOKED, "the hand-over to ask for its commit")
    offsets.commit_gate.set()
    world.polls(lambda: not world.coordinator.held() - {1}, "the hand-over")
    assert offsets.commits == [{slot(0).range: 2}]
    world.engine.ask(commit).result(10)
    world.until(lambda: len(offsets.commits) == 2, "the next automatic commit")
    assert offsets.commits[1] == {slot(1).range: 2}


def test_an_automatic_commit_that_falls_due_in_a_hand_over_waits_for_the_next_interval(world):
    """The group is changing and may refuse it; brokers would be busy with it while the next owner starts."""
    stable(world, 0, 1)
    handed_out(world, 2)
    world.buffer.wait(0)
    offsets, committer = world.group_offsets, world.engine.committer

    def due():
        committer._next = 0.0

    def taken():
        due()
        world.coordinator.take(0)

    offsets.commit_gate.clear()
    world.engine.call(taken)
    world.polls(lambda: offsets.begun, "a commit")
    assert world.state is State.PARTITION_REVOKED  # it is that of the hand-over
    world.engine.call(due)
    offsets.commit_gate.set()
    world.polls(lambda: not world.coordinator.held() - {1}, "the hand-over")
    turns = world.pulse[0] + 20
    world.polls(lambda: world.pulse[0] > turns, "turns")
    assert (offsets.begun, offsets.commits) == (1, [{slot(0).range: 2}])


def test_a_group_is_joined_while_the_view_is_read_and_no_slot_begins_before_all_of_it_is():
    with World() as world:
        world.metadata.ready = world.metadata.is_fresh = False
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: world.state is State.ASSIGNING_PARTITIONS, "the slot")
        turns = world.pulse[0] + 50
        world.polls(lambda: world.pulse[0] > turns, "turns")
        assert not world.group_offsets.asked
        world.metadata.ready = world.metadata.is_fresh = True
        world.polls(lambda: world.reader.owned, "the slot to be read")


@pytest.mark.parametrize(
    "change",
    [{"settled": False}, {"former_slots": 2}, {"returning": True}],
    ids=["new", "changing", "leaving"],
)
def test_a_topic_that_is_shared_in_another_way_soon_is_subscribed_to_when_all_of_the_view_is_read(change):
    with World() as world:
        view, known = world.metadata.view, world.metadata.view.enrolments[TOPIC]
        world.metadata.ready = False
        assert world.metadata.may_subscribe([TOPIC])
        assert not world.metadata.may_subscribe([TOPIC, "plain"])
        view.enrolments[TOPIC] = replace(known, **change)
        assert not world.metadata.may_subscribe([TOPIC])
        world.metadata.ready = True
        assert world.metadata.may_subscribe([TOPIC])


def test_a_member_gets_ready_to_commit_while_it_joins_its_group(world):
    world.until(lambda: world.group_offsets.connected, "the transactional client")
    assert not world.coordinator.held()


def test_a_commit_that_fails_does_not_keep_slots(world):
    stable(world, 0)
    handed_out(world, 2)
    world.group_offsets.failures.append(UnreachableError("no brokers"))
    world.coordinator.take(0)
    world.polls(lambda: not world.coordinator.held(), "the hand-over")
    assert world.count("commits_failed") == 1


@pytest.mark.parametrize("name", ["assign", "revoke", "lost"])
def test_a_callback_that_raises_comes_out_of_poll_and_the_engine_goes_on(world, name):
    def fail():
        raise RuntimeError("from a callback")

    world.inside[name] = fail
    world.coordinator.give(0)
    if name != "assign":
        world.polls(lambda: world.state is State.STABLE, "the slot")
        (world.coordinator.take if name == "revoke" else world.coordinator.lose)(0)
    with pytest.raises(RuntimeError, match="from a callback"):
        world.polls(lambda: False, "the callback")
    world.inside.clear()
    if name == "assign":
        world.polls(lambda: world.state is State.STABLE, "the slot")
    else:
        world.polls(lambda: not len(world.slots), "the end of it")
        stable(world, 1)
    assert handed_out(world, 1)


@pytest.mark.parametrize(("policy", "answers"), [("leave", [True]), ("retry-then-leave", [False, True])])
def test_a_policy_says_how_often_the_time_of_a_revocation_may_pass(policy, answers):
    patience = Patience(RevocationPolicy(policy), 0.0)
    assert [patience.over() for _ in answers] == answers


def test_who_retries_waits_for_ever():
    patience = Patience(RevocationPolicy.RETRY, 0.0)
    assert not any(patience.over() for _ in range(5))


@pytest.mark.parametrize("policy", ["leave", "retry-then-leave"])
def test_a_callback_that_takes_too_long_makes_the_member_leave(policy):
    settings = {"kpsplit.revocation.policy": policy, "kpsplit.revocation.timeout.ms": 100}
    with World(**settings) as world:
        world.subscribe()
        stable(world, 0, 1)
        handed_out(world, 2)
        assert world.poll() is None  # so the last record is processed before the time of the revocation runs
        hanging = threading.Event()
        world.inside["revoke"] = lambda: hanging.wait(20)
        world.coordinator.take(0)
        events = []
        polling = threading.Thread(target=lambda: events.extend(world.polls(hanging.is_set, "the callback")))
        polling.start()
        world.until(lambda: world.coordinator.left, "the member to leave")
        assert world.state in (State.LOST, State.UNSUBSCRIBED)
        assert world.group_offsets.commits == [{slot(0).range: 2, slot(1).range: 2}]
        assert world.count("left_group") == 1
        hanging.set()
        polling.join()
        world.inside.clear()
        events += world.polls(lambda: world.coordinator.topics and world.told[-1][0] == "lost", "coming back")
        assert [m.error().code() for m in events if m.error()] == [KafkaError._MAX_POLL_EXCEEDED]
        stable(world, 2)


def test_a_callback_that_takes_long_is_waited_for_where_the_policy_says_so():
    settings = {"kpsplit.revocation.policy": "retry", "kpsplit.revocation.timeout.ms": 20}
    with World(**settings) as world:
        world.subscribe()
        stable(world, 0)
        hanging = threading.Event()
        threading.Timer(0.3, hanging.set).start()
        world.inside["revoke"] = lambda: hanging.wait(20)
        world.coordinator.take(0)
        world.polls(lambda: not world.coordinator.held(), "the hand-over")
        assert world.coordinator.left == 0
        assert world.count("slots_handed_over") == 1


def test_an_application_that_stops_polling_leaves_and_comes_back_when_it_polls():
    with World(max_poll_interval_ms=150) as world:
        world.subscribe()
        stable(world, 0)
        handed_out(world, 2)
        world.until(lambda: world.coordinator.left, "the member to leave")
        world.until(lambda: world.state is State.UNSUBSCRIBED, "the end of it")
        assert not world.coordinator.topics
        assert world.group_offsets.commits == [{slot(0).range: 1}]
        world.polls(lambda: world.coordinator.topics, "coming back")
        assert world.told[-1] == ("lost", [0])
        stable(world, 0)


def test_a_member_that_gave_up_a_part_of_its_slots_leaves_although_the_application_polls_on():
    settings = {"kpsplit.revocation.policy": "leave", "kpsplit.revocation.timeout.ms": 50}
    with World(**settings) as world:
        world.subscribe()
        stable(world, 0, 1)
        handed_out(world, 2)
        unassign = world.coordinator.incremental_unassign

        def unassign_when_everything_is_told(parts):
            world.until(lambda: not world.events, "the application to hear of it")
            unassign(parts)

        world.coordinator.incremental_unassign = unassign_when_everything_is_told
        world.group_offsets.commit_gate.clear()
        world.coordinator.take(1)
        world.polls(lambda: world.count("left_group"), "the member to give up")
        world.group_offsets.commit_gate.set()
        world.polls(lambda: world.coordinator.left and world.coordinator.topics, "coming back")
        assert world.coordinator.held() == set()
        stable(world, 0, 1)


def test_commits_that_take_longer_than_their_interval_do_not_keep_slots():
    with World(auto_commit_interval_ms=1) as world:
        world.subscribe()
        stable(world, 0, 1)
        handed_out(world, 1)
        world.group_offsets.seconds = 0.02
        world.coordinator.take(1)

        def handed_over():
            if world.reader.written < len(KEYS):
                world.reader.write(record(world.reader.written))
            return world.coordinator.held() == {0}

        world.polls(handed_over, "the hand-over")
        assert world.reader.written < len(KEYS)
        assert world.count("left_group") == 0


def test_slots_are_not_let_go_inside_their_hand_over():
    """Two threads call unassign(): the second one used to lose the slots that the first one hands over."""
    with World() as world:
        calls = world.calls
        world.engine.ask(lambda: calls.assign_slots([(TOPIC, 0, 0)], ())).result(10)
        world.polls(lambda: world.reader.owned, "the slot")
        handed_out(world, 2)
        first = world.engine.ask(lambda: calls.let_go(list(world.slots)))
        world.until(lambda: world.state is State.PREPARE_REVOCATION, "the pause")
        second = world.engine.ask(lambda: calls.let_go(list(world.slots)))
        with pytest.raises(KafkaException, match="being handed over"):
            second.result(10)
        world.polls(first.done, "the hand-over")
        assert first.exception() is None
        assert world.group_offsets.commits == [{slot(0).range: 2}]
        assert (world.count("slots_lost"), world.count("internal_errors")) == (0, 0)
        assert world.state is State.UNSUBSCRIBED


def close_while(world, state):
    world.until(lambda: world.state is state, str(state))
    world.close()
    assert world.state is State.CLOSED
    assert world.coordinator.closed


def test_close_when_nothing_was_subscribed():
    with World() as world:
        close_while(world, State.UNSUBSCRIBED)


def test_close_while_waiting_for_the_coordinator(world):
    close_while(world, State.PREPARING_REBALANCE)


def test_close_while_slots_are_looked_up(world):
    world.group_offsets.starts_gate.clear()
    world.coordinator.give(0)
    world.until(lambda: world.group_offsets.asked, "the look-up")
    threading.Timer(0.05, world.group_offsets.starts_gate.set).start()
    close_while(world, State.ASSIGNING_PARTITIONS)
    assert world.group_offsets.commits == []


def test_close_commits_what_was_handed_out_and_calls_on_revoke(world):
    stable(world, 0, 1)
    handed_out(world, 3)
    close_while(world, State.STABLE)
    assert world.group_offsets.commits == [{slot(0).range: 3, slot(1).range: 3}]
    assert world.told[-1] == ("revoke", [0])


def test_close_while_records_of_leaving_slots_are_worked_on(world):
    stable(world, 0)
    handed_out(world, 2)
    world.coordinator.take(0)
    world.until(lambda: world.state is State.PREPARE_REVOCATION, "the pause")
    world.close()
    assert world.state is State.CLOSED
    assert world.group_offsets.commits == [{slot(0).range: 2}]


def test_close_while_a_callback_waits_for_the_application(world):
    stable(world, 0)
    world.coordinator.take(0)
    world.until(lambda: world.state is State.REVOKING_PARTITION, "the callback")
    world.close()
    assert world.state is State.CLOSED
    assert world.told[-1] == ("revoke", [0])


def test_close_while_a_commit_is_under_way(world):
    stable(world, 0)
    handed_out(world, 2)
    world.group_offsets.commit_gate.clear()
    world.coordinator.take(0)
    world.polls(lambda: world.state is State.PARTITION_REVOKED, "the commit")
    threading.Timer(0.05, world.group_offsets.commit_gate.set).start()
    world.close()
    assert world.state is State.CLOSED
    assert world.group_offsets.commits == [{slot(0).range: 2}]


def test_close_after_a_loss():
    with World(max_poll_interval_ms=100) as world:
        world.subscribe()
        stable(world, 0)
        world.until(lambda: world.state is State.UNSUBSCRIBED, "the member to leave")
        world.close()
        assert world.state is State.CLOSED


def test_a_newer_format_stops_everything_and_poll_says_so(world):
    stable(world, 0)
    world.reader.write(record(0), record(1))
    world.until(world.fetch, "records in the buffer")
    world.metadata.failure = FutureVersionError("newer")
    world.until(lambda: world.engine.events.fatal is not None, "the engine to stop")
    found = world.polls(lambda: not world.events, "the event")
    assert [m.error() is not None for m in found] == [True]
    assert world.poll() is None


def test_trouble_of_one_duty_keeps_none_of_the_others_from_being_done(world):
    stable(world, 0)
    world.metadata.failure = UnreachableError("the control topic cannot be reached")
    world.until(lambda: "cannot be reached" in (world.stats()["trouble"] or ""), "the trouble to be told")
    assert handed_out(world, 3)


def test_what_is_handed_over_is_committed_again_where_that_fails_at_first(world):
    """Else the next owner would be handed out all of it again."""
    stable(world, 0, 1)
    handed_out(world, 3)
    world.group_offsets.failures.extend(
        [UnreachableError("no coordinator"), UnreachableError("no coordinator")]
    )
    world.coordinator.take(0)
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert world.group_offsets.begun == 3
    assert world.group_offsets.commits == [{slot(0).range: 3}]


def test_a_hand_over_does_not_wait_for_commits_that_fail_all_the_time(world):
    stable(world, 0, 1)
    handed_out(world, 3)
    world.group_offsets.failures.extend(UnreachableError("no coordinator") for _ in range(9))
    world.coordinator.take(0)
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert world.group_offsets.begun == 3
    assert world.count("left_group") == 0
    world.group_offsets.failures.clear()


def test_what_is_reported_while_a_consumer_ends_reaches_the_application():
    """on_commit for the last commit, as with the original; the engine may end before the next look."""
    told = []
    with World(on_commit=lambda error, parts: told.append((error, [p.offset for p in parts]))) as world:
        world.engine.call(lambda: world.engine.subscribing.subscribe([TOPIC]))
        world.until(lambda: world.coordinator.topics, "the subscription")
        stable(world, 0)
        handed_out(world, 3)
        session = object.__new__(ConsumerSession)
        session._events, session._buffer, session.engine = world.events, world.buffer, world.engine
        assert session.close() is None
        assert told == [(None, [3])]


def test_a_commit_that_is_asked_for_while_the_clients_are_closed_has_nothing_to_commit(world):
    """By another thread, or by a callback that runs when the engine has ended: nobody would answer it."""
    stable(world, 0)
    closing, go_on, answers = threading.Event(), threading.Event(), []

    def close():
        closing.set()
        go_on.wait(10)

    def commit():
        answers.append(Future())
        world.calls.commit(world.calls.chosen(None, None, world.buffer.mark()), answers[-1])

    world.coordinator.close = close
    world.engine.close()
    world.polls(closing.is_set, "the clients to be closed")
    world.engine.ask(commit)
    go_on.set()
    assert world.engine.ended(10)
    world.engine.ask(commit)
    for answer in answers:
        with pytest.raises(KafkaException) as refused:
            answer.result(1)
        assert refused.value.args[0].code() == KafkaError._NO_OFFSET
