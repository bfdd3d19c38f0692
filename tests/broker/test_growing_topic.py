"""Partitions are added to an enrolled topic under live producers and a live group."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.spark_jobs.verification.checks import slots_findings
from kpsplit.spark_jobs.verification.findings import Severity
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.broker.consuming import Log, Member, shared, wait_for
from tests.broker.operating import split
from tests.broker.producing import Journal, eventually
from tests.conftest import MakeTopic
from tests.nights import others_at_night

pytestmark = pytest.mark.broker

SLOTS = 2
KEYS = [b"key-%d" % n for n in range(40)]
REFRESH = {"topic.metadata.refresh.interval.ms": 1000}


def add_partitions(admin: AdminClient, topic: str, count: int) -> None:
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)


def partitions_of(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions)


def send_until(
    journal: Journal, producer: Producer, topic: str, keys: list[bytes], there: Callable[[], bool]
) -> None:
    """Send a round of all keys, wait for the reports, and again until a condition holds."""

    def round_() -> bool:
        for key in keys:
            journal.send(producer, topic, key)
        producer.flush(30)
        return there()

    eventually(round_, "the producer's new partitions")


def expected(journal: Journal) -> dict[bytes, list[bytes]]:
    return {key: values for (_, key), values in journal.sent.items()}


@pytest.mark.parametrize("split_before", others_at_night([False, True], bool), ids=["unsplit", "split"])
def test_partitions_that_are_added_are_written_and_read_by_a_live_group(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic, split_before: bool
) -> None:
    """Nobody runs anything: producers follow, a member adds the slots, the group shares them."""
    topic = make_topic(1)
    parent = shared(operations, topic, SLOTS)
    if split_before:
        split(operations, parent, 2)
    log, journal = Log(), Journal()
    members = [
        Member(bootstrap, f"g-{topic}", [topic], log, name, topic_metadata_refresh_interval_ms=1000)
        for name in ("a", "b")
    ]
    for member in members:
        member.start()
    with Producer({"bootstrap.servers": bootstrap, **REFRESH}) as producer:

        def written() -> set[int]:
            return {p for reports in journal.reports.values() for _, t, p, _ in reports if t == topic}

        send_until(journal, producer, topic, KEYS, lambda: True)
        wait_for(
            lambda: log.distinct() == len(journal.values), "everything before"
        )  # order is kept per partition
        add_partitions(admin, topic, 3)
        send_until(journal, producer, topic, KEYS, lambda: {1, 2} <= written())
        producer.flush(30)
    wait_for(lambda: log.distinct() == len(journal.values), "everything")
    assert partitions_of(admin, slots_topic(topic)) == 3 * SLOTS
    assert all(not status.unread for status in operations.status(topic))
    for member in members:
        member.stop()
    assert log.duplicates() == 0
    moved = {key for key in KEYS if zlib.crc32(key) % 3}
    log.check_order({k: v for k, v in expected(journal).items() if k not in moved})
    assert {p.state.parent.partition for p in operations.offsets(f"g-{topic}", topic)} == {0, 1, 2}


def test_doctor_status_and_verify_name_partitions_that_no_group_reads(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    shared(operations, topic, SLOTS)
    add_partitions(admin, topic, 3)
    wait_for(lambda: partitions_of(admin, topic) == 3, "the new partitions")
    (found,) = (c for c in operations.doctor() if not c.ok and topic in c.message)
    assert f"no group reads partitions 1 to 2 of topic {topic}" in found.message
    assert found.remedy == f"run: kpsplit enroll {topic}"
    assert [s.unread for s in operations.status(topic)] == [False, True, True]
    snapshot = Gatherer(Connection({"bootstrap.servers": bootstrap}), topic).snapshot(with_groups=True)
    told = [(f.severity, f.parent.partition, f.message) for f in slots_findings(snapshot)]
    assert [(severity, number) for severity, number, _ in told] == [(Severity.NOTE, 1), (Severity.NOTE, 2)]
    assert f"no group reads partition 2 of topic {topic}" in told[1][2]
    shared(operations, topic, SLOTS)
    assert not [c for c in operations.doctor() if not c.ok and topic in c.message]
    assert PhysicalPartition(topic, 2) in {s.state.parent for s in operations.status(topic) if not s.unread}


def test_a_producer_writes_to_added_partitions_before_its_client_looks_at_the_topic_again(
    bootstrap: str, operations: Admin, admin: AdminClient, make_topic: MakeTopic
) -> None:
    """librdkafka refuses a partition beyond the count that it saw last, five minutes ago by default."""
    topic = make_topic(1)
    shared(operations, topic, SLOTS)
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        send_until(journal, producer, topic, KEYS, lambda: True)
        add_partitions(admin, topic, 3)
        # Of every broker: the producer looks once, at any of them.
        await_served(ClusterAdmin(Connection({"bootstrap.servers": bootstrap})), {topic: 3}, Deadline(60))
        coordinator = producer._background
        assert coordinator is not None
        coordinator._topics._metadata_at = 0.0
        wait_for(lambda: producer._state.routes[topic].count == 3, "the producer's look", 60)
        send_until(journal, producer, topic, KEYS, lambda: True)
    reports = [report for found in journal.reports.values() for report in found]
    assert [error for error, *_ in reports if error is not None] == []
    assert {partition for _, _, partition, _ in reports} == {0, 1, 2}
