"""A program written for confluent_kafka.Consumer runs with the import changed."""

from __future__ import annotations

import json
import threading
import time

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.serialization import StringDeserializer

from kpsplit import Consumer, DeserializingConsumer
from tests.broker.consuming import consumer, drain, values, wait_for
from tests.broker.operating import write

pytestmark = pytest.mark.broker


def plain(bootstrap, group, **more):
    extra = {name.replace("_", "."): value for name, value in more.items()}
    base = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer({**base, **extra})


def committed_by(bootstrap, group, topic, partition=0):
    """What the original sees of a group."""
    client = plain(bootstrap, group)
    try:
        return client.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
    finally:
        client.close()


def next_event(member, seconds=180.0):
    """The next record or error event."""
    message = member.poll(seconds)
    assert message is not None, f"nothing in {seconds} s; {dict(member.stats())}"
    return message


def test_the_surface_is_complete():
    public = {name for name in dir(confluent_kafka.Consumer) if not name.startswith("_")}
    assert not public - set(vars(Consumer))
    assert issubclass(Consumer, confluent_kafka.Consumer)


def test_subscribe_poll_and_automatic_commits(bootstrap, make_topic):
    topic = make_topic(partitions=3)
    write(bootstrap, topic, 300)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        first = drain(member, 300)
        assert {(m.topic(), m.partition()) for m in first} == {(topic, p) for p in range(3)}
        for partition in range(3):
            offsets = [m.offset() for m in first if m.partition() == partition]
            assert offsets == list(range(len(offsets)))
        member.poll(0.1)
        ends = [sum(m.partition() == p for m in first) for p in range(3)]
        wait_for(
            lambda: (
                member.poll(0) is None
                and [committed_by(bootstrap, f"g-{topic}", topic, p) for p in range(3)] == ends
            ),
            "the automatic commit",
        )


def test_a_record_counts_as_processed_when_the_next_poll_asks_for_more(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)
    group = f"g-{topic}"
    member = consumer(bootstrap, group, auto_commit_interval_ms=50)
    member.subscribe([topic])
    drain(member, 4)
    wait_for(lambda: committed_by(bootstrap, group, topic) == 3, "what is processed to be committed")
    member.close()  # whoever closes has processed what was handed out
    assert committed_by(bootstrap, group, topic) == 4


def test_a_group_goes_on_where_the_original_has_committed(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 20)
    group = f"g-{topic}"
    client = plain(bootstrap, group, enable_auto_commit=False)
    client.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    client.close()
    with consumer(bootstrap, group) as member:
        member.subscribe([topic])
        assert [m.offset() for m in drain(member, 13)] == list(range(7, 20))


def test_commits_by_hand_return_what_was_committed(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 20)
    told = []
    group = f"g-{topic}"
    with consumer(
        bootstrap, group, enable_auto_commit=False, on_commit=lambda e, p: told.append((e, p))
    ) as member:
        member.subscribe([topic])
        read = drain(member, 10)
        [part] = member.commit(message=read[4], asynchronous=False)
        assert (part.topic, part.partition, part.offset) == (topic, 0, 5)
        [part] = member.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        assert part.offset == 7
        [part] = member.commit(asynchronous=False)
        assert part.offset == 10
        assert committed_by(bootstrap, group, topic) == 10
        assert member.committed([TopicPartition(topic, 0)])[0].offset == 10
        with pytest.raises(KafkaException) as nothing_new:
            member.commit(asynchronous=False)
        assert nothing_new.value.args[0].code() == KafkaError._NO_OFFSET
        drain(member, 5)
        assert member.commit() is None
        wait_for(lambda: (member.poll(0.05), told)[1], "on_commit")
        error, parts = told[-1]
        assert error is None
        assert [(p.topic, p.offset) for p in parts] == [(topic, 15)]
        assert len(told) == 1


def test_without_automatic_commits_nothing_is_committed(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 20)
    group = f"g-{topic}"
    with consumer(bootstrap, group, enable_auto_commit=False) as member:
        member.subscribe([topic])
        drain(member, 20)
    assert committed_by(bootstrap, group, topic) == OFFSET_INVALID


def test_stored_offsets_are_committed_and_nothing_else(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 20)
    group = f"g-{topic}"
    with consumer(bootstrap, group, enable_auto_offset_store=False) as member:
        member.subscribe([topic])
        read = drain(member, 20)
        member.store_offsets(message=read[11])
        wait_for(lambda: committed_by(bootstrap, group, topic) == 12, "the stored offset")
        member.store_offsets(offsets=[TopicPartition(topic, 0, 15)])
    assert committed_by(bootstrap, group, topic) == 15
    with consumer(bootstrap, group) as member, pytest.raises(KafkaException):
        member.store_offsets(offsets=[TopicPartition(topic, 0, 15)])


def test_consume_collects_records_until_the_time_is_over(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 30)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        assert len(member.consume(25, timeout=30)) == 25
        assert len(member.consume(25, timeout=1)) == 5
        assert member.consume(10, timeout=0) == []
        with pytest.raises(ValueError, match="num_messages"):
            member.consume(-1)


def test_partitions_assigned_by_hand_are_read_from_where_the_program_says(bootstrap, make_topic):
    topic = make_topic(partitions=2)
    write(bootstrap, topic, 10, partition=0)
    write(bootstrap, topic, 10, partition=1)
    with consumer(bootstrap, f"g-{topic}", enable_auto_commit=False) as member:
        member.assign([TopicPartition(topic, 0, 6)])
        assert [m.offset() for m in drain(member, 4)] == [6, 7, 8, 9]
        member.incremental_assign([TopicPartition(topic, 1, OFFSET_BEGINNING)])
        assert [(m.partition(), m.offset()) for m in drain(member, 10)] == [(1, o) for o in range(10)]
        assert {p.partition for p in member.assignment()} == {0, 1}
        [part] = [p for p in member.commit(asynchronous=False) if p.partition == 1]
        assert part.offset == 10
        member.incremental_unassign([TopicPartition(topic, 1)])
        assert [p.partition for p in member.assignment()] == [0]
        member.unassign()
        assert member.assignment() == []
        member.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert member.poll(0.5) is None
        write(bootstrap, topic, 1, partition=0)
        assert next_event(member).offset() == 10


def test_seek_and_position(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)
    place = TopicPartition(topic, 0)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        wait_for(lambda: member.poll(0) is None and member.assignment(), "the assignment")
        member.seek(TopicPartition(topic, 0, 0))
        assert member.position([place])[0].offset == OFFSET_INVALID
        drain(member, 10)
        assert member.position([place])[0].offset == 10
        member.seek(TopicPartition(topic, 0, 4))
        assert [m.offset() for m in drain(member, 6)] == list(range(4, 10))
        member.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
        assert next_event(member).offset() == 0
        member.seek(TopicPartition(topic, 0, OFFSET_END))
        assert member.poll(0.5) is None
        with pytest.raises(KafkaException):
            member.seek(TopicPartition(topic, 5, 0))


def test_a_paused_partition_hands_out_nothing_until_it_is_resumed(bootstrap, make_topic):
    topic = make_topic(partitions=2)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        wait_for(lambda: member.poll(0.01) is None and len(member.assignment()) == 2, "the assignment")
        write(bootstrap, topic, 10, partition=0)
        write(bootstrap, topic, 10, partition=1)
        first = next_event(member)
        member.pause([TopicPartition(topic, first.partition())])
        other = drain(member, 10)
        assert {m.partition() for m in other} == {1 - first.partition()}
        assert member.poll(0.3) is None
        member.resume([TopicPartition(topic, first.partition())])
        assert [m.offset() for m in drain(member, 9)] == list(range(1, 10))


def test_watermarks_and_offsets_for_times(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)
    with consumer(bootstrap, f"g-{topic}") as member:
        member.assign([TopicPartition(topic, 0, 0)])
        times = [m.timestamp()[1] for m in drain(member, 10)]
        assert member.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 10)
        asked = [TopicPartition(topic, 0, times[0]), TopicPartition(topic, 0, times[-1] + 60_000)]
        assert [p.offset for p in member.offsets_for_times(asked[:1], timeout=10)] == [0]
        assert [p.offset for p in member.offsets_for_times(asked[1:], timeout=10)] == [OFFSET_END]
        assert topic in member.list_topics(timeout=10).topics


def test_callbacks_run_in_the_programs_thread_and_tell_of_every_partition(bootstrap, make_topic):
    topic = make_topic(partitions=2)
    write(bootstrap, topic, 10)
    told, threads = [], set()

    def note(name):
        def callback(who, parts):
            threads.add(threading.get_ident())
            assert who is member
            told.append((name, sorted(p.partition for p in parts)))

        return callback

    member = consumer(bootstrap, f"g-{topic}")
    member.subscribe([topic], on_assign=note("assign"), on_revoke=note("revoke"), on_lost=note("lost"))
    drain(member, 10)
    assert told == [("assign", [0, 1])]
    member.unsubscribe()
    wait_for(lambda: member.poll(0.05) is None and len(told) == 2, "the revocation")
    member.subscribe([topic], on_assign=note("assign"), on_revoke=note("revoke"))
    wait_for(lambda: member.poll(0.05) is None and len(told) == 3, "the assignment")
    member.close()
    assert [name for name, _ in told] == ["assign", "revoke", "assign", "revoke"]
    assert threads == {threading.get_ident()}


def test_on_assign_may_choose_where_to_start(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)

    def from_six(who, parts):
        for part in parts:
            part.offset = 6
        who.assign(parts)

    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic], on_assign=from_six)
        assert [m.offset() for m in drain(member, 4)] == [6, 7, 8, 9]


def test_a_callback_that_raises_is_told_by_poll_and_the_consumer_goes_on(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5)

    def fail(*_):
        raise RuntimeError("from the callback")

    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic], on_assign=fail)
        with pytest.raises(RuntimeError, match="from the callback"):
            member.poll(30)
        assert len(drain(member, 5)) == 5


def test_the_end_of_a_partition_is_an_event_behind_its_last_record(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5)
    with consumer(bootstrap, f"g-{topic}", enable_partition_eof=True) as member:
        member.subscribe([topic])
        found = [next_event(member) for _ in range(6)]
        assert [m.error() is None for m in found] == [True] * 5 + [False]
        assert found[-1].error().code() == KafkaError._PARTITION_EOF
        assert (found[-1].topic(), found[-1].partition(), found[-1].offset()) == (topic, 0, 5)


def test_a_pattern_subscribes_to_topics_that_come_later_too(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5)
    with consumer(bootstrap, f"g-{topic}", topic_metadata_refresh_interval_ms=1000) as member:
        member.subscribe([f"^{topic[:-2]}.*"])
        assert {m.topic() for m in drain(member, 5)} == {topic}
        later = make_topic()
        write(bootstrap, later, 5)
        assert {m.topic() for m in drain(member, 5)} == {later}


def test_an_unknown_topic_is_an_error_event(bootstrap, topic_name):
    topic = topic_name()
    with consumer(bootstrap, f"g-{topic}", allow_auto_create_topics=False) as member:
        member.subscribe([topic])
        error = next_event(member).error()
        assert error is not None
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert topic in error.str()


def test_a_missing_offset_is_an_error_event_where_the_reset_policy_says_so(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5)
    with consumer(bootstrap, f"g-{topic}", auto_offset_reset="error") as member:
        member.subscribe([topic])
        event = next_event(member)
        assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
        member.seek(TopicPartition(topic, 0, 2))
        assert [m.offset() for m in drain(member, 3)] == [2, 3, 4]


@pytest.mark.parametrize("make", [plain, consumer], ids=["original", "kpsplit"])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("committed", [10, 1000], ids=["removed", "beyond the end"])
def test_an_offset_outside_the_log_is_reset_as_by_the_original(
    bootstrap, make_topic, admin, make, reset, committed
):
    topic = make_topic()
    write(bootstrap, topic, 30)
    client = plain(bootstrap, f"g-{topic}")
    client.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
    client.close()
    for deleted in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        deleted.result(20)
    member = make(bootstrap, f"g-{topic}", auto_offset_reset=reset, enable_partition_eof=True)
    member.subscribe([topic])
    found = []
    try:
        while not found or found[-1].error() is None:
            found += [message for message in [member.poll(0.2)] if message is not None]
    finally:
        member.close()
    assert found[-1].error().code() == KafkaError._PARTITION_EOF
    assert [m.offset() for m in found[:-1]] == (list(range(20, 30)) if reset == "earliest" else [])


def test_metadata_are_committed_with_their_offset_and_read_by_the_original(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)

    def seen(client):
        [part] = client.committed([TopicPartition(topic, 0)], timeout=10)
        return part.offset, part.metadata

    with consumer(bootstrap, f"g-{topic}", enable_auto_commit=False) as member:
        member.subscribe([topic])
        drain(member, 10)
        member.commit(offsets=[TopicPartition(topic, 0, 4, "half way")], asynchronous=False)
        original = plain(bootstrap, f"g-{topic}")
        assert seen(member) == seen(original) == (4, "half way")
        member.commit(asynchronous=False)
        assert seen(member) == seen(original) == (10, None)
        original.close()


def test_a_new_group_may_begin_at_the_end(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5)
    with consumer(bootstrap, f"g-{topic}", auto_offset_reset="latest") as member:
        member.subscribe([topic])
        wait_for(lambda: member.poll(0.1) is None and member.stats()["state"] == "stable", "the assignment")
        write(bootstrap, topic, 3)
        assert [m.offset() for m in drain(member, 3)] == [5, 6, 7]


def test_members_of_another_strategy_are_told_which_setting_is_wrong(bootstrap, make_topic):
    topic = make_topic()
    group = f"g-{topic}"
    with consumer(bootstrap, group) as first:
        first.subscribe([topic])
        wait_for(lambda: first.poll(0.05) is None and first.assignment(), "the first member")
        over = threading.Event()

        def keep_polling():
            while not over.is_set():
                first.poll(0.1)

        other = threading.Thread(target=keep_polling)
        other.start()
        try:
            with consumer(bootstrap, group, partition_assignment_strategy="range") as second:
                second.subscribe([topic])
                error = next_event(second).error()
                assert error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
                assert "partition.assignment.strategy=range" in error.str()
        finally:
            over.set()
            other.join()


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_assignment_strategy": "range"},
        pytest.param({"partition_assignment_strategy": "roundrobin"}, marks=pytest.mark.nightly),
        pytest.param({"group_protocol": "consumer"}, marks=pytest.mark.nightly),
        {"group_protocol": "consumer", "group_remote_assignor": "range"},
        {"group_instance_id": "me"},
    ],
    ids=["range", "roundrobin", "consumer", "consumer-range", "static"],
)
def test_every_group_protocol_reads_everything(bootstrap, make_topic, settings):
    topic = make_topic(partitions=4)
    write(bootstrap, topic, 100)
    if "group_protocol" in settings:
        settings = {**settings, "session_timeout_ms": None, "heartbeat_interval_ms": None}
    with consumer(bootstrap, f"g-{topic}", **settings) as one:
        one.subscribe([topic])
        drain(one, 60)
        with consumer(bootstrap, f"g-{topic}", **settings, client_id="two") as two:
            if "group_instance_id" in settings:
                return
            two.subscribe([topic])
            wait_for(
                lambda: (
                    (one.poll(0.02), two.poll(0.02)) and len(one.assignment()) == len(two.assignment()) == 2
                ),
                "the partitions to be shared",
            )


def test_statistics_are_told_in_the_programs_thread_by_the_client_that_reads(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 3)
    told = []
    with consumer(
        bootstrap,
        f"g-{topic}",
        client_id="a-program",
        statistics_interval_ms=200,
        stats_cb=lambda text: told.append((threading.get_ident(), json.loads(text))),
    ) as member:
        member.subscribe([topic])

        def read() -> list[int]:
            member.poll(0.05)
            topics = [found["topics"].get(topic) for _, found in told]
            return [n for one in topics if one and (n := one["partitions"].get("0", {}).get("rxmsgs"))]

        wait_for(read, "statistics of what was read")
    assert {ident for ident, _ in told} == {threading.get_ident()}
    assert {found["client_id"] for _, found in told} == {"a-program"}


def test_a_deserializing_consumer_hands_out_objects(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 5, key="key-{}")
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "key.deserializer": StringDeserializer("utf_8"),
        "value.deserializer": StringDeserializer("utf_8"),
    }
    with DeserializingConsumer[str, str](conf=config) as member:
        member.subscribe([topic])
        found = [next_event(member) for _ in range(5)]
    assert [(m.key(), m.value()) for m in found] == [(f"key-{i}", "v") for i in range(5)]


def test_a_closed_consumer_says_so(bootstrap, make_topic):
    topic = make_topic()
    member = consumer(bootstrap, f"g-{topic}")
    member.subscribe([topic])
    member.close()
    member.close()
    for call in (member.poll, member.assignment, lambda: member.subscribe([topic]), member.commit):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_group_keeps_its_place_when_one_member_hands_over_to_another(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 100)
    group = f"g-{topic}"
    with consumer(bootstrap, group) as one:
        one.subscribe([topic])
        first = values(drain(one, 40))
    with consumer(bootstrap, group) as two:
        two.subscribe([topic])
        second = drain(two, 60)
        assert second[0].offset() == 40
        assert len(first) + len(second) == 100
        time.sleep(0)


def test_an_automatic_commit_takes_nothing_back_that_the_program_has_committed(bootstrap, make_topic):
    topic = make_topic()
    write(bootstrap, topic, 10)
    group = f"g-{topic}"
    with consumer(bootstrap, group, auto_commit_interval_ms=50) as member:
        member.subscribe([topic])
        read = drain(member, 5)
        member.commit(message=read[-1], asynchronous=False)
        commits = member.stats()["commits"]
        read = drain(member, 3)
        member.commit(asynchronous=False)
        wait_for(lambda: member.stats()["commits"] > commits, "commits")
        time.sleep(0.2)  # some intervals pass
        assert committed_by(bootstrap, group, topic) == 8
