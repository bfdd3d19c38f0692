"""Groups that share the key ranges of enrolled topics: hand-over, fencing, every group protocol."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit import Producer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.broker import consumer_child
from tests.broker.consuming import REMOTE, Log, Member, consumer, drain, shared, wait_for
from tests.broker.operating import (
    PAUSE_MS,
    commit,
    log_end,
    merge,
    split,
    state_of,
    write,
)
from tests.broker.producing import Journal, Writer
from tests.nights import others_at_night

pytestmark = pytest.mark.broker

CHURN_TURNS = 6
CHURN_SECONDS = 2.0

KEYS = 40


class Child:
    """A member in a process of its own."""

    def __init__(self, bootstrap, group, topic, log, name, **more):
        extra = {key.replace("_", "."): value for key, value in more.items()}
        self.events, self.seen = [], 0
        self._log, self._name = log, name
        self.process = subprocess.Popen(
            [sys.executable, consumer_child.__file__, bootstrap, group, topic, json.dumps(extra)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            told = json.loads(line)
            if "event" in told:
                self.events.append(told)
            else:
                self.seen += 1
                self._log.add(Told(told["key"].encode(), told["value"].encode()), self._name)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """Have it close, and return what it told at the end."""
        self.signal(signal.SIGTERM)
        self.process.wait(180)
        self._reader.join(10)
        return self.events[-1]


class Told:
    """A record of which a child has told."""

    def __init__(self, key, value):
        self._key, self._value = key, value

    def key(self):
        return self._key

    def value(self):
        return self._value


@contextmanager
def traffic(bootstrap, topic) -> Iterator[tuple[Journal, Writer]]:
    """A producer that writes to a topic all the time."""
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        writer = Writer(producer, topic, journal, "w", KEYS)
        writer.start()
        try:
            yield journal, writer
        finally:
            writer.stop()
            producer.flush(30)


def sent(journal):
    return {key: found for (_, key), found in journal.sent.items()}


def test_members_share_one_partition_through_splits_a_merge_a_death_and_a_suspension(
    bootstrap, operations, make_topic
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    parent = shared(operations, topic)
    with traffic(bootstrap, topic) as (journal, _):
        stays = Member(bootstrap, group, [topic], log, "stays")
        stays.start()
        dies = Child(bootstrap, group, topic, log, "dies")
        sleeps = Child(bootstrap, group, topic, log, "sleeps")
        wait_for(lambda: dies.seen and sleeps.seen, "all members to have slots")
        split(operations, parent, 4)
        dies.signal(signal.SIGKILL)
        sleeps.signal(signal.SIGSTOP)
        wait_for(lambda: len(stays.consumer.stats()["slots"]) == 16, "the one that stays to take over")
        phantom = state_of(operations, parent).lineage.open_segments()[1]
        plan = operations.plan_split(parent, 2, of=phantom.range, even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
        joins = Member(bootstrap, group, [topic], log, "joins")
        joins.start()
        sleeps.signal(signal.SIGCONT)
        wait_for(lambda: [e for e in sleeps.events if e["event"] == "lost"], "the sleeper to hear of it")
        merge(operations, parent)
        before = sleeps.seen
        wait_for(lambda: sleeps.seen > before, "the sleeper to work again")
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    for member in (stays, joins):
        member.stop()
    told = sleeps.end()
    log.check_order(sent(journal))
    assert {m for members in log.members.values() for m in members} == {"stays", "dies", "sleeps", "joins"}
    assert told["event"] == "closed"
    early = [owners for owners in log.handed_out_again() if not {"dies", "sleeps"}.issuperset(owners[:-1])]
    # What poll() had returned to the one that was suspended before it could tell: it tells when it wakes.
    assert len(early) <= 1
    assert all(owners[-1] == "sleeps" for owners in early)


@pytest.mark.nightly
def test_while_a_member_joins_and_leaves_every_two_seconds_order_holds_and_work_goes_on(
    bootstrap, operations, make_topic
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    parent = shared(operations, topic)
    with traffic(bootstrap, topic) as (journal, _):
        stays = Member(bootstrap, group, [topic], log, "stays")
        stays.start()
        for turn in range(CHURN_TURNS):
            before = log.distinct()
            comes = Member(bootstrap, group, [topic], log, f"comes-{turn}")
            comes.start()
            if turn == CHURN_TURNS // 2:
                split(operations, parent, 4)
            time.sleep(CHURN_SECONDS)  # the scenario: it leaves then, with slots or before it had any
            comes.stop()
            wait_for(lambda before=before: log.distinct() > before, "work to go on")
        merge(operations, parent)
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    stays.stop()
    log.check_order(sent(journal))
    assert log.duplicates() == 0, "who leaves in order commits what it worked on"


@pytest.mark.nightly
def test_without_a_death_nothing_is_handed_out_twice(bootstrap, operations, make_topic):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    parent = shared(operations, topic)
    with traffic(bootstrap, topic) as (journal, _):
        one = Member(bootstrap, group, [topic], log, "one")
        one.start()
        wait_for(lambda: log.count > 100, "the first member")
        two = Member(bootstrap, group, [topic], log, "two")
        two.start()
        wait_for(lambda: any("two" in m for m in log.members.values()), "the second member")
        split(operations, parent, 4)
        before = log.count
        wait_for(lambda: log.count > before + 100, "records of the phantoms")
        one.stop()
        merge(operations, parent)
        before = log.count
        wait_for(lambda: log.count > before + 100, "records behind the merge")
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    two.stop()
    log.check_order(sent(journal))
    assert log.duplicates() == 0


def test_a_group_that_was_down_through_a_split_and_a_merge_reads_all_of_it(bootstrap, operations, make_topic):
    topic, log = make_topic(), Log()
    parent = shared(operations, topic)
    with traffic(bootstrap, topic) as (journal, writer):
        member = Member(bootstrap, f"g-{topic}", [topic], log, "before")
        member.start()
        wait_for(lambda: log.count > 50, "the first records")
        member.stop()
        split(operations, parent, 4)
        count = writer.count
        wait_for(lambda: writer.count > count + 100, "records in the phantoms")
        merge(operations, parent)
    after = Member(bootstrap, f"g-{topic}", [topic], log, "after")
    after.start()
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    after.stop()
    log.check_order(sent(journal))
    assert log.duplicates() == 0


@pytest.mark.parametrize("reset", others_at_night(["earliest", "latest"], lambda reset: reset == "latest"))
def test_a_group_that_begins_between_a_split_and_a_merge(bootstrap, operations, make_topic, reset):
    topic = make_topic()
    parent = shared(operations, topic)
    with Producer({"bootstrap.servers": bootstrap}) as producer:

        def send(name):
            for n in range(20):
                producer.produce(topic, f"{name}-{n}".encode(), b"key-%d" % n)
            assert producer.flush(30) == 0

        send("before")
        split(operations, parent, 4)
        send("between")
        with consumer(bootstrap, f"g-{topic}", auto_offset_reset=reset) as member:
            member.subscribe([topic])
            wait_for(
                lambda: (
                    member.poll(0) is None and member.stats()["state"] == "stable"
                    if reset == "latest"
                    else True
                ),
                "the assignment",
            )
            send("later")
            merge(operations, parent)
            send("after")
            expected = ["later", "after"] if reset == "latest" else ["before", "between", "later", "after"]
            found = [m.value().decode() for m in drain(member, 20 * len(expected))]
    assert sorted(found) == sorted(f"{name}-{n}" for name in expected for n in range(20))


def test_a_group_that_committed_to_the_plain_topic_is_taken_over_at_its_positions(
    bootstrap, operations, make_topic
):
    topic = make_topic()
    group = f"g-{topic}"
    write(bootstrap, topic, 300)
    commit(bootstrap, group, {PhysicalPartition(topic, 0): 120})
    parent = shared(operations, topic)
    split(operations, parent, 2)
    with consumer(bootstrap, group) as member:
        member.subscribe([topic])
        found = drain(member, 180)
    assert [m.offset() for m in found] == list(range(120, 300))


def test_a_topic_that_is_enrolled_while_a_group_reads_it_is_handed_over_to_slots(
    bootstrap, operations, make_topic
):
    topic, log = make_topic(partitions=2), Log()
    with traffic(bootstrap, topic) as (journal, _):
        members = [Member(bootstrap, f"g-{topic}", [topic], log, name) for name in ("one", "two")]
        for member in members:
            member.start()
        wait_for(lambda: log.count > 100, "records of the plain topic")
        parent = shared(operations, topic)
        wait_for(
            lambda: all(m.consumer._group.topics == {slots_topic(topic)} for m in members),
            "the members to share by slots",
        )
        split(operations, parent, 4)
        before = log.count
        wait_for(lambda: log.count > before + 200, "records behind the split")
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    for member in members:
        member.stop()
    log.check_order(sent(journal))
    assert log.duplicates() == 0


def test_a_record_in_work_while_its_topic_is_enrolled_is_nobody_elses(bootstrap, operations, make_topic):
    """Brokers that assign give slots away while the old owner of the partition still works."""
    topic, count = make_topic(partitions=1), 20
    write(bootstrap, topic, count)
    with (
        consumer(bootstrap, f"g-{topic}", **REMOTE) as old,
        consumer(bootstrap, f"g-{topic}", **REMOTE) as new,
    ):
        old.subscribe([topic])
        handed_out = drain(old, 5)
        shared(operations, topic, 4)
        new.subscribe([topic])
        early: list[Message] = []

        def waits() -> bool:
            message = new.poll(0.05)
            early.extend([] if message is None else [message])
            return bool(early) or new.stats().get("starts_held_up", 0) >= 3

        wait_for(waits, "the new member to be given slots")
        assert not early, "the record that the old member works on is in one of these slots, or before one"
        members = [old, new]
        while len(handed_out) < count:
            handed_out += [m for member in members if (m := member.poll(0.05)) is not None]
        assert not [m.error() for m in handed_out if m.error()]
        assert sorted(m.offset() or 0 for m in handed_out) == list(range(count))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partition_assignment_strategy": "range"}, marks=pytest.mark.nightly),
        {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None},
        pytest.param(
            {
                "group_protocol": "consumer",
                "group_remote_assignor": "range",
                "session_timeout_ms": None,
                "heartbeat_interval_ms": None,
            },
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["range", "consumer", "consumer-range"],
)
def test_slots_are_shared_by_every_group_protocol(bootstrap, operations, make_topic, settings):
    topic, log = make_topic(), Log()
    shared(operations, topic)
    with traffic(bootstrap, topic) as (journal, _):
        members = [Member(bootstrap, f"g-{topic}", [topic], log, n, **settings) for n in ("one", "two")]
        for member in members:
            member.start()
        wait_for(
            lambda: {m for found in log.members.values() for m in found} == {"one", "two"},
            "both members to have slots",
        )
    wait_for(lambda: log.distinct() == len(journal.values), "every record")
    for member in members:
        member.stop()
    log.check_order(sent(journal))


def test_the_ordinary_offsets_of_a_group_tell_its_true_lag(bootstrap, operations, make_topic, admin):
    topic = make_topic()
    group = f"g-{topic}"
    parent = shared(operations, topic)
    write(bootstrap, topic, 200)
    split(operations, parent, 2)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for n in range(40):
            producer.produce(topic, b"v", b"key-%d" % n)
        producer.flush(30)
    with consumer(bootstrap, group) as member:
        member.subscribe([topic])
        drain(member, 240)
        [part] = member.commit(asynchronous=False)
        assert part.offset >= 200
    state = state_of(operations, parent)
    places = [TopicPartition(s.source.topic, s.source.partition) for s in state.lineage.open_segments()]
    client = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = client.committed([*places, TopicPartition(topic, 0)], timeout=10)
    finally:
        client.close()
    ends = [log_end(admin, PhysicalPartition(p.topic, p.partition)) for p in found]
    assert [p.offset for p in found] == ends


def test_a_member_that_lost_its_slots_cannot_commit(bootstrap, operations, make_topic):
    topic = make_topic()
    group = f"g-{topic}"
    shared(operations, topic)
    write(bootstrap, topic, 20)
    member = consumer(bootstrap, group, enable_auto_commit=False)
    member.subscribe([topic])
    drain(member, 10)
    stale = member.consumer_group_metadata()
    member.commit(asynchronous=False)
    drain(member, 5)
    member._group.metadata = lambda: stale
    with consumer(bootstrap, group) as other:
        other.subscribe([topic])

        def taken():
            other.poll(0.05)
            member.poll(0)
            return other.assignment()

        wait_for(taken, "the slots to be shared")
        with pytest.raises(KafkaException) as refused:
            member.commit(asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
        assert member.stats()["commits_rejected"] == 1
    member.close()


def test_messages_tell_their_physical_place(bootstrap, operations, make_topic):
    topic = make_topic()
    parent = shared(operations, topic)
    write(bootstrap, topic, 3)
    split(operations, parent, 2)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.produce(topic, b"v", b"k")
        producer.flush(30)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        *before, last = drain(member, 4)
        place = member.place(before[2])
        assert (place.source_topic, place.source_offset, place.segment) == (topic, 2, 0)
        assert last.topic() == topic
        assert last.source()[0] == f"{topic}.split-0-1"
        assert (last.segment, last.epoch) == (member.place(last).segment, 1)


def test_slots_assigned_by_hand_are_read_and_committed_without_a_group(bootstrap, operations, make_topic):
    topic = make_topic()
    group = f"g-{topic}"
    shared(operations, topic, 4)
    write(bootstrap, topic, 100)
    found = []
    for index in range(4):
        with consumer(bootstrap, group) as member:
            member.assign_slots([(topic, 0, index)])
            wait_for(lambda m=member: m.stats()["state"] == "stable", "the slot")
            while (message := member.poll(1.0)) is not None:
                assert message.error() is None, message.error()
                found.append(message.offset())
    assert sorted(found) == list(range(100))
    with consumer(bootstrap, group) as member:
        member.subscribe([topic])
        wait_for(lambda: member.poll(0) is None and member.stats()["state"] == "stable", "the assignment")
        assert member.poll(0.5) is None


def test_a_static_member_that_comes_back_goes_on_without_a_rebalance(bootstrap, operations, make_topic):
    topic = make_topic()
    settings = {"group_instance_id": "one"}
    shared(operations, topic, 4)
    write(bootstrap, topic, 100)
    with consumer(bootstrap, f"g-{topic}", **settings) as member:
        member.subscribe([topic])
        first = drain(member, 40)
    with consumer(bootstrap, f"g-{topic}", **settings) as member:
        member.subscribe([topic])
        second = drain(member, 60)
    assert sorted(m.offset() for m in first + second) == list(range(100))
