"""Most brokers, each asked by itself, decide whether a topic is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, OffsetSpec, TopicMetadata

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.fetch import physical_reader
from kpsplit.consumer.fetch.gaps import LogBounds
from kpsplit.consumer.fetch.physical_reader import PhysicalReader
from kpsplit.errors import DeadlineExceededError, UnreachableError, UsageError
from kpsplit.kafka import cluster_admin
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, Vote, ask_every_broker, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_ends import LogEnd
from kpsplit.spark_jobs import gather
from kpsplit.spark_jobs.gather import Gatherer, wrong_topics
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import SubTopic, SubTopicState
from kpsplit.splitter.reading import GapReason
from tests.unit.samples import UNSPLIT

TOPIC = "orders.split-3-1"


def refused_settings(resources: list[ConfigResource], **_: float) -> dict[ConfigResource, Future[Any]]:
    refused = Future[Any]()
    refused.set_exception(KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)))
    return dict.fromkeys(resources, refused)


class Cluster:
    """Brokers by whether they know the topic; None: no answer. Stands for the connection and its clients.

    ``replicas``: the brokers that have the partition of another topic.
    """

    def __init__(self, *known: bool | None, replicas: Sequence[int] = ()) -> None:
        self.known = known
        self.given = list[float]()  # seconds for each answer
        partition = SimpleNamespace(replicas=[*replicas])
        self.topics = {"orders": SimpleNamespace(partitions={0: partition})}

    def shared_admin(self) -> Any:
        brokers = {n: SimpleNamespace(id=n, host="broker", port=n) for n in range(len(self.known))}
        self.cluster = SimpleNamespace(brokers=brokers, topics=self.topics)
        return SimpleNamespace(list_topics=lambda timeout: self.cluster)

    def open_admin(self, _role: str, **settings: Any) -> Any:
        number = int(settings["bootstrap_servers"].removeprefix("broker:"))
        known = self.known[number]

        def list_topics(topic: None = None, *, timeout: float) -> Any:
            if timeout:
                self.given.append(timeout)
            if known is None or not timeout:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            also = {TOPIC: SimpleNamespace(partitions={})} if known else {}
            brokers = self.cluster.brokers
            return SimpleNamespace(brokers=brokers, topics=self.topics | also, orig_broker_id=number)

        return SimpleNamespace(list_topics=list_topics, describe_configs=refused_settings)


def vote(*known: bool | None, replicas: Sequence[int] = ()) -> Vote:
    cluster = Cluster(*known, replicas=replicas)
    said = ask_every_broker(cast(Any, cluster))
    assert {round(seconds, 1) for seconds in cluster.given} == {ANSWER_SECONDS}, "TLS, a list of all topics"
    return said


@pytest.mark.parametrize(
    ("known", "gone", "at_once"),
    [
        ((False, False, False), True, True),
        ((False, False, None), True, False),
        ((False, None, None), False, False),
        ((False, False, True), False, False),
        ((None, None, None), False, False),
        ((False, None), False, False),
        ((False,), True, True),
    ],
)
def test_a_topic_is_gone_when_most_brokers_do_not_know_it_and_none_does(
    known: tuple[bool | None, ...], gone: bool, at_once: bool
) -> None:
    said = vote(*known)
    assert (said.most_lack(TOPIC), said.all_lack(TOPIC)) == (gone, at_once)


def test_brokers_that_are_not_listed_and_have_replicas_may_know_a_topic() -> None:
    """A stale broker that has seen the others fenced lists itself alone."""
    alone, two = vote(False, replicas=[0, 1, 2]), vote(False, False, replicas=[0, 1, 2])
    assert (alone.most_lack(TOPIC), alone.all_lack(TOPIC)) == (False, False)
    assert (two.most_lack(TOPIC), two.all_lack(TOPIC)) == (True, False)


def test_a_broker_that_only_another_one_lists_may_know_a_topic() -> None:
    cluster = Cluster(False, False)
    first = cluster.shared_admin
    cluster.shared_admin = lambda: SimpleNamespace(  # type: ignore[method-assign]
        list_topics=lambda timeout: SimpleNamespace(
            brokers={0: first().list_topics(8).brokers[0]}, topics=cluster.topics
        )
    )
    said = ask_every_broker(cast(Any, cluster))
    assert said.brokers == {0, 1}
    assert not said.all_lack(TOPIC)


def test_brokers_are_asked_at_the_same_time() -> None:
    """Three that stand still cost the time of one."""
    cluster, at_work = Cluster(False, False, False), Barrier(3)
    ask = cluster.open_admin

    def open_admin(role: str, **settings: Any) -> Any:
        at_work.wait(10)
        return ask(role, **settings)

    cluster.open_admin = open_admin  # type: ignore[method-assign]
    assert ask_every_broker(cast(Any, cluster)).all_lack(TOPIC)


@pytest.fixture
def mock() -> Producer:
    """Three brokers of the client library."""
    return Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})


def connected(mock: Producer) -> Connection:
    brokers = mock.list_topics(timeout=10).brokers.values()
    return Connection({"bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers)})


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[ClusterMetadata], None]) -> None:
    """Have answers of brokers changed on their way."""
    ask = AdminClient.list_topics

    def list_topics(admin: AdminClient, *args: Any, **settings: Any) -> ClusterMetadata:
        found = ask(admin, *args, **settings)
        change(found)
        return found

    monkeypatch.setattr(AdminClient, "list_topics", list_topics)


def test_each_broker_of_a_mock_cluster_is_asked(mock: Producer) -> None:
    connection = connected(mock)
    assert ask_every_broker(connection).all_lack(TOPIC)
    mock.produce(TOPIC, b"value")
    assert mock.flush(10) == 0
    assert not ask_every_broker(connection).most_lack(TOPIC)


def test_what_counts_as_a_brokers_answer_is_its_own(mock: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is told of one broker goes over to any, as soon as that one has named the others."""

    def sign(found: ClusterMetadata) -> None:
        found.topics = {f"broker {found.orig_broker_id}": TopicMetadata()}

    connection = connected(mock)
    changed(monkeypatch, sign)
    for _ in range(5):
        assert ask_every_broker(connection).topics == {n: {f"broker {n}"} for n in (1, 2, 3)}


def test_a_topic_is_not_served_until_the_last_broker_knows_it(
    mock: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock.produce(TOPIC, b"value")
    assert mock.flush(10) == 0
    admin = ClusterAdmin(connected(mock))
    count = len(mock.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions)
    left = [0]

    def lag(found: ClusterMetadata) -> None:
        if found.orig_broker_id == 2 and left[0] > 0:
            left[0] -= 1
            found.topics = {}

    changed(monkeypatch, lag)
    for _ in range(5):
        left[0] = 3
        await_served(admin, {TOPIC: count}, Deadline(60))
        assert left == [0]


class Asked(ClusterAdmin):
    """An admin of a cluster that forgets a deleted topic broker by broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: tuple[bool | None, ...]) -> None:
        """``looks``: which brokers list the topic, look by look; the last stays."""
        self.left = list(looks)
        self.cluster = Cluster(*looks[0])
        self.connection = cast(Any, self.cluster)
        ask = self.cluster.shared_admin

        def next_look() -> Any:
            self.cluster.known = self.left.pop(0) if len(self.left) > 1 else self.left[0]
            return ask()

        monkeypatch.setattr(self.cluster, "shared_admin", next_look)


NOT_YET = (False, True, False)


@pytest.mark.parametrize("last", [(False, False, False), (False, None, False)], ids=["all", "one-is-silent"])
def test_a_deleted_topic_is_waited_for_until_no_broker_lists_it(
    monkeypatch: pytest.MonkeyPatch, last: tuple[bool | None, ...]
) -> None:
    admin = Asked(monkeypatch, (True, True, True), NOT_YET, (None, None, None), NOT_YET, last)
    admin.await_gone(TOPIC, Deadline(60))
    assert admin.left == [last]


def test_a_deleted_topic_that_one_broker_goes_on_listing_ends_with_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Asked(monkeypatch, NOT_YET)
    with pytest.raises(DeadlineExceededError, match=f"to leave the deleted topic {TOPIC} out of its list"):
        admin.await_gone(TOPIC, Deadline(0.3))
    assert admin.cluster.given and max(admin.cluster.given) <= 0.3, "an answer may take what is left"


class Denying(ClusterAdmin):
    """The broker that answers knows no topic at all; ``gone``: whether most brokers say the same.

    ``silent``: so many of five brokers do not answer.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, gone: bool, *, silent: int = 1, seconds: float = 0.3
    ) -> None:
        self.connection = cast(Any, None)
        self.asked: list[str] = []
        answers = 5 - silent if gone else 1
        said = Vote(frozenset(range(5)), {n: frozenset() for n in range(answers)})
        monkeypatch.setattr(cluster_admin, "CERTAIN_SECONDS", seconds)
        monkeypatch.setattr(cluster_admin, "ask_every_broker", lambda *_: said)

    def layout(self, topic: str) -> None:
        self.asked.append(topic)


def test_certainty_about_many_topics_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"orders.split-3-{n}" for n in range(7)]
    begun = monotonic()
    assert Denying(monkeypatch, gone=True).certain(names, Deadline(10)) == dict.fromkeys(names)
    assert monotonic() - begun < 7 * 0.3


def test_what_no_broker_of_the_cluster_knows_is_missing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``kpsplit doctor`` before ``kpsplit init``."""
    admin = Denying(monkeypatch, gone=True, silent=0, seconds=60)
    assert admin.certain(["a", "b"], Deadline(10)) == {"a": None, "b": None}


def test_nothing_is_missing_at_once_while_one_broker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Denying(monkeypatch, gone=True, seconds=60)
    with pytest.raises(DeadlineExceededError, match="no topic a"):
        admin.certain(["a"], Deadline(0.6))


@pytest.mark.parametrize("gone", [True, False])
def test_a_log_is_missing_for_spark_only_when_most_brokers_say_so(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    subtopic = SubTopic(TOPIC, 1, 2, SubTopicState.ACTIVE)
    owners = {PhysicalPartition(TOPIC, 0): replace(UNSPLIT, subtopics=(subtopic,))}
    admin = Denying(monkeypatch, gone)
    if gone:
        assert list(wrong_topics(admin, owners, Deadline(5)).values()) == [GapReason.MISSING]
    else:
        with pytest.raises(DeadlineExceededError, match=f"no topic {TOPIC}"):
            wrong_topics(admin, owners, Deadline(0.6))


def test_spark_asks_nobody_for_retired_sub_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    subtopic = SubTopic(TOPIC, 1, 2, SubTopicState.RETIRED)
    owners = {PhysicalPartition(TOPIC, 0): replace(UNSPLIT, subtopics=(subtopic,))}
    admin = Denying(monkeypatch, gone=True)
    assert list(wrong_topics(admin, owners, Deadline(5)).values()) == [GapReason.RETIRED]
    assert admin.asked == []


def test_an_offset_log_that_goes_away_ends_a_snapshot_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gatherer = Gatherer(Connection({"bootstrap.servers": "localhost:1"}), "orders")
    admin = Denying(monkeypatch, gone=True)
    monkeypatch.setattr(admin, "topics", dict)
    monkeypatch.setattr(gatherer, "_admin", admin)
    with pytest.raises(UsageError, match="there is no topic __kpsplit.offsets; check the name"):
        gatherer._offset_log([UNSPLIT.parent])


def test_a_log_that_one_of_two_brokers_does_not_know_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker knows the topic; another one, that is asked for the ends of its logs, does not."""
    gatherer = Gatherer(Connection({"bootstrap.servers": "localhost:1"}), "orders", patience=0.3)
    monkeypatch.setattr(gather, "wrong_topics", lambda *_: {})
    admin = SimpleNamespace(end_offsets=lambda *_: {}, start_offsets=lambda *_: {})
    monkeypatch.setattr(gatherer, "_admin", admin)
    with pytest.raises(DeadlineExceededError, match="do not agree"):
        gatherer._bounds([UNSPLIT])


class OneStaleBroker:
    """Stands for a ClusterAdmin: every other broker that is asked for the ends of a log does not know it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
        self.there, self.asked, self.epoch = there, 0, 0
        monkeypatch.setattr(physical_reader, "ClusterAdmin", lambda *_: self)
        monkeypatch.setattr(physical_reader, "ASK_AGAIN_SECONDS", 0.0)

    def start_offsets(self, places: list[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        self.asked += 1
        return dict.fromkeys(places, 3) if self.there and self.asked > 1 else {}

    def end_offsets(self, places: list[PhysicalPartition], *_: object) -> dict[PhysicalPartition, LogEnd]:
        self.epoch += 1
        return dict.fromkeys(places, LogEnd(9, self.epoch)) if self.there else {}

    def known(self, topic: str) -> Any:
        return SimpleNamespace(partitions=(1, 2)) if self.there else None


@pytest.mark.parametrize("there", [True, False])
def test_a_log_has_no_bounds_for_a_reader_only_when_it_is_certain_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    OneStaleBroker(monkeypatch, there)
    reader = PhysicalReader(Connection({"bootstrap.servers": "localhost:1", "log_level": 0}))
    try:
        assert reader.bounds(PhysicalPartition(TOPIC, 1)) == (LogBounds(3, 9, 9, 3) if there else None)
        assert reader.bounds(PhysicalPartition(TOPIC, 1), 9) == (LogBounds(3, 9, 9, 9) if there else None)
    finally:
        reader.close()


def test_a_log_that_is_left_out_of_an_answer_is_not_one_without_young_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin: Any = object.__new__(ClusterAdmin)
    young, old = PhysicalPartition(TOPIC, 0), PhysicalPartition(TOPIC, 1)
    answers = {young: SimpleNamespace(offset=7), old: SimpleNamespace(offset=-1)}
    monkeypatch.setattr(admin, "_list_offsets", lambda *_: dict(answers))
    assert admin.offsets_at([young, old], 5) == {young: 7}
    del answers[old]
    with pytest.raises(UnreachableError, match="do not agree"):
        admin.offsets_at([young, old], 5)


@pytest.mark.parametrize(("time", "asked"), [(-1, 0), (-2, 0), (-86_400_000, 0), (0, 0), (5, 5)])
def test_a_time_before_1970_is_not_one_of_the_negative_numbers_that_mean_something_else(
    monkeypatch: pytest.MonkeyPatch, time: int, asked: int
) -> None:
    """Kafka takes -1 for the end of a log: nothing would be young."""
    admin: Any = object.__new__(ClusterAdmin)
    place, specs = PhysicalPartition(TOPIC, 0), []

    def answer(_: object, spec: OffsetSpec, *_more: object) -> dict[PhysicalPartition, SimpleNamespace]:
        specs.append(spec)
        return {place: SimpleNamespace(offset=7)}

    monkeypatch.setattr(admin, "_list_offsets", answer)
    admin.offsets_at([place], time)
    assert [vars(spec) for spec in specs] == [vars(OffsetSpec.for_timestamp(asked))]
