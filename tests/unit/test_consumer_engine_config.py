"""What the consumer takes of an application's configuration, and what it passes on."""

from __future__ import annotations

import confluent_kafka
import pytest

from kpsplit import Consumer, DeserializingConsumer, SerializingProducer
from kpsplit.consumer.config import RevocationPolicy, split_config
from kpsplit.consumer.fetch.gaps import GapPolicy
from kpsplit.errors import ConfigurationError

BASE = {"bootstrap.servers": "localhost:1", "group.id": "g"}


def settings_of(**more):
    return split_config({**BASE, **{name.replace("_", "."): value for name, value in more.items()}})[1]


def test_the_group_consumer_neither_commits_nor_stores_by_itself():
    passed, settings = split_config({**BASE, "enable.auto.commit": True, "auto.offset.reset": "latest"})
    assert passed["enable.auto.commit"] is False
    assert passed["enable.auto.offset.store"] is False
    assert (settings.auto_commit, settings.reset) == (True, "latest")


def test_defaults_are_those_of_the_original_but_for_strategy_and_heartbeats():
    passed, settings = split_config(BASE)
    assert passed["partition.assignment.strategy"] == "cooperative-sticky"
    assert settings.incremental
    assert (settings.auto_commit, settings.auto_store, settings.reset) == (True, True, "latest")
    assert (settings.auto_commit_interval, settings.max_poll_interval) == (5.0, 300.0)
    assert settings.buffer_bytes + (settings.fetch["queued.max.messages.kbytes"] << 10) == 64 << 20
    assert settings.revocation_policy is RevocationPolicy.RETRY_THEN_LEAVE
    assert settings.gap_policy is GapPolicy.ERROR
    assert not settings.wrap_all


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [({}, 500), ({"session.timeout.ms": 900}, 300), ({"heartbeat.interval.ms": 2000}, 2000)],
)
def test_a_member_asks_often_whether_slots_move(given, milliseconds):
    assert split_config({**BASE, **given})[0]["heartbeat.interval.ms"] == milliseconds


@pytest.mark.parametrize(("strategy", "incremental"), [("range", False), ("cooperative-sticky", True)])
def test_the_strategy_of_the_application_is_kept(strategy, incremental):
    passed, settings = split_config({**BASE, "partition.assignment.strategy": strategy})
    assert passed["partition.assignment.strategy"] == strategy
    assert settings.incremental is incremental


def test_the_consumer_protocol_has_no_strategy_of_the_client():
    passed, settings = split_config({**BASE, "group.protocol": "consumer", "group.remote.assignor": "range"})
    assert not {"partition.assignment.strategy", "heartbeat.interval.ms"} & set(passed)
    assert passed["group.remote.assignor"] == "range"
    assert settings.incremental


def test_settings_of_fetching_go_to_the_consumer_that_reads():
    passed, settings = split_config({**BASE, "fetch.min.bytes": 7, "isolation.level": "read_uncommitted"})
    assert "fetch.min.bytes" not in passed
    assert settings.fetch == {
        "fetch.min.bytes": 7,
        "isolation.level": "read_uncommitted",
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
    }
    assert settings_of(**{"fetch.queue.backoff.ms": 70}).fetch["fetch.queue.backoff.ms"] == 70


@pytest.mark.parametrize("bound", [4096, 1 << 20, 64 << 20, 1 << 30])
def test_what_the_client_and_the_buffer_hold_stays_within_one_bound(bound):
    settings = settings_of(**{"kpsplit.fetch.buffer.bytes": bound})
    client = settings.fetch["queued.max.messages.kbytes"] << 10
    assert 0 < client <= 16 << 20
    assert settings.buffer_bytes + client == bound


def test_the_clients_share_never_takes_more_than_three_quarters():
    settings = settings_of(**{"queued.max.messages.kbytes": 65_536})
    assert settings.fetch["queued.max.messages.kbytes"] == 49_152
    assert settings.buffer_bytes == 16 << 20


def test_the_clients_share_of_the_bound_can_be_chosen():
    settings = settings_of(**{"kpsplit.fetch.buffer.bytes": 8 << 20, "queued.max.messages.kbytes": 1024})
    assert (settings.fetch["queued.max.messages.kbytes"], settings.buffer_bytes) == (1024, 7 << 20)


def test_settings_of_topics_in_their_deprecated_place_count():
    assert settings_of(**{"default.topic.config": {}}).reset == "latest"
    merged = split_config({**BASE, "default.topic.config": {"auto.offset.reset": "smallest"}})[1]
    assert merged.reset == "earliest"


def test_a_revocation_fits_into_the_rebalance_timeout():
    assert settings_of(max_poll_interval_ms=12_000).revocation_timeout == 4.0
    assert settings_of().revocation_timeout == 30.0
    assert settings_of(**{"kpsplit.revocation.timeout.ms": 1500}).revocation_timeout == 1.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kpsplit.unknown", 1),
        ("kpsplit.gap.policy", "guess"),
        ("kpsplit.revocation.policy", "hope"),
        ("kpsplit.fetch.buffer.bytes", 0),
        ("kpsplit.messages", "some"),
        ("auto.offset.reset", "tomorrow"),
        ("enable.auto.commit", "maybe"),
        ("auto.commit.interval.ms", "often"),
    ],
)
def test_a_malformed_setting_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        split_config({**BASE, name: value})


def test_who_reads_has_the_programs_name_and_tells_its_statistics():
    """Quotas go by the client's name, and the client of the group reads nothing."""
    given = {"client.id": "mine", "stats_cb": print, "statistics.interval.ms": 5, "throttle_cb": repr}
    passed, settings = split_config({**BASE, **given})
    assert given.items() <= settings.fetch.items()
    assert (passed["client.id"], passed["throttle_cb"]) == ("mine", repr)
    assert not {"stats_cb", "statistics.interval.ms"} & set(passed)


def test_callbacks_of_the_clients_run_in_the_programs_thread():
    told = []
    given = {"stats_cb": told.append, "throttle_cb": told.append, "statistics.interval.ms": 50}
    with Consumer({**BASE, **given}) as consumer:
        for callback in (consumer._settings.fetch["stats_cb"], consumer._settings.fetch["throttle_cb"]):
            callback("told")
        assert told == []
        assert consumer._events.serve() == 2
    assert told == ["told", "told"]


@pytest.mark.parametrize("kind", [DeserializingConsumer, DeserializingConsumer[str, int]])
def test_the_forms_of_the_original_make_a_deserializing_consumer(kind):
    for made in (kind(dict(BASE)), kind(conf=dict(BASE))):
        with made:
            assert isinstance(made, confluent_kafka.DeserializingConsumer)


@pytest.mark.parametrize("kind", [SerializingProducer, SerializingProducer[str, int]])
def test_the_forms_of_the_original_make_a_serializing_producer(kind):
    brokers = {"bootstrap.servers": "localhost:1"}
    for made in (kind(dict(brokers)), kind(conf=dict(brokers))):
        assert isinstance(made, confluent_kafka.SerializingProducer)
        made.close(0.0)
