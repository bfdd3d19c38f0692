"""What the producer takes for itself, enforces and refuses."""

from __future__ import annotations

import math

import pytest

from kpsplit import Producer
from kpsplit.errors import ConfigurationError
from kpsplit.producer.config import split_config

BROKERS = {"bootstrap.servers": "localhost:1"}


@pytest.mark.parametrize(
    "name", ["enable.idempotence", "acks", "request.required.acks", "enable.gapless.guarantee"]
)
def test_contradicting_settings_are_refused_by_name(name: str) -> None:
    wrong = {"enable.idempotence": False, "enable.gapless.guarantee": "true"}.get(name, 1)
    with pytest.raises(ConfigurationError, match=f"{name}={wrong} contradicts kpsplit") as caught:
        Producer({**BROKERS, name: wrong})
    assert caught.value.hint == f"remove {name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", True),
        ("enable.idempotence", "TRUE"),
        ("acks", "all"),
        ("acks", -1),
        ("request.required.acks", "-1"),
        ("enable.gapless.guarantee", False),
        ("acks", None),
    ],
)
def test_settings_that_agree_are_taken(name: str, value: object) -> None:
    rdkafka, _ = split_config({**BROKERS, name: value})
    ours = {"enable.idempotence": True, "acks": "all", "allow.auto.create.topics": False}
    assert rdkafka == {**BROKERS, **ours, "retry.backoff.ms": 10}


def test_the_application_may_choose_when_what_a_broker_refused_is_sent_again() -> None:
    rdkafka, _ = split_config({**BROKERS, "retry.backoff.ms": 100})
    assert rdkafka["retry.backoff.ms"] == 100


@pytest.mark.parametrize(("given", "wanted"), [({}, True), ({"allow.auto.create.topics": "false"}, False)])
def test_topics_are_created_where_the_application_allows_it_but_never_by_its_client(
    given: dict[str, str], wanted: bool
) -> None:
    rdkafka, settings = split_config({**BROKERS, **given})
    assert (rdkafka["allow.auto.create.topics"], settings.auto_create) == (False, wanted)


def test_the_deprecated_topic_settings_count_as_well() -> None:
    with pytest.raises(ConfigurationError, match="acks=1 contradicts"):
        split_config({"default.topic.config": {"acks": 1}})
    rdkafka, settings = split_config({"default.topic.config": {"partitioner": "murmur2_random"}})
    assert settings.partitioner == rdkafka["partitioner"] == "murmur2_random"
    assert "default.topic.config" not in rdkafka


@pytest.mark.parametrize("name", ["kpsplit.op.orders/0", "kpsplit.x", "a\0b"])
def test_a_transactional_id_with_which_no_operator_would_wait_for_it_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"transactional.id=.*kpsplit's own"):
        Producer({**BROKERS, "transactional.id": name})


@pytest.mark.parametrize("name", ["app", "kpsplit.run.billing/a1"])
def test_any_other_transactional_id_is_taken(name: str) -> None:
    assert split_config({**BROKERS, "transactional.id": name})[1].transactional_id == name


def test_unknown_settings_of_kpsplit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting 'kpsplit\.takeover'") as caught:
        split_config({"kpsplit.takeover": True})
    assert "kpsplit.takeover.enable" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["kpsplit.takeover.enable", "delivery.report.only.error"])
def test_flags_must_be_true_or_false(name: str) -> None:
    for value in ("perhaps", 1):
        with pytest.raises(ConfigurationError, match="neither true nor false"):
            split_config({name: value})


def test_numbers_must_be_numbers() -> None:
    for name in ("queue.buffering.max.messages", "queue.buffering.max.kbytes"):
        with pytest.raises(ConfigurationError, match=name):
            split_config({name: "many"})


@pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
def test_the_message_timeout_must_be_a_number(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        split_config({name: "soon"})


def test_what_the_library_needs_is_taken_from_the_applications_settings() -> None:
    def report(error: object, message: object) -> None: ...

    rdkafka, settings = split_config(
        {
            **BROKERS,
            "partitioner": "murmur2_random",
            "client.id": "billing",
            "transactional.id": "t",
            "on_delivery": report,
            "delivery.report.only.error": "True",
            "queue.buffering.max.messages": "0",
            "queue.buffering.max.kbytes": 7,
            "delivery.timeout.ms": "1500",
            "kpsplit.takeover.enable": False,
        }
    )
    assert settings.partitioner == "murmur2_random"
    assert (settings.client_id, settings.transactional_id) == ("billing", "t")
    assert settings.on_delivery is report and settings.only_errors and not settings.takeover
    assert settings.queue_messages > 1 << 30
    assert (settings.queue_bytes, settings.message_timeout) == (7 * 1024, 1.5)
    assert not {"on_delivery", "delivery.report.only.error", "kpsplit.takeover.enable"} & set(rdkafka)


def test_a_record_of_a_transaction_waits_no_longer_than_the_transaction_may_last() -> None:
    def timeout(**given: object) -> float:
        named = {name.replace("_", "."): value for name, value in given.items()}
        return split_config({"transactional.id": "t", **named})[1].message_timeout

    assert timeout() == 60.0
    assert timeout(transaction_timeout_ms=90_000) == 90.0
    assert timeout(message_timeout_ms=5_000) == 5.0
    assert timeout(message_timeout_ms=0, transaction_timeout_ms=7_000) == 7.0


def test_defaults_are_librdkafkas() -> None:
    _, settings = split_config(BROKERS)
    assert settings.partitioner == "consistent_random"
    assert (settings.queue_messages, settings.queue_bytes) == (100_000, 1 << 30)
    assert (settings.message_timeout, settings.takeover, settings.only_errors) == (300.0, True, False)
    assert split_config({"message.timeout.ms": 0})[1].message_timeout == math.inf
