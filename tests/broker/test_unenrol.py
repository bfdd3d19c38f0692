"""A topic goes back to plain clients while producers and groups run (protocol, section 10.16)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.admin_cli.main import cli
from kpsplit.clock import Deadline
from kpsplit.errors import CheckFailedError, ConflictError, FencedError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import OperationLog
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Freeze, Prepare
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import STAMP_HEADER
from kpsplit.splitter.records.keys import changelog_topic, slots_topic
from kpsplit.splitter.steps import numbered
from tests.broker.consuming import Log, Member, drain, reading, shared, values, wait_for
from tests.broker.consuming import consumer as member_of
from tests.broker.operating import DiedError, dying_after, merge, records, split, state_of, step_back
from tests.broker.sleeping import SHORT_SESSION_MS, Sleeper
from tests.broker.test_run_enrolled import Running
from tests.broker.test_slots_change import Writing, group, settings, topics
from tests.broker.topic_config import await_gone
from tests.conftest import CreateTopic, MakeTopic
from tests.nights import others_at_night, protocols
from tests.unit.lane_samples import keys_in

pytestmark = pytest.mark.broker

KIND = Partitioner.CONSISTENT_RANDOM
BY_ITSELF = {"enable.auto.commit": False}


def run(bootstrap: str, *arguments: str) -> tuple[int, str, str]:
    """The command line: its exit code, what it says on stderr, what it prints."""
    env = {"KPSPLIT_BOOTSTRAP_SERVER": bootstrap, "NO_COLOR": "1"}
    done = CliRunner().invoke(cli, list(arguments), env=env)
    return done.exit_code, " ".join(done.stderr.split()), done.stdout


def trouble(operations: Admin, topic: str) -> list[str]:
    """What `doctor` finds of a topic."""
    return [c.message for c in operations.doctor() if not c.ok and topic in f"{c.message} {c.remedy}"]


def stamped(bootstrap: str, place: PhysicalPartition) -> list[tuple[bytes | None, bool]]:
    """The values of all records of a partition, and whether they have a stamp."""
    return [
        (m.value(), any(name == STAMP_HEADER for name, _ in m.headers() or []))
        for m in records(bootstrap, place)
    ]


@contextmanager
def plain(bootstrap: str, group_id: str, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """A member of a group that uses no kpsplit."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group_id, "auto.offset.reset": "error"}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: confluent_kafka.Consumer, count: int, seconds: float = 120.0) -> list[bytes | None]:
    """The values of the next records, and of what comes at once after them."""
    found: list[bytes | None] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records in {seconds} s"
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    last = consumer.poll(1.0)
    assert last is None, last.value()
    return found


STEPS = ["Return", "ClaimAll", "Whole", "DeleteSlots", "Part", "Leave"]


@pytest.mark.parametrize("step", others_at_night(STEPS, lambda step: step == "Part"))
def test_a_return_whose_operator_died_is_gone_on_with_by_the_next(
    operations: Admin, admin: AdminClient, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(2)
    known = operations.enrol(topic, KIND, slots=2)
    with pytest.raises(DiedError):
        operations.unenrol(topic, dying_after(step))
    recorded = operations.view().recorded(topic)
    assert recorded is not None and recorded.returning
    assert recorded.left == (step == "Leave")
    if not recorded.left:
        with pytest.raises(ConflictError, match="being returned to plain clients"):
            operations.enrol(topic, KIND)
        assert any("being returned to plain clients" in text for text in trouble(operations, topic))
        assert operations.status(topic)[0].enrolment == recorded
    last = operations.unenrol(topic)
    assert last == replace(known, slots=None, generation=2, returning=True)
    assert operations.unenrol(topic) == last, "once more, and nothing is left to do"
    assert not trouble(operations, topic)
    wait_for(lambda: slots_topic(topic) not in topics(admin), "the slots topic to be gone")
    with pytest.raises(UsageError, match="is not enrolled"):
        operations.status(topic)
    again = operations.enrol(topic, KIND, slots=3)
    assert (again.generation, again.slots, again.returning) == (2, 3, False)
    assert topics(admin)[slots_topic(topic, 2)] == 6
    assert operations.unenrol(topic).generation == 3


def test_a_producer_that_lives_on_stops_stamping_in_order_and_goes_on_with_its_numbers(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    parent = shared(operations, topic, slots=2)
    failed: list[Any] = []

    def told(error: Any, _message: Any) -> None:
        failed.extend([error] if error is not None else [])

    with Producer({"bootstrap.servers": bootstrap, "client.id": topic}) as producer:

        def send(number: int) -> None:
            producer.produce(topic, b"%d" % number, b"key", on_delivery=told)
            producer.poll(0)

        def mine() -> list[Any]:
            return [r for r in operations.producers().all() if r.client_id == topic]

        sent = 0
        with operations_in_background(bootstrap, topic) as returned:
            while not returned() or producer.layout_stats().partitions:
                send(sent)
                sent += 1
                time.sleep(0.005)
        before = sent
        for sent in range(before, before + 20):
            send(sent)
        assert producer.flush(60) == 0
        found = stamped(bootstrap, parent)
        assert [value for value, _ in found] == [b"%d" % n for n in range(before + 20)]
        marks = [mark for _, mark in found]
        first_plain = marks.index(False)
        assert first_plain > 0 and not any(marks[first_plain:]), "stamped up to some record, plain from there"
        wait_for(lambda: not mine(), "its registration to be gone")
        assert not trouble(operations, topic)

        shared(operations, topic, slots=2)
        wait_for(lambda: send(-1) or producer.layout_stats().partitions, "it to stamp again")
        assert producer.flush(60) == 0
        operations.split(parent, 2, even=True, force=True)
        assert merge(operations, parent).epoch == 2
        assert [r.topics for r in mine()] == [(topic,)]
        numbers = producer.layout_stats().partitions[str(parent)].next_sequence
        assert numbers > first_plain, "they go on"
    assert not failed


@contextmanager
def operations_in_background(bootstrap: str, topic: str) -> Iterator[Any]:
    """Return a topic in a thread of its own; yields whether that is over."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with Admin({"bootstrap.servers": bootstrap}) as mine:
                mine.unenrol(topic)
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = Thread(target=work, name="return")
    thread.start()

    def over() -> bool:
        if raised:
            raise raised[0]
        return not thread.is_alive()

    try:
        yield over
    finally:
        thread.join(120)
    assert not raised, raised


def test_a_group_that_has_stopped_at_one_place_is_gone_on_with_by_plain_clients(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    """Split, merged, retired; the plain members find no marker, and each record once."""
    topic = make_topic(1)
    parent, name = shared(operations, topic, slots=2), f"g-{topic}"
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def send(*numbers: int) -> None:
            for number in numbers:
                producer.produce(topic, b"%d" % number, b"key-%d" % (number % 7))
            assert producer.flush(60) == 0

        send(*range(20))
        split(operations, parent, 2)
        send(*range(20, 40))
        merge(operations, parent)
        send(*range(40, 60))
        with closing(member_of(bootstrap, name)) as member:
            member.subscribe([topic])
            assert set(values(drain(member, 60))) == {b"%d" % n for n in range(60)}
            wait_for(lambda: member.poll(0.1) is None and retired(operations, parent), "to be retired")
        last = operations.unenrol(topic)
        assert last.left
        send(*range(60, 80))
    with plain(bootstrap, name, topic) as consumer:
        assert take(consumer, 20) == [b"%d" % n for n in range(60, 80)]
    assert not trouble(operations, topic)
    assert operations.view().left_states[parent].epoch == 2, "numbers are kept"

    again = shared(operations, topic, slots=2)
    assert state_of(operations, again).epoch == 2 and state_of(operations, again).next_split == 2
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.produce(topic, b"80", b"key-0")
        assert producer.flush(60) == 0
    # The plain member closed and committed where it stood: the slots begin there.
    with closing(member_of(bootstrap, name)) as member:
        member.subscribe([topic])
        assert values(drain(member, 1)) == [b"80"]
        assert member.poll(1.0) is None


def retired(operations: Admin, parent: PhysicalPartition) -> bool:
    """Whether everything of a partition is retired; tries it once more if not."""
    try:
        operations.retire(parent)
    except CheckFailedError:
        return False
    return not state_of(operations, parent).to_retire()


@pytest.mark.parametrize("protocol", protocols("classic"))
def test_a_live_group_goes_over_to_partitions_and_plain_members_after_it_without_losing_an_order(
    bootstrap: str, operations: Admin, make_topic: MakeTopic, protocol: str
) -> None:
    topic, log = make_topic(2), Log()
    parent, name = shared(operations, topic, slots=2), f"g-{topic}"
    with Writing(bootstrap, topic) as writing:
        with group(bootstrap, topic, log, "ab", **settings(protocol)) as members:
            wait_for(lambda: sum(len(reading(m)) for m in members) == 4, "the group to read by slots")
            split(operations, parent, 3)
            wait_for(lambda: log.distinct() > 200, "records of the phantoms")
            merge(operations, parent)
            assert operations.retire(parent, wait_seconds=60)
            assert operations.unenrol(topic, wait_seconds=30).left
            known = writing.count
            wait_for(lambda: log.distinct() > known + 100, "records after the return")
        with plain(bootstrap, name, topic) as consumer:
            wait_for(lambda: _add(log, consumer) and log.distinct() > known + 300, "plain members to go on")
            last = writing.count
            wait_for(lambda: _add(log, consumer) and log.distinct() >= last, "all records of then")
    assert not writing.failed
    for key, expected in writing.sent.items():
        found = list(dict.fromkeys(log.by_key[key]))
        assert found == expected[: len(found)], key
    assert log.duplicates() == 0, log.handed_out_again()
    assert not trouble(operations, topic)


@pytest.mark.nightly
def test_workers_of_a_live_group_do_nothing_again_while_their_topic_returns(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    """Some keys are slow, so that workers stand apart: a plain partition has one place for them all."""
    topic, log = make_topic(2), Log()
    shared(operations, topic, slots=4)

    def handler(name: str) -> Callable[[Any], None]:
        def handle(record: Any) -> None:
            time.sleep(0.01 if record.key().endswith(b"0") else 0.0)
            log.add(record, name)

        return handle

    with Writing(bootstrap, topic) as writing:
        members = [Running(bootstrap, f"g-{topic}", topic, handler(name), workers=4) for name in "ab"]
        wait_for(lambda: log.distinct() > 200, "the group to be at work")
        assert operations.unenrol(topic).left
        known = writing.count
        wait_for(lambda: log.distinct() > known + 200, "records after the return")
    wait_for(lambda: log.distinct() == writing.count, "all records")
    for member in members:
        member.stop()
    assert not writing.failed
    log.check_order(writing.sent)
    assert log.duplicates() == 0, log.handed_out_again()


@pytest.mark.nightly
def test_members_start_close_and_are_killed_at_each_step_of_a_return(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    """The operator dies after each step, too. What a killed member had not committed comes again."""
    topic, log, taken = make_topic(2), Log(), set[str]()
    shared(operations, topic, slots=2)
    name, often = f"g-{topic}", {"session_timeout_ms": SHORT_SESSION_MS, "auto_commit_interval_ms": 300}
    with ExitStack() as stack:

        def starts(who: str) -> Member:
            member = Member(bootstrap, name, [topic], log, who)
            member.start()
            stack.callback(member.stop)
            return member

        with Writing(bootstrap, topic) as writing:
            member = starts("first")
            for step in STEPS:
                with Sleeper(bootstrap, name, topic, "poll", **often) as child:
                    child.order("go")
                    wait_for(lambda child=child: child.values, f"records before {step}")  # type: ignore[misc]
                    with pytest.raises(DiedError):
                        operations.unenrol(topic, dying_after(step))
                taken.update(child.values)
                before, member = member, starts(step)
                before.stop()
            assert operations.unenrol(topic).left
        sent = {value.decode() for found in writing.sent.values() for value in found}
        wait_for(lambda: log.values() | taken >= sent, "all records")
    assert not writing.failed
    for key, expected in writing.sent.items():
        found = dict.fromkeys(log.by_key[key])
        assert list(found) == sorted(found, key=expected.index), key
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(3):
            producer.produce(topic, b"%d" % number, b"key")
        assert producer.flush(60) == 0
    with plain(bootstrap, name, topic) as consumer:
        assert take(consumer, 3) == [b"0", b"1", b"2"]
    assert not trouble(operations, topic)


def _add(log: Log, consumer: confluent_kafka.Consumer) -> bool:
    for message in consumer.consume(500, 0.1):
        assert message.error() is None, message.error()
        log.add(message, "plain")
    return True


@pytest.mark.nightly
def test_an_operator_that_claims_after_the_return_began_splits_nothing(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic, connection = make_topic(1), Connection({"bootstrap.servers": bootstrap})
    parent = shared(operations, topic, slots=2)
    plan = operations.plan_split(parent, 2, even=True)
    state = state_of(operations, parent)
    prepare = Prepare(numbered(plan.attempt("tests", 5000), state))
    with (
        closing(OperationLog(connection, parent)) as early,
        closing(OperationLog(connection, parent)) as late,
    ):
        early.peek(Deadline(60))
        early.claim(Deadline(60))
        with pytest.raises(DiedError):
            operations.unenrol(topic, dying_after("ClaimAll"))
        with pytest.raises(FencedError):
            early.record(state, Freeze("late"), Deadline(60))
        late.peek(Deadline(60))
        late.claim(Deadline(60))
        with pytest.raises(ConflictError, match="being returned to plain clients") as caught:
            late.record(state, prepare, Deadline(60))
    assert caught.value.changed is False
    assert state_of(operations, parent) == state
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.raises(CheckFailedError, match="being returned to plain clients"):
        operations.run(plan, max_pause_ms=5000)
    assert operations.unenrol(topic).left


@pytest.mark.nightly
def test_a_split_that_came_in_between_is_merged_and_the_return_goes_on(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    parent = shared(operations, topic, slots=2)
    split(operations, parent, 2)
    assert step_back(bootstrap, operations, topic).returning
    with pytest.raises(CheckFailedError, match="is split, into 2") as caught:
        operations.unenrol(topic)
    assert caught.value.hint == f"run: kpsplit merge {parent}, then kpsplit retire {parent}"
    assert caught.value.changed is True
    merge(operations, parent)
    assert operations.retire(parent)
    assert operations.unenrol(topic).left


def test_the_command_line_says_what_forbids_a_return_and_merges_and_retires_first(
    bootstrap: str,
    operations: Admin,
    admin: AdminClient,
    make_topic: MakeTopic,
    create_topic: CreateTopic,
) -> None:
    topic = make_topic(1)
    code, said, _ = run(bootstrap, "unenroll", topic, "--yes")
    assert code == 2 and f"topic {topic} is not enrolled" in said
    parent = shared(operations, topic, slots=2)
    known = operations.view().enrolments[topic]
    split(operations, parent, 2)
    code, said, shown = run(bootstrap, "unenroll", topic, "--dry-run")
    assert code == 0 and "dry run: nothing was changed" in said
    assert f"run: kpsplit merge {parent}, then kpsplit retire {parent}" in shown
    assert shown.count("would record how far the return is") == 4
    code, said, shown = run(bootstrap, "unenroll", topic, "--dry-run", "-o", "json")
    assert json.loads(shown)["obstacles"][0]["name"] == "merged"
    code, said, _ = run(bootstrap, "unenroll", topic)
    assert code == 2 and "there is no terminal to ask on" in said
    code, said, _ = run(bootstrap, "unenroll", topic, "--yes")
    assert code == 3 and f"{parent} is split, into 2" in said and "nothing was changed" in said
    assert f"run: kpsplit merge {parent}, then kpsplit retire {parent}" in said
    assert operations.view().enrolments[topic] == known

    kept = create_topic(changelog_topic("billing", topic), 4)
    code, said, _ = run(bootstrap, "unenroll", topic, "--yes")
    assert code == 3 and f"a group keeps state of topic {topic} by its slots: {kept}" in said
    assert "(and 1 more, see --dry-run)" in said
    code, said, _ = run(bootstrap, "unenroll", topic, "--yes", "--merge")
    assert code == 3 and "nothing was changed" in said and f"delete {kept}" in said
    assert state_of(operations, parent).epoch == 1, "it is not merged for a return that is refused"
    admin.delete_topics([kept], operation_timeout=30)[kept].result(30)
    await_gone(bootstrap, kept)

    code, said, shown = run(bootstrap, "unenroll", topic, "--yes", "--merge", "-o", "json")
    assert code == 0, said
    assert json.loads(shown) == {"topic": topic, "left": True, "generation": 2}
    steps = ["cut", "sub-topic deleted", "return to plain clients recorded", "partitions claimed"]
    steps += ["partitions shared as wholes", "slots deleted", "groups stand at one offset", "topic left"]
    assert [said.index(step) for step in steps] == sorted(said.index(step) for step in steps)
    code, said, _ = run(bootstrap, "unenroll", topic, "--yes")
    assert code == 0, "once more: nothing is left to do"


@pytest.mark.nightly
def test_a_group_that_stands_apart_or_before_the_merge_is_named_and_nothing_is_changed(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    parent, name = shared(operations, topic, slots=2), f"g-{topic}"
    known = operations.view().enrolments[topic]
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(20):
            producer.produce(topic, b"%d" % number, b"key-%d" % number)
        assert producer.flush(60) == 0
        with closing(member_of(bootstrap, name)) as member:
            member.subscribe([topic])
            drain(member, 20)
        operations.split(parent, 2, even=True, force=True)
        for number in range(20):
            producer.produce(topic, b"%d" % number, b"key-%d" % number)
        assert producer.flush(60) == 0
        merge(operations, parent)
        assert operations.retire(parent, force=True)
    start = state_of(operations, parent).lineage.open_segments()[0].start
    remedy = f"kpsplit seek {parent} --group {name}, or remove it: kpsplit forget {topic} --group {name}"
    for command in (["--yes"], ["--yes", "--wait", "1s"]):
        code, said, _ = run(bootstrap, "unenroll", topic, *command)
        assert (
            code == 3 and f"group {name} in {parent}: it stands before the latest merge, at {start}" in said
        )
        assert remedy in said and "nothing was changed" in said
    assert operations.view().enrolments[topic] == known
    code, said, _ = run(bootstrap, "forget", topic, "--group", name, "--yes")
    assert code == 0, said
    assert isinstance(operations.unenrol(topic), Enrolment)


def test_two_runs_at_the_same_time_both_end_well(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    shared(operations, topic, slots=2)
    with operations_in_background(bootstrap, topic):
        wait_for(lambda: _recorded(operations, topic).returning, "the first run to begin")
        assert operations.unenrol(topic).left
    assert operations.unenrol(topic).generation == 2
    assert not trouble(operations, topic)


def _recorded(operations: Admin, topic: str) -> Enrolment:
    found = operations.view().recorded(topic)
    assert found is not None
    return found


@pytest.mark.nightly
def test_an_idle_group_that_commits_by_itself_is_no_obstacle(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    """Each member has committed its last record: so the slots stand apart, and no record comes."""
    topic = make_topic(1)
    parent, name = shared(operations, topic, slots=2), f"g-{topic}"
    low, high = (keys_in(half, 5) for half in WHOLE.split_evenly(2))
    with ExitStack() as stack:
        members = [stack.enter_context(closing(member_of(bootstrap, name, **BY_ITSELF))) for _ in "ab"]

        def poll() -> dict[Any, Any]:
            return {m: message for m in members if (message := m.poll(0.1)) is not None}

        def has_one(member: Any) -> bool:
            return list(member.stats()["slots"].values()) == ["reading"]

        for member in members:
            member.subscribe([topic])
        wait_for(lambda: not poll() and all(map(has_one, members)), "a slot for each")
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for key in (*low, *high):
                producer.produce(topic, key, key, 0)
            assert producer.flush(60) == 0
        got: list[Any] = []
        last: dict[Any, Any] = {}
        wait_for(lambda: last.update(now := poll()) or got.extend(now.values()) or len(got) == 10, "all")
        for member, message in last.items():
            member.commit(message=message, asynchronous=False)
        with operations_in_background(bootstrap, topic) as returned:
            wait_for(lambda: not poll() and returned(), "the return")
        assert _recorded(operations, topic).left
        place = confluent_kafka.TopicPartition(topic, parent.partition)
        [committed] = members[0].committed([place], timeout=30)
        assert committed.offset == 10


@pytest.mark.nightly
def test_a_live_group_goes_on_where_it_stands_when_its_topic_is_enrolled_again(
    bootstrap: str, operations: Admin, make_topic: MakeTopic
) -> None:
    """The lineage has closed segments, and the plain records lie after all of them."""
    topic, log = make_topic(1), Log()
    parent = shared(operations, topic, slots=2)
    operations.split(parent, 2, even=True, force=True)
    merge(operations, parent)
    assert operations.retire(parent)
    assert operations.unenrol(topic).left
    with group(bootstrap, topic, log, "ab") as members:
        with Writing(bootstrap, topic) as writing:
            wait_for(lambda: log.distinct() > 200, "plain records")
            shared(operations, topic, slots=2)
            wait_for(lambda: sum(len(reading(m)) for m in members) == 2, "the group to read by slots")
            known = writing.count
            wait_for(lambda: log.distinct() > known + 100, "records after it")
        wait_for(lambda: log.distinct() == writing.count, "all records")
    assert not writing.failed
    log.check_order(writing.sent)
    assert log.duplicates() == 0, log.handed_out_again()
