"""Kafka's own client.properties: what its tools take is read, and the rest refused by its name and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit.errors import ConfigurationError
from kpsplit.kafka.connection import line_of, read_properties

SCRAM = r"""# as in Kafka's documentation
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="alice" \
    password="a\"b; c=d";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
ssl.endpoint.identification.algorithm=
client.rack=r1
"""
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required username='bob' password=pw;"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of properties."""
    return tmp_path / "client.properties"


def test_a_scram_login_and_pem_stores_are_read_as_javas_tools_do(file: Path) -> None:
    file.write_text(SCRAM)
    assert read_properties(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'a"b; c=d',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "client.rack": "r1",
    }
    assert line_of(file, "sasl.jaas.config") == 4
    assert line_of(file, "ssl.truststore.type") == 7
    assert line_of(file, "sasl.username") is None


def test_a_plain_login_is_read_and_librdkafkas_own_names_win(file: Path) -> None:
    file.write_text(f"sasl.jaas.config={PLAIN}\nsasl.username=carol\n")
    assert read_properties(file) == {"sasl.username": "carol", "sasl.password": "pw"}


def test_a_store_of_a_clients_own_key_in_pem_is_read_from_a_file_or_from_the_line(file: Path) -> None:
    file.write_text("ssl.keystore.type=pem\nssl.keystore.location=/me.pem\nssl.key.password=pw\n")
    assert read_properties(file) == {
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.key.password": "pw",
    }
    file.write_text(
        "ssl.keystore.type=PEM\n"
        "ssl.keystore.key=-----BEGIN PRIVATE KEY----- AAAA BBBB -----END PRIVATE KEY-----\n"
        "ssl.keystore.certificate.chain=-----BEGIN CERTIFICATE-----\\nCCCC\\n-----END CERTIFICATE-----\\\n"
        "  -----BEGIN CERTIFICATE----- DDDD -----END CERTIFICATE-----\n"
    )
    found = read_properties(file)
    assert found["ssl.key.pem"] == "-----BEGIN PRIVATE KEY-----\nAAAA\nBBBB\n-----END PRIVATE KEY-----\n"
    assert found["ssl.certificate.pem"].splitlines()[1::3] == ["CCCC", "DDDD"]


def test_librdkafkas_own_store_in_pkcs12_is_left_alone(file: Path) -> None:
    own = {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "pw\\"}
    lines = "".join(f"{name}={value}\n" for name, value in own.items())
    for more in ("", "ssl.keystore.type=PKCS12\n"):
        file.write_text(lines + more)
        assert read_properties(file) == own


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ssl.truststore.location=/secret.jks", "ssl.truststore.location"),
        ("ssl.keystore.type=JKS\nssl.keystore.location=/secret.jks", "ssl.keystore.location"),
        ("sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule secret;", "sasl.jaas.config"),
        ('sasl.jaas.config=PlainLoginModule required username="secret";', "sasl.jaas.config"),
    ],
)
def test_what_librdkafka_cannot_be_told_is_named_by_line_and_never_shown(
    file: Path, line: str, name: str
) -> None:
    file.write_text(f"# a comment\n{line}\n")
    with pytest.raises(ConfigurationError) as refused:
        read_properties(file)
    assert f"line {1 + len(line.splitlines())}: {name}: " in refused.value.message
    assert "secret" not in str(refused.value)
