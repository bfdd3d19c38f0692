"""librdkafka's security properties in kafka-python's words, or the name of the one that has none."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kpsplit.clock import Deadline
from kpsplit.kafka.kafka_python import (
    KafkaPythonError,
    NotExpressibleError,
    ask_kafka_python,
    kafka_python_settings,
)

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


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"security.protocol": "SSL"},
        {"security.protocol": "topsecret"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "topsecret"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SSL", "ssl.ca.location": "/no/such/topsecret.pem"},
    ],
    ids=lambda properties: "-".join(properties.values()) or "nothing",
)
def test_a_broker_that_never_answers_is_given_up_without_naming_a_setting(
    silent: str, properties: dict[str, str]
) -> None:
    given = {"bootstrap.servers": silent, **properties}
    with pytest.raises(KafkaPythonError, match=r"^\w+$") as caught:
        ask_kafka_python(given, "a-test", 0.2, lambda client: client.list_transactions())
    assert "topsecret" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("security", [{}, {"security.protocol": "SSL"}], ids=["plain", "tls"])
@pytest.mark.parametrize("there", [True, False], ids=["silent", "refused"])
def test_a_question_that_failed_leaves_no_thread_and_no_selector(
    silent: str, security: dict[str, str], there: bool
) -> None:
    given = {"bootstrap.servers": silent if there else "127.0.0.1:1", **security}
    before = selectors()
    with pytest.raises(KafkaPythonError):
        ask_kafka_python(given, "a-failure", 0.2, lambda client: client.list_transactions())
    limit = Deadline(30)
    while left := [t.name for t in threading.enumerate() if "a-failure" in t.name] or selectors() - before:
        limit.check(f"the end of {left}")
        time.sleep(0.01)


def selectors() -> set[Path]:
    """Return the open files with which connections are waited for."""
    found = set[Path]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            found |= {link} if "eventpoll" in os.readlink(link) else set()
    return found


@pytest.mark.parametrize("kind", [TypeError, RuntimeError, OSError, KeyError, AttributeError])
def test_whatever_a_call_raises_is_one_error(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fails(self: object, **settings: object) -> None:
        raise kind("topsecret")

    monkeypatch.setattr("kafka.admin.KafkaAdminClient.__init__", fails)
    with pytest.raises(KafkaPythonError) as caught:
        ask_kafka_python(BROKERS, "a-test", 5.0, lambda client: None)
    assert (caught.value.kind, str(caught.value)) == (kind, kind.__name__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("oauth_cb", print),
        ("sasl.oauthbearer.config", "topsecret"),
        ("ssl.ca.pem", "topsecret"),
        ("ssl.keystore.location", "topsecret"),
        ("ssl.crl.location", "topsecret"),
        ("enable.ssl.certificate.verification", "false"),
    ],
)
def test_what_has_no_counterpart_is_named_without_its_value(name: str, value: object) -> None:
    with pytest.raises(NotExpressibleError) as caught:
        kafka_python_settings({**BROKERS, name: value})
    assert name in str(caught.value) and "topsecret" not in str(caught.value)
