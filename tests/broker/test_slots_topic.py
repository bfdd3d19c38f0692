"""Enrolment makes the slots topic, repairs it, and refuses what stands in its place."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.errors import CheckFailedError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment
from kpsplit.splitter.records.keys import CONTROL_TOPIC, enrolment_key, slots_topic
from tests.broker.operating import DiedError, dying_after, operating, write_error
from tests.broker.topic_config import await_gone
from tests.conftest import CreateTopic, MakeTopic

pytestmark = pytest.mark.broker

KIND = Partitioner.EXPLICIT


def count_of(admin: AdminClient, topic: str) -> int:
    found = admin.list_topics(timeout=10).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def test_the_slots_topic_has_so_many_partitions_per_partition_and_takes_no_record(
    operations: Admin, bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    enrolment = operations.enrol(topic, KIND, slots=4)
    assert (enrolment.settled, enrolment.slots) == (True, 4)
    assert operations.view().enrolments[topic] == enrolment
    assert count_of(admin, slots_topic(topic)) == 12
    error = write_error(bootstrap, PhysicalPartition(slots_topic(topic), 0))
    assert error is not None and error.name() == "MSG_SIZE_TOO_LARGE"
    assert operations.enrol(topic, KIND) == enrolment
    for wrong in (0, 65):
        with pytest.raises(UsageError, match="1 to 64"):
            operations.enrol(make_topic(), KIND, slots=wrong)


def test_the_default_is_about_256_slots(operations: Admin, admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    assert operations.enrol(topic, KIND).slots == 64
    assert count_of(admin, slots_topic(topic)) == 64


def test_enrolling_again_adds_slots_where_the_topic_has_grown_and_makes_a_lost_slots_topic_anew(
    operations: Admin, bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    operations.enrol(topic, KIND, slots=2)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    await_served(ClusterAdmin(Connection({"bootstrap.servers": bootstrap})), {topic: 3}, Deadline(60))
    assert operations.enrol(topic, KIND).slots == 2
    assert count_of(admin, slots_topic(topic)) == 6
    admin.delete_topics([slots_topic(topic)])[slots_topic(topic)].result(30)
    await_gone(bootstrap, slots_topic(topic))
    operations.enrol(topic, KIND)
    assert count_of(admin, slots_topic(topic)) == 6


@pytest.mark.parametrize("step", ["Slots", "Enrol", "Settled"])
def test_an_enrolment_that_died_is_finished_by_the_next_one_with_the_slots_it_chose(
    operations: Admin, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(2)
    with pytest.raises(DiedError):
        operations.enrol(topic, KIND, dying_after(step), slots=8)
    assert operations.enrol(topic, KIND) == operations.view().enrolments[topic]
    assert operations.view().enrolments[topic].slots == 8


def test_an_enrolment_of_an_older_version_gets_slots_after_a_lease_without_plain_owners(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    """It is unsettled first: members that own its partitions by number stop handing out."""
    topic = make_topic(1)
    first = operations.enrol(topic, KIND, slots=2)
    old = Enrolment(topic, first.topic_id, KIND, settled=True)
    writer = AcknowledgedWriter(Connection({"bootstrap.servers": bootstrap}), "tests")
    writer.write(CONTROL_TOPIC, enrolment_key(topic), encode_enrolment(old), Deadline(120))
    assert operations.view().enrolments[topic].slots is None
    seen = []

    def observe(step) -> None:
        if step.name == "Enrol":
            with operating(bootstrap) as others:
                seen.append(others.view().enrolments[topic])

    assert operations.enrol(topic, KIND, observe) == first
    assert seen == [Enrolment(topic, first.topic_id, KIND, settled=False, slots=2)]


def test_a_foreign_topic_in_its_place_is_refused_and_the_enrolment_is_not_begun(
    operations: Admin, bootstrap: str, make_topic: MakeTopic, create_topic: CreateTopic
) -> None:
    crooked, full, thin = make_topic(2), make_topic(1), make_topic(1)
    for topic, partitions, replicas in ((crooked, 3, 3), (full, 4, 3), (thin, 4, 1)):
        create_topic(slots_topic(topic), partitions, replicas)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(slots_topic(full), b"somebody's", partition=0)
    assert producer.flush(30) == 0
    for topic, wrong in (
        (crooked, "has 3 partitions, not 8"),
        (full, "it holds records"),
        (thin, "replication factor is 1, not 3"),
    ):
        with pytest.raises(CheckFailedError, match=wrong):
            operations.enrol(topic, KIND, slots=4)
        assert topic not in operations.view().enrolments


def test_two_that_enrol_at_the_same_time_agree(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    found: list[Enrolment] = []

    def enrol() -> None:
        with operating(bootstrap) as mine:
            found.append(mine.enrol(topic, KIND, slots=4))

    threads = [threading.Thread(target=enrol) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert found == [operations.view().enrolments[topic]] * 2
