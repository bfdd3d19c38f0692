"""Most brokers, each asked by itself, decide whether a topic is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import DeadlineExceededError, UsageError
from kpsplit.kafka import cluster_admin
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, most_brokers_lack
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs import gather
from kpsplit.spark_jobs.gather import Gatherer, wrong_topics
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import SubTopic, SubTopicState
from kpsplit.splitter.reading import GapReason
from tests.unit.samples import UNSPLIT

TOPIC = "orders.split-3-1"


class Cluster:
    """Brokers by whether they know the topic; None: no answer. Stands for the connection and its clients.

    ``replicas``: the brokers that have the partition of another topic.
    """

    def __init__(self, *known: bool | None, replicas: Sequence[int] = ()) -> None:
        self.known = known
        partition = SimpleNamespace(replicas=[*replicas])
        self.topics = {"orders": SimpleNamespace(partitions={0: partition})}

    def shared_admin(self) -> Any:
        brokers = {n: SimpleNamespace(host="broker", port=n) for n in range(len(self.known))}
        cluster = SimpleNamespace(brokers=brokers, topics=self.topics)
        return SimpleNamespace(list_topics=lambda timeout: cluster)

    def open_admin(self, _role: str, **settings: Any) -> Any:
        known = self.known[int(settings["bootstrap_servers"].removeprefix("broker:"))]

        def list_topics(timeout: float) -> Any:
            assert timeout == ANSWER_SECONDS, "it connects, with TLS, and lists every topic"
            if known is None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return SimpleNamespace(topics={"orders", TOPIC} if known else {"orders"})

        return SimpleNamespace(list_topics=list_topics)


@pytest.mark.parametrize(
    ("known", "gone"),
    [
        ((False, False, False), True),
        ((False, False, None), True),
        ((False, None, None), False),
        ((False, False, True), False),
        ((None, None, None), False),
        ((False, None), False),
        ((False,), True),
    ],
)
def test_a_topic_is_gone_when_most_brokers_do_not_know_it_and_none_does(
    known: tuple[bool | None, ...], gone: bool
) -> None:
    assert most_brokers_lack(Cluster(*known), TOPIC) is gone  # type: ignore[arg-type]


def test_brokers_that_are_not_listed_and_have_replicas_may_know_a_topic() -> None:
    """A stale broker that has seen the others fenced lists itself alone."""
    assert not most_brokers_lack(cast(Any, Cluster(False, replicas=[0, 1, 2])), TOPIC)
    assert most_brokers_lack(cast(Any, Cluster(False, False, replicas=[0, 1, 2])), TOPIC)


def test_each_broker_of_a_mock_cluster_is_asked() -> None:
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    brokers = mock.list_topics(timeout=10).brokers.values()
    connection = Connection({"bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers)})
    assert most_brokers_lack(connection, TOPIC)
    mock.produce(TOPIC, b"value")
    assert mock.flush(10) == 0
    assert not most_brokers_lack(connection, TOPIC)


class Denying(ClusterAdmin):
    """The broker that answers knows no topic at all; ``gone``: what the vote of the brokers says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
        self.connection = cast(Any, None)
        self.asked: list[str] = []
        monkeypatch.setattr(cluster_admin, "CERTAIN_SECONDS", 0.3)
        monkeypatch.setattr(cluster_admin, "most_brokers_lack", lambda *_: gone)

    def layout(self, topic: str) -> None:
        self.asked.append(topic)


def test_certainty_about_many_topics_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"orders.split-3-{n}" for n in range(7)]
    begun = monotonic()
    assert Denying(monkeypatch, gone=True).certain(names, Deadline(10)) == dict.fromkeys(names)
    assert monotonic() - begun < 7 * 0.3


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
