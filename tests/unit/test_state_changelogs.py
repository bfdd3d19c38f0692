"""What a group's changelogs are made of and how far they reach, without brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.admin import NewPartitions

from kpsplit.clock import Deadline
from kpsplit.consumer.state import changelog as module
from kpsplit.consumer.state.changelog import Changelogs, check_record, headers_for, is_end_record
from kpsplit.consumer.state.slots import SlotId
from kpsplit.control.own_topics import topic_config
from kpsplit.errors import (
    AuthorizationError,
    CheckFailedError,
    KpsplitError,
    RecordError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC

SLOT = SlotId("orders", 0, 0, 4)


@dataclass(frozen=True)
class End:
    offset: int


class Reader:
    def __init__(self, due: list[Message]) -> None:
        self._due = due

    def assign(self, places: list[TopicPartition]) -> None:
        end = KafkaError(KafkaError._PARTITION_EOF)
        self._due += [Message(error=end, topic=p.topic, partition=p.partition) for p in places]

    def poll(self, seconds: float) -> Message | None:
        return self._due.pop(0) if self._due else None

    def close(self) -> None: ...


class Brokers:
    """Three brokers with the topic orders and what is made there: a connection, its clients, an admin.

    ``ends``: where the next record of each changelog partition stands; ``believed``: what the leader says of
    that; ``errors``: of writes, by partition.
    """

    def __init__(self) -> None:
        self.partitions, self.alive = 1, 3
        self.own_replication: int | None = 3
        """Of __kpsplit.offsets; 0: it may not be described, None: there is none."""
        self.made: dict[str, TopicFacts] = {}
        self.ends: dict[int, int] = {}
        self.believed: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self.silent = False
        self.records: list[Message] = []
        """What the changelog has."""
        self.written: list[tuple[int, bytes]] = []
        self.opened: list[dict[str, Any]] = []
        self.looks: list[int] = []
        """How many records were written when a client looked for the leaders of the changelog."""
        self.waited: list[tuple[dict[str, int], int]] = []
        """For which topics, and how many replicas in sync."""
        self._reports: list[Callable[[], None]] = []
        self.client = self

    # a connection

    def open_producer(self, role: str, **config: Any) -> Brokers:
        self.opened.append(config)
        return self

    def open_reader(self, role: str, **config: Any) -> Reader:
        return Reader(list(self.records))

    # a producer

    def produce(self, topic: str, *, key: bytes, partition: int, on_delivery: Any) -> None:
        self.written.append((partition, key))
        if self.silent:
            return
        error = KafkaError(self.errors[partition]) if partition in self.errors else None
        offset = self.ends.get(partition, 0)
        self.ends[partition] = offset + 1
        message = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        self._reports.append(lambda: on_delivery(error, message))

    def poll(self, seconds: float) -> None:
        while self._reports:
            self._reports.pop(0)()

    # an admin

    def brokers(self) -> dict[int, str]:
        return dict.fromkeys(range(self.alive), "b")

    def topics(self) -> dict[str, int]:
        return dict.fromkeys(self.made, 1)

    def known(self, topic: str) -> TopicFacts:
        return topic_facts(topic, self.partitions, 3)

    def describe(self, topic: str) -> TopicFacts:
        return self.made[topic]

    def layout(self, topic: str) -> TopicFacts | None:
        if topic != OFFSETS_TOPIC:
            return self.made[topic]
        if self.own_replication == 0:
            raise AuthorizationError(f"missing Describe on {topic}")
        return None if self.own_replication is None else topic_facts(topic, 1, self.own_replication)

    def create(self, name: str, config: dict[str, str], partitions: int, replication: int) -> None:
        self.made[name] = replace(topic_facts(name, partitions, replication), config=config)

    def create_partitions(self, asked: list[NewPartitions], **_: Any) -> dict[str, Future[None]]:
        (one,) = asked
        self.made[one.topic] = replace(
            self.made[one.topic], partitions=self.made[one.topic].partitions[:1] * one.new_total_count
        )
        done: Future[None] = Future()
        done.set_result(None)
        return {one.topic: done}

    def start_offsets(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, End]:
        return {place: End(self.believed.get(place.partition, 0)) for place in places}


def topic_facts(name: str, partitions: int, replication: int) -> TopicFacts:
    replicas = tuple(range(replication))
    return TopicFacts(
        name, f"{name}-id", tuple(PartitionFacts(0, replicas, replicas) for _ in range(partitions))
    )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    made = Brokers()
    monkeypatch.setattr(module, "ClusterAdmin", lambda connection: connection)

    def await_served(_: Brokers, topics: dict[str, int], deadline: Deadline, in_sync: int) -> None:
        made.waited.append((topics, in_sync))

    monkeypatch.setattr(module, "await_served", await_served)
    monkeypatch.setattr(module, "learn_leaders", lambda *_: made.looks.append(len(made.written)))
    yield made


def changelogs(brokers: Brokers) -> Changelogs:
    return Changelogs(brokers, "g")  # type: ignore[arg-type]


def test_a_leader_that_was_deposed_while_it_was_frozen_does_not_say_where_an_owned_slots_changelog_ends(
    brokers: Brokers,
) -> None:
    brokers.believed, brokers.ends = {0: 90}, {0: 100}
    logs = changelogs(brokers)
    found = logs.facts([SLOT], Deadline(5), owned=True)[SLOT]
    assert (found.high, found.ends_written) == (100, True)
    assert brokers.opened[0]["acks"] == "all"
    ((partition, key),) = brokers.written
    assert partition == 0 and is_end_record(key, None)


def test_nobody_writes_to_a_changelog_to_keep_a_warm_copy(brokers: Brokers) -> None:
    brokers.believed = {0: 90}
    found = changelogs(brokers).facts([SLOT], Deadline(5), owned=False)[SLOT]
    assert (found.high, found.ends_written) == (90, False)
    assert not brokers.written


def test_a_tool_that_may_only_read_a_changelog_is_content_with_one_brokers_word(brokers: Brokers) -> None:
    brokers.believed, brokers.errors = {0: 90}, {0: KafkaError.TOPIC_AUTHORIZATION_FAILED}
    found = changelogs(brokers).facts([SLOT], Deadline(5), owned=True)[SLOT]
    assert (found.high, found.ends_written) == (90, False)


def test_each_slot_has_its_own_end_and_no_two_end_records_the_same_key(brokers: Brokers) -> None:
    brokers.ends = {0: 7, 1: 9}
    slots = [SLOT, SlotId("orders", 0, 1, 4)]
    found = changelogs(brokers).facts(slots, Deadline(5), owned=True)
    assert [found[slot].high for slot in slots] == [7, 9]
    assert len({key for _, key in brokers.written}) == 2


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError._UNKNOWN_PARTITION, UnreachableError),
        (KafkaError._MSG_TIMED_OUT, UnknownOutcomeError),
        (KafkaError.NOT_ENOUGH_REPLICAS, KpsplitError),
    ],
)
def test_a_slot_is_not_restored_to_an_end_that_was_not_acknowledged(
    brokers: Brokers, code: int, raised: type[KpsplitError]
) -> None:
    brokers.errors = {0: code}
    with pytest.raises(raised):
        changelogs(brokers).facts([SLOT], Deadline(5), owned=True)


def test_a_slot_with_a_warm_copy_waits_for_no_client_to_connect(
    brokers: Brokers,
) -> None:
    logs = changelogs(brokers)
    (opened,) = brokers.opened
    assert opened["enable_sparse_connections"] is False, "it connects when it is needed"
    logs.facts([SLOT], Deadline(5), owned=False)
    assert brokers.looks == [0, 0], "the admin client, and the one that writes"
    assert logs.facts([SLOT], Deadline(5), owned=True)[SLOT].ends_written
    assert (len(brokers.looks), len(brokers.opened)) == (2, 1)


def test_a_client_that_does_not_know_a_partition_looks_for_leaders_again(brokers: Brokers) -> None:
    logs = changelogs(brokers)
    brokers.errors = {0: KafkaError._UNKNOWN_PARTITION}
    with pytest.raises(UnreachableError):
        logs.facts([SLOT], Deadline(5), owned=True)
    brokers.errors = {}
    assert logs.facts([SLOT], Deadline(5), owned=True)[SLOT].ends_written
    assert len(brokers.looks) == 4


def test_an_end_record_that_is_not_acknowledged_in_time_is_written_again_later(brokers: Brokers) -> None:
    brokers.silent = True
    logs = changelogs(brokers)
    with pytest.raises(UnknownOutcomeError):
        logs.facts([SLOT], Deadline(0.01), owned=True)
    brokers.silent = False
    assert logs.facts([SLOT], Deadline(5), owned=True)[SLOT].high == 0


def test_an_end_record_is_none_of_the_slots_records_whatever_keys_the_application_has(
    brokers: Brokers,
) -> None:
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)
    (_, key) = brokers.written[0]
    with pytest.raises(RecordError):
        check_record(SLOT, key, None)
    assert not is_end_record(key, headers_for(SLOT)), "the application's"


def test_a_changelog_that_is_made_while_a_broker_is_away_has_all_its_replicas(brokers: Brokers) -> None:
    brokers.alive = 2
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)
    (made,) = brokers.made.values()
    assert (made.replication, made.config["min.insync.replicas"]) == (3, "2")
    brokers.alive = 3
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)


def test_a_changelog_with_too_few_replicas_is_refused_although_a_broker_is_away(brokers: Brokers) -> None:
    brokers.alive = 2
    logs = changelogs(brokers)
    brokers.create(logs.name(SLOT), topic_config(2), partitions=4, replication=2)
    with pytest.raises(CheckFailedError, match="replication factor is 2, not 3"):
        logs.facts([SLOT], Deadline(5), owned=True)


@pytest.mark.parametrize(("own", "alive", "expected"), [(1, 3, 1), (None, 2, 2), (0, 2, 2), (5, 5, 3)])
def test_a_changelog_has_as_many_replicas_as_kpsplits_own_topics_or_else_one_for_each_broker(
    brokers: Brokers, own: int | None, alive: int, expected: int
) -> None:
    brokers.own_replication, brokers.alive = own, alive
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)
    (made,) = brokers.made.values()
    assert made.replication == expected


@pytest.mark.parametrize(("replicas", "enough"), [(3, 2), (2, 1), (1, 1)])
def test_nobody_waits_for_a_broker_that_is_away_but_for_as_many_replicas_as_a_write_needs(
    brokers: Brokers, replicas: int, enough: int
) -> None:
    brokers.own_replication = replicas
    logs = changelogs(brokers)
    logs.facts([SLOT], Deadline(5), owned=True)
    brokers.partitions = 2
    logs.facts([SlotId("orders", 1, 0, 4)], Deadline(5), owned=True)
    assert brokers.waited == [({logs.name(SLOT): 4}, enough), ({logs.name(SLOT): 8}, enough)]


def record_of(slot: SlotId) -> Message:
    return Message(topic="changelog", partition=slot.number, key=b"k", value=b"v", headers=headers_for(slot))


def test_a_broker_that_does_not_know_yet_that_the_topic_has_grown_makes_no_other_division(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, for a minute; nobody is told to delete the changelog."""
    brokers.records = [record_of(SLOT)]
    brokers.partitions = 2
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)
    brokers.partitions = 1
    stale = changelogs(brokers)
    with pytest.raises(UnreachableError, match="has 8 partitions, a broker says that 4 are needed"):
        stale.facts([SLOT], Deadline(5), owned=True)
    brokers.partitions = 2
    assert stale.facts([SLOT], Deadline(5), owned=True)
    monkeypatch.setattr(module, "_CERTAIN_SECONDS", 0.0)
    brokers.partitions = 1
    with pytest.raises(CheckFailedError, match="has 8 partitions"):
        changelogs(brokers).facts([SLOT], Deadline(5), owned=True)


def test_a_changelog_with_more_partitions_in_which_nothing_was_written_is_used_as_it_is(
    brokers: Brokers,
) -> None:
    brokers.partitions = 2
    changelogs(brokers).facts([SLOT], Deadline(5), owned=True)
    brokers.partitions = 1
    assert changelogs(brokers).facts([SLOT], Deadline(5), owned=True)[SLOT].high == 1


def test_a_changelog_with_more_partitions_of_another_division_is_refused(brokers: Brokers) -> None:
    brokers.records = [record_of(SlotId("orders", 0, 0, 2))]
    logs = changelogs(brokers)
    brokers.create(logs.name(SLOT), topic_config(3), partitions=8, replication=3)
    with pytest.raises(CheckFailedError, match="written with 2 slots"):
        logs.facts([SLOT], Deadline(5), owned=True)
    brokers.made.clear()
    brokers.create(logs.name(SLOT), topic_config(3), partitions=7, replication=3)
    with pytest.raises(CheckFailedError, match="written with 7 partitions, not 4"):
        logs.facts([SLOT], Deadline(5), owned=True)
