"""librdkafka's security properties in kafka-python's words, or the name of the one that has none."""

from __future__ import annotations

import pytest

from kpsplit.kafka.python_settings import NotExpressibleError, kafka_python_settings

BROKERS = {"bootstrap.servers": "SASL_SSL://a:9093, b:9094"}


def test_everything_that_has_a_counterpart_is_translated() -> None:
    properties = {
        **BROKERS,
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "scram-sha-512",
        "sasl.username": "me",
        "sasl.password": "secret",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/cert.pem",
        "ssl.key.location": "/key.pem",
        "ssl.key.password": "secret2",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": 5000,
        "client.id": "x",
        "enable.ssl.certificate.verification": "true",
    }
    assert kafka_python_settings(properties) == {
        "bootstrap_servers": ["a:9093", "b:9094"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/cert.pem",
        "ssl_keyfile": "/key.pem",
        "ssl_password": "secret2",
        "ssl_check_hostname": False,
    }


def test_plain_brokers_need_nothing_else() -> None:
    assert kafka_python_settings({"metadata.broker.list": "a:1"}) == {"bootstrap_servers": ["a:1"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("oauth_cb", print),
        ("sasl.oauthbearer.config", "topsecret"),
        ("ssl.ca.pem", "topsecret"),
        ("ssl.keystore.location", "topsecret"),
        ("enable.ssl.certificate.verification", "false"),
    ],
)
def test_what_has_no_counterpart_is_named_without_its_value(name: str, value: object) -> None:
    with pytest.raises(NotExpressibleError) as caught:
        kafka_python_settings({**BROKERS, name: value})
    assert name in str(caught.value) and "topsecret" not in str(caught.value)
