"""Changelogs that are not as they should be, and warm copies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kpsplit import SlotId, StateStore
from kpsplit.clock import Deadline
from kpsplit.consumer.state.changelog import HEADER, headers_for
from kpsplit.errors import CheckFailedError, FutureVersionError, KpsplitError, UsageError
from kpsplit.splitter.records.keys import changelog_topic
from tests.broker.state_member import (
    GROUP,
    SECONDS,
    changelog_ends,
    contents,
    open_store,
    restored,
    take,
    until,
)
from tests.broker.topic_config import await_gone, set_config
from tests.conftest import MakeTopic

pytestmark = pytest.mark.broker

GOOD = {"cleanup.policy": "compact", "min.insync.replicas": "2", "max.message.bytes": "1048588"}


def flush(store: StateStore) -> None:
    store.flush(Deadline(SECONDS))


def make_changelog(admin: AdminClient, topic: str, partitions: int, **config: str) -> str:
    name = changelog_topic(GROUP, topic)
    settings = GOOD | {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(name, num_partitions=partitions, replication_factor=3, config=settings)
    admin.create_topics([new], operation_timeout=30)[name].result(30)
    return name


def deleted_before(admin: AdminClient, place: TopicPartition) -> bool:
    """Delete what lies before a place; tell whether the policy that its broker knows allows it."""
    try:
        admin.delete_records([place])[place].result(30)
    except KafkaException as refused:
        assert refused.args[0].code() == KafkaError.POLICY_VIOLATION, refused
        return False
    return True


def wiped(store: StateStore) -> dict[str, int]:
    counts: dict[str, int] = store.stats()["counts"]
    return {name: count for name, count in counts.items() if name.startswith("wiped")}


def refusal(store: StateStore, slot: SlotId) -> KpsplitError:
    """Take a slot; return why that cannot be."""
    store.taken([slot])
    found: list[KpsplitError] = []

    def refused() -> bool:
        try:
            return store.ready(slot)
        except KpsplitError as error:
            found.append(error)
            return True

    until(refused, "an answer")
    assert found, "the slot was restored"
    return found[0]


def test_a_changelog_is_made_with_a_partition_per_slot_and_grows_with_its_topic(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, tmp_path: Path
) -> None:
    topic = make_topic(2)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [SlotId(topic, 1, 3, 4)])
        name = changelog_topic(GROUP, topic)
        assert len(admin.list_topics(name).topics[name].partitions) == 8
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 3, "the partition")
        added = SlotId(topic, 2, 3, 4)
        take(store, [added])
        store.slot(added).put(b"k", b"v")
        flush(store)
        assert len(admin.list_topics(name).topics[name].partitions) == 12


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [("cleanup_policy", "delete", "cleanup.policy"), ("min_insync_replicas", "1", "min.insync.replicas")],
)
def test_a_changelog_with_the_wrong_policy_is_refused_by_name(
    bootstrap: str,
    make_topic: MakeTopic,
    admin: AdminClient,
    tmp_path: Path,
    setting: str,
    value: str,
    named: str,
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    make_changelog(admin, slot.topic, 1, **{setting: value})
    with open_store(bootstrap, tmp_path / "a") as store:
        error = refusal(store, slot)
        assert isinstance(error, CheckFailedError)
        assert named in error.message
        with pytest.raises(CheckFailedError):
            store.slot(slot).put(b"k", b"v")
        set_config(bootstrap, changelog_topic(GROUP, slot.topic), named, GOOD[named])
        store.released([slot])
        take(store, [slot])


def test_a_changelog_of_another_number_of_slots_is_refused_by_its_size_or_by_its_records(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, tmp_path: Path
) -> None:
    topic = make_topic(2)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [SlotId(topic, 0, 0, 4)])
        assert "another number of slots per partition" in refusal(store, SlotId(topic, 0, 0, 3)).message
        store.slot(SlotId(topic, 0, 0, 4)).put(b"k", b"v")
        flush(store)
        assert "was written with 4 slots per partition" in refusal(store, SlotId(topic, 0, 0, 2)).message
    topic = make_topic(4)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [SlotId(topic, 0, 0, 1)])
        store.slot(SlotId(topic, 0, 0, 1)).put(b"k", b"v")
        flush(store)
        store.released([SlotId(topic, 0, 0, 1)])
        for slot in (SlotId(topic, 0, 0, 4), SlotId(topic, 3, 3, 4)):  # also one that would have no records
            assert "was written with 1 slots per partition" in refusal(store, slot).message


def test_a_topic_that_is_not_there_is_an_error_that_names_it(
    bootstrap: str, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    name = topic_name()
    with open_store(bootstrap, tmp_path / "a") as store:
        error = refusal(store, SlotId(name, 0, 0, 1))
    assert isinstance(error, UsageError)
    assert name in error.message


def test_garbage_in_a_changelog_is_counted_and_skipped(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    name = changelog_topic(GROUP, slot.topic)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        store.slot(slot).put(b"k", b"v")
        flush(store)
    producer = Producer({"bootstrap.servers": bootstrap})
    for headers in (None, [(HEADER, b"")], [(HEADER, b"\x01")], headers_for(SlotId(slot.topic, 1, 0, 1))):
        producer.produce(name, b"garbage", b"k2", 0, headers=headers)
    producer.flush(SECONDS)
    with open_store(bootstrap, tmp_path / "b") as store:
        take(store, [slot])
        assert contents(store, slot) == {b"k": b"v"}
        assert store.stats()["counts"]["garbage"] == 4


def test_a_record_of_a_newer_version_stops_the_restoration(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(changelog_topic(GROUP, slot.topic), b"v", b"k", 0, headers=[(HEADER, b"\x02new")])
    producer.flush(SECONDS)
    with open_store(bootstrap, tmp_path / "a") as store:
        assert isinstance(refusal(store, slot), FutureVersionError)
        with pytest.raises(FutureVersionError):
            store.slot(slot).get(b"k")


def test_local_state_of_a_changelog_that_was_made_anew_is_wiped_whoever_made_it(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    name = changelog_topic(GROUP, slot.topic)

    def delete() -> None:
        admin.delete_topics([name], operation_timeout=30)[name].result(30)
        await_gone(bootstrap, name)

    with open_store(bootstrap, tmp_path / "a") as a, open_store(bootstrap, tmp_path / "b") as b:
        for made, maker in enumerate((a, b), 1):
            take(a, [slot])
            a.slot(slot).put(b"k", b"of the old topic")
            flush(a)
            a.released([slot])
            delete()
            take(maker, [slot])
            maker.released([slot])
            take(a, [slot])
            assert contents(a, slot) == {}
            assert wiped(a) == {"wiped-other-topic": made}


def test_local_state_that_ends_before_the_start_of_the_changelog_is_wiped(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    name = changelog_topic(GROUP, slot.topic)
    with open_store(bootstrap, tmp_path / "a") as a, open_store(bootstrap, tmp_path / "b") as b:
        take(a, [slot])
        a.slot(slot).put(b"only here", b"v")
        flush(a)
        a.released([slot])
        take(b, [slot])
        for key in (b"k1", b"k2", b"k3"):
            b.slot(slot).put(key, b"v")
        flush(b)
        set_config(bootstrap, name, "cleanup.policy", "compact,delete")
        # Each of both has written an end record besides.
        until(lambda: deleted_before(admin, TopicPartition(name, 0, 5)), "the broker to hear of the policy")
        set_config(bootstrap, name, "cleanup.policy", "compact")
        b.released([slot])
        take(a, [slot])
        assert contents(a, slot) == {b"k3": b"v"}
        assert wiped(a) == {"wiped-before-log-start": 1}


def test_local_state_that_may_have_missed_tombstones_is_wiped(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    make_changelog(admin, slot.topic, 1, delete_retention_ms="0")
    with open_store(bootstrap, tmp_path / "a") as a, open_store(bootstrap, tmp_path / "b") as b:
        take(a, [slot])
        a.slot(slot).put(b"k", b"v")
        flush(a)
        a.released([slot])
        take(a, [slot])
        assert wiped(a) == {}
        a.released([slot])
        take(b, [slot])
        b.slot(slot).put(b"k2", b"v")
        flush(b)
        b.released([slot])
        take(a, [slot])
        assert contents(a, slot) == {b"k": b"v", b"k2": b"v"}
        assert wiped(a) == {"wiped-older-than-tombstones": 1}


def test_a_warm_copy_takes_over_with_nothing_left_to_read(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    slots = [SlotId(topic, 0, index, 2) for index in range(2)]
    members = {"a": slots, "b": []}
    with open_store(bootstrap, tmp_path / "a", 1) as a, open_store(bootstrap, tmp_path / "b", 1) as b:
        take(a, slots)
        for store, me in ((a, "a"), (b, "b")):
            store.assigned(members, me)
        for slot in slots:
            for number in range(200):
                a.slot(slot).put(b"%d" % number, b"v")
        flush(a)
        ends = changelog_ends(bootstrap, GROUP, slots)
        until(lambda: b.stats()["standbys"] == ends, "the warm copies")
        assert a.stats()["standbys"] == {}

        a.released(slots)
        take(b, slots)
        assert restored(b) == 0
        assert b.stats()["counts"]["followed"] == 400
        assert [len(contents(b, slot)) for slot in slots] == [200, 200]

        for store, me in ((a, "a"), (b, "b")):
            store.assigned({"a": [], "b": slots}, me)
        b.slot(slots[0]).put(b"new", b"v")
        flush(b)
        ends = changelog_ends(bootstrap, GROUP, slots)
        until(lambda: a.stats()["standbys"] == ends, "the roles to change")
        b.released(slots)
        take(a, slots)
        assert restored(a) == 0
        assert len(contents(a, slots[0])) == 201


def test_without_members_enough_nobody_follows(bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    with open_store(bootstrap, tmp_path / "a", 2) as store:
        take(store, [slot])
        store.assigned({"a": [slot]}, "a")
        store.slot(slot).put(b"k", b"v")
        flush(store)
        assert store.stats()["standbys"] == {}


def test_a_commit_that_is_not_acknowledged_leaves_its_writes_waiting(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    slot = SlotId(make_topic(), 0, 0, 1)
    with open_store(bootstrap, tmp_path / "a") as store:
        take(store, [slot])
        store.slot(slot).put(b"k", b"v")
        with pytest.raises(KpsplitError) as raised:
            store.flush(Deadline(0.0))
        assert raised.value.changed is None
        assert store.stats()["pending_bytes"] == 2
        flush(store)
        assert store.stats()["pending_bytes"] == 0
    with open_store(bootstrap, tmp_path / "b") as store:
        take(store, [slot])
        assert contents(store, slot) == {b"k": b"v"}


def test_brokers_that_cannot_be_reached_keep_the_slot_waiting_with_the_reason_in_the_statistics(
    tmp_path: Path,
) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": GROUP}
    slot = SlotId("orders", 0, 0, 1)
    with StateStore(tmp_path / "a", config) as store:
        store.taken([slot])
        until(lambda: store.stats()["last_error"] is not None, "the error")
        assert not store.ready(slot)
        assert "cannot be reached" in store.stats()["last_error"] or "in time" in store.stats()["last_error"]


FORKING = """
import os, sys
from kpsplit import SlotId, StateStore
store = StateStore(sys.argv[1], {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
if os.fork() == 0:
    try:
        store.slot(SlotId("orders", 0, 0, 1)).get(b"k")
    except Exception as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.wait()
store.close()
"""


def test_a_child_after_fork_is_refused(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FORKING, os.fspath(tmp_path / "a")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert "before fork()" in child.stdout
    assert child.returncode == 0
