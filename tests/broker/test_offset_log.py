"""Range commits on real brokers: atomic with the ordinary offsets, fenced, decided before they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import (
    CheckFailedError,
    DeadlineExceededError,
    FencedError,
    InvariantError,
    UnknownOutcomeError,
    UnreachableError,
    UsageError,
)
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import TRANSACTION_TIMEOUT_MS, OperationLog
from kpsplit.kafka.following import FollowingProducer
from kpsplit.kafka.offset_log import OffsetTail, offset_log_partitions
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition
from tests.broker.committing import SECONDS, await_owned, commit_of, held, member, tailing, writer
from tests.broker.operating import enrolled
from tests.conftest import MakeTopic
from tests.nights import protocols

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("operations")]

LEFT, RIGHT = WHOLE.split_evenly(2)
PROTOCOLS = ["classic", "consumer"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_is_read_back_with_the_ordinary_offsets_of_its_transaction(
    bootstrap: str, make_topic: MakeTopic, protocol: str
) -> None:
    slots, parent = make_topic(4), PhysicalPartition(make_topic(), 0)
    commits = writer(bootstrap)
    with member(bootstrap, slots, slots, protocol) as owner, tailing(bootstrap, parent) as tail:
        await_owned([(owner, 4)])
        commits.commit(
            [commit_of(slots, parent, {0: 7}, LEFT), commit_of(slots, parent, {0: 9}, RIGHT)],
            [],
            {parent: 7},
            owner.metadata(),
            Deadline(SECONDS),
        )
        assert held(tail, slots, parent) == [(LEFT, {0: 7}), (RIGHT, {0: 9})]
        assert owner.committed(parent) == 7

        whole = commit_of(slots, parent, {0: 10})
        stale = tail.fold.stale_keys(slots, parent, [WHOLE])
        commits.commit([whole], stale, {parent: 10}, owner.metadata(), Deadline(SECONDS))
        assert held(tail, slots, parent) == [(WHOLE, {0: 10})]
        assert owner.committed(parent) == 10


@pytest.mark.parametrize("protocol", protocols("consumer"))
def test_a_member_of_an_older_generation_commits_nothing(
    bootstrap: str, make_topic: MakeTopic, protocol: str
) -> None:
    """A second member takes over half of the slots: the first one's old metadata are of no use any more."""
    slots, parent = make_topic(4), PhysicalPartition(make_topic(), 0)
    commits = writer(bootstrap)
    with member(bootstrap, slots, slots, protocol) as first, tailing(bootstrap, parent) as tail:
        await_owned([(first, 4)])
        before = first.metadata()
        commits.commit([commit_of(slots, parent, {0: 5})], [], {parent: 5}, before, Deadline(SECONDS))
        with member(bootstrap, slots, slots, protocol) as second:
            await_owned([(first, 2), (second, 2)])
            with pytest.raises(FencedError) as caught:
                commits.commit(
                    [commit_of(slots, parent, {0: 99})], [], {parent: 99}, before, Deadline(SECONDS)
                )
            assert caught.value.retriable
            assert held(tail, slots, parent) == [(WHOLE, {0: 5})]
            assert first.committed(parent) == 5
            # The writer goes on with metadata of the present generation.
            commits.commit(
                [commit_of(slots, parent, {0: 6})], [], {parent: 6}, first.metadata(), Deadline(SECONDS)
            )
            assert held(tail, slots, parent) == [(WHOLE, {0: 6})]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_lost_everything_commits_nothing(
    bootstrap: str, make_topic: MakeTopic, protocol: str
) -> None:
    slots, parent = make_topic(2), PhysicalPartition(make_topic(), 0)
    commits = writer(bootstrap)
    with member(bootstrap, slots, slots, protocol) as first:
        await_owned([(first, 2)])
        before = first.metadata()
    with member(bootstrap, slots, slots, protocol) as second, tailing(bootstrap, parent) as tail:
        await_owned([(second, 2)])
        with pytest.raises(FencedError) as caught:
            commits.commit([commit_of(slots, parent, {0: 99})], [], {parent: 99}, before, Deadline(SECONDS))
        assert not caught.value.retriable
        assert held(tail, slots, parent) == []


def test_what_is_written_besides_stands_or_falls_with_the_commit(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    slots, parent = make_topic(2), PhysicalPartition(make_topic(), 0)
    commits = writer(bootstrap)

    def fail(_producer: Producer) -> None:
        raise ValueError("the application's own")

    with member(bootstrap, slots, slots, "classic") as owner, tailing(bootstrap, parent) as tail:
        await_owned([(owner, 2)])
        who = owner.metadata()
        with pytest.raises(ValueError, match="own"):
            commits.commit([commit_of(slots, parent, {0: 1})], [], {parent: 1}, who, Deadline(SECONDS), fail)
        assert held(tail, slots, parent) == []
        other = commit_of("besides", parent, {0: 3})
        place = offsets_partition(
            parent, offset_log_partitions(ClusterAdmin(Connection({"bootstrap.servers": bootstrap})))
        )
        commits.commit(
            [commit_of(slots, parent, {0: 2})],
            [],
            {parent: 2},
            who,
            Deadline(SECONDS),
            lambda producer: producer.produce(OFFSETS_TOPIC, other.encode(), other.key, place),
        )
        assert held(tail, slots, parent) == [(WHOLE, {0: 2})]
        assert held(tail, "besides", parent) == [(WHOLE, {0: 3})]


def test_a_writer_whose_id_is_taken_while_state_is_written_says_what_happened(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """Of a record the client library says only that its producer has failed for good."""
    slots, parent, changelog = make_topic(2), PhysicalPartition(make_topic(), 0), make_topic()
    connection, name = Connection({"bootstrap.servers": bootstrap}), f"taken-{parent.topic}"
    partitions = offset_log_partitions(ClusterAdmin(connection))

    def write(producer: Producer) -> None:
        with closing(CommitWriter(connection, name, partitions)) as taker:
            taker.open(Deadline(SECONDS))
        deadline = Deadline(SECONDS)
        while True:
            producer.produce(changelog, b"state")
            deadline.check("the client library to refuse a record")
            deadline.pause(0.01)

    with (
        closing(CommitWriter(connection, name, partitions)) as taken,
        member(bootstrap, slots, slots, "classic") as owner,
        tailing(bootstrap, parent) as tail,
    ):
        await_owned([(owner, 2)])
        who, commit = owner.metadata(), commit_of(slots, parent, {0: 1})
        with pytest.raises(UnreachableError, match="the transaction was ended by the brokers"):
            taken.commit([commit], [], {parent: 1}, who, Deadline(SECONDS), write)
        assert held(tail, slots, parent) == []
        taken.commit([commit], [], {parent: 1}, who, Deadline(SECONDS))
        assert held(tail, slots, parent) == [(WHOLE, {0: 1})]


def test_a_commit_that_would_not_be_fenced_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    with pytest.raises(InvariantError, match="not be fenced"):
        writer(bootstrap).commit([commit_of("g", parent, {0: 1})], [], {}, object(), Deadline(SECONDS))


def test_a_new_owner_waits_until_an_older_transaction_is_decided(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """Its commit, of the generation before, counts if it succeeds in the end."""
    parent = PhysicalPartition(make_topic(), 0)
    connection = Connection({"bootstrap.servers": bootstrap})
    place = offsets_partition(parent, offset_log_partitions(ClusterAdmin(connection)))
    older = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"older-{parent.topic}"})
    older.init_transactions(SECONDS)
    older.begin_transaction()
    record = commit_of("g", parent, {0: 4})
    older.produce(OFFSETS_TOPIC, record.encode(), record.key, place)
    older.flush(SECONDS)
    with tailing(bootstrap, parent) as tail:
        with pytest.raises(DeadlineExceededError, match="an open transaction may hold it up"):
            tail.read_to_end(Deadline(5.0))
        ends = tail.ask_end().result()
        assert not tail.reached(ends)
        older.commit_transaction(SECONDS)
        tail.read_to(ends, Deadline(SECONDS))
        assert tail.reached(ends)
        assert [c.positions[0].next for _, c in tail.fold.commits("g", parent)] == [4]


@dataclass
class Looking:
    """A deadline that notes where the log ends whenever it is asked."""

    tail: OffsetTail
    ends: list[dict[int, int]]

    def left(self) -> float:
        self.ends.append(self.tail.ask_end().result())
        return SECONDS

    def check(self, what: str) -> None:
        raise AssertionError(what)


def test_the_generation_is_looked_at_when_the_records_are_in_the_log_and_not_before(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """Otherwise a member that is suspended in between would write behind what its successor has read."""
    slots, parent = make_topic(2), PhysicalPartition(make_topic(), 0)
    commits = writer(bootstrap)
    commits.open(Deadline(SECONDS))
    with member(bootstrap, slots, slots, "classic") as owner, tailing(bootstrap, parent) as tail:
        await_owned([(owner, 2)])
        looking = Looking(tail, [])
        before = sum(tail.ask_end().result().values())
        commits.commit([commit_of(slots, parent, {0: 1})], [], {parent: 1}, owner.metadata(), looking)
        _beginning, _acknowledging, sending_offsets, _committing = (
            sum(ends.values()) for ends in looking.ends
        )
        assert sending_offsets == before + 1


def test_partitions_that_are_followed_later_are_read_from_their_start(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    slots, first = make_topic(2), PhysicalPartition(make_topic(8), 0)
    count = offset_log_partitions(ClusterAdmin(Connection({"bootstrap.servers": bootstrap})))
    home = offsets_partition(first, count)
    places = (PhysicalPartition(first.topic, p) for p in range(1, 8))
    other = next(place for place in places if offsets_partition(place, count) != home)
    with member(bootstrap, slots, slots, "classic") as owner, tailing(bootstrap, first) as tail:
        await_owned([(owner, 2)])
        records = [commit_of(slots, p, {0: 1}) for p in (first, other)]
        writer(bootstrap).commit(records, [], {first: 1, other: 1}, owner.metadata(), Deadline(SECONDS))
        assert held(tail, slots, other) == []
        tail.follow([home, offsets_partition(other, count)])
        assert held(tail, slots, other) == [(WHOLE, {0: 1})]
        assert held(tail, slots, first) == [(WHOLE, {0: 1})]


@pytest.fixture(scope="module")
def alone(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    """One broker, for what would spoil the offset log of the others."""
    with DevCluster(brokers=1) as running:
        yield running


class Making:
    """Makes producers, and keeps them."""

    def __init__(self) -> None:
        self.made: list[Producer] = []

    def __call__(self, config: Mapping[str, Any]) -> Producer:
        self.made.append(FollowingProducer(dict(config)))
        return self.made[-1]


def assert_late_twice_then_ready(alone: DevCluster, get_ready: Callable[[Deadline], object]) -> None:
    """Get ready while the broker answers nothing, and then when it does."""
    alone.pause(0)
    try:
        for _ in range(2):
            with pytest.raises(UnreachableError):
                get_ready(Deadline(0.2))
    finally:
        alone.resume(0)
    alone.wait_ready()
    get_ready(Deadline(SECONDS))


def test_a_writer_that_cannot_get_ready_in_time_goes_on_with_it_at_the_next_call(alone: DevCluster) -> None:
    """Where connecting takes longer than any call may, a writer that began anew would never be ready."""
    connection, make = Connection({"bootstrap.servers": alone.bootstrap}), Making()
    assert_late_twice_then_ready(alone, CommitWriter(connection, "kpsplit.commit.slow", 1, make).open)
    assert len(make.made) == 1


def test_a_claim_that_does_not_come_through_in_time_goes_on_at_the_next_call(
    alone: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, make = Connection({"bootstrap.servers": alone.bootstrap}), Making()
    with Admin(connection) as operations:
        operations.initialise(lease_ms=100)
        admin, topic = AdminClient({"bootstrap.servers": alone.bootstrap}), "claimed-slowly"
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
        parent = enrolled(operations, topic)

    opens = connection.open_producer

    def opened(role: str, **settings: Any) -> Producer:
        return make(connection.client(role, **settings)) if role == "operator" else opens(role, **settings)

    monkeypatch.setattr(connection, "open_producer", opened)
    with closing(OperationLog(connection, parent)) as operation:
        assert_late_twice_then_ready(alone, operation.claim)
    assert len(make.made) == 1


@dataclass
class Freezing:
    """A deadline that freezes the broker when it is asked for the n-th time, and ends some seconds later."""

    cluster: DevCluster
    asked_before: int
    seconds: float = 1.0

    def left(self) -> float:
        self.asked_before -= 1
        if self.asked_before >= 0:
            return SECONDS
        if self.asked_before == -1:
            self.cluster.pause(0)
        return self.seconds

    def check(self, what: str) -> None:
        raise AssertionError(what)


@pytest.mark.parametrize(
    ("asked_before", "seconds", "error", "counts"),
    [
        # What was acknowledged just before leaves the offsets without an answer instead.
        (1, 1.0, (DeadlineExceededError, UnreachableError), {False}),
        (3, 1.0, UnknownOutcomeError, {False, True}),
        pytest.param(
            *(3, TRANSACTION_TIMEOUT_MS / 1000 + 5, UnknownOutcomeError, {False, True}),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_commit_without_an_answer_is_either_in_the_log_or_not_and_the_next_one_goes_on(
    alone: DevCluster, asked_before: int, seconds: float, error: Any, counts: set[bool]
) -> None:
    """The broker freezes while records are acknowledged, or while the transaction is committed.

    Behind the time that a transaction has librdkafka asks for an abort, as if it were known that nothing was
    committed.
    """
    bootstrap = alone.bootstrap
    with Admin(Connection({"bootstrap.servers": bootstrap})) as operations:
        operations.initialise(lease_ms=100)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = f"frozen-{asked_before}-{seconds:.0f}"
    for created in admin.create_topics([NewTopic(name, 2, 1)]).values():
        created.result(SECONDS)
    parent = PhysicalPartition(name, 0)
    commits = writer(bootstrap)
    with member(bootstrap, name, name, "classic") as owner, tailing(bootstrap, parent) as tail:
        await_owned([(owner, 2)])
        commits.open(Deadline(SECONDS))
        lost = commit_of(name, parent, {0: 1}, LEFT)
        try:
            with pytest.raises(error):
                frozen = Freezing(alone, asked_before, seconds)
                commits.commit([lost], [], {parent: 1}, owner.metadata(), frozen)
        finally:
            alone.resume(0)
        alone.wait_ready()
        await_owned([(owner, 2)])
        commits.commit(
            [commit_of(name, parent, {0: 2}, RIGHT)], [], {parent: 2}, owner.metadata(), Deadline(SECONDS)
        )
        found = held(tail, name, parent)
        assert found[-1] == (RIGHT, {0: 2})
        assert ((LEFT, {0: 1}) in found) in counts


def test_garbage_is_counted_and_a_newer_version_stops_nobody_else(alone: DevCluster) -> None:
    bootstrap = alone.bootstrap
    with Admin(Connection({"bootstrap.servers": bootstrap})) as operations:
        operations.initialise(lease_ms=100)
    parent = PhysicalPartition("spoilt", 0)
    place = offsets_partition(parent, 16)
    plain = Producer({"bootstrap.servers": bootstrap})
    good = commit_of("g", parent, {0: 4})
    plain.produce(OFFSETS_TOPIC, b"?", b"?", place)
    plain.produce(OFFSETS_TOPIC, good.encode(), good.key, place)
    plain.flush(SECONDS)
    with tailing(bootstrap, parent) as tail:
        assert held(tail, "g", parent) == [(WHOLE, {0: 4})]
        assert tail.fold.garbage == 1
        other = commit_of("newer", parent, {0: 5})
        plain.produce(OFFSETS_TOPIC, other.encode().replace(b'"v":1', b'"v":2'), other.key, place)
        better = commit_of("g", parent, {0: 6})
        plain.produce(OFFSETS_TOPIC, better.encode(), better.key, place)
        plain.flush(SECONDS)
        assert held(tail, "g", parent) == [(WHOLE, {0: 6})]
        assert "group newer for" in str(tail.fold.newer("newer", parent)) and not held(tail, "newer", parent)


def test_a_missing_or_uncompacted_offset_log_is_a_clear_error(kafka_runtime: KafkaRuntime) -> None:
    with DevCluster(brokers=1) as bare:
        connection = Connection({"bootstrap.servers": bare.bootstrap})
        with pytest.raises(UsageError, match="no topic __kpsplit.offsets; run: kpsplit init"):
            offset_log_partitions(ClusterAdmin(connection))
        with pytest.raises(UnreachableError, match="no such topic, run: kpsplit init"):
            OffsetTail(connection, 1, [0]).read_to_end(Deadline(SECONDS))
        admin = AdminClient({"bootstrap.servers": bare.bootstrap})
        wrong = NewTopic(OFFSETS_TOPIC, 4, 1, config={"cleanup.policy": "compact,delete"})
        admin.create_topics([wrong])[OFFSETS_TOPIC].result(SECONDS)
        with pytest.raises(CheckFailedError, match="range commits would be lost"):
            offset_log_partitions(ClusterAdmin(connection))
