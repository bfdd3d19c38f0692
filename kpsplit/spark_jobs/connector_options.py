"""librdkafka's connection properties for executors on other machines.

As options of Spark's Kafka connector (``kafka.`` and Java's name), or as they are (``portable``).
Certificates and keys are handed over by content, not by path, so that executors need no files. Everything
travels as options of the reader inside Spark's own channels, never on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kpsplit.errors import ConfigurationError
from kpsplit.kafka.connection import Connection

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_FILES = {
    "ssl.ca.location": ("ssl.truststore.certificates", "ssl.truststore.type"),
    "ssl.certificate.location": ("ssl.keystore.certificate.chain", "ssl.keystore.type"),
    "ssl.key.location": ("ssl.keystore.key", "ssl.keystore.type"),
}
"""Java's names for what a file holds, and for its form."""
_CONVERTED: dict[str, Callable[[str], str]] = {
    "security.protocol": str.upper,
    "ssl.key.password": str,
    "ssl.endpoint.identification.algorithm": lambda value: "" if value.lower() == "none" else value,
}
"""What has one name in both."""
_RECORDS_PER_POLL = {"kafka.max.poll.records": "5000"}
"""After each poll Spark's connector asks for the ends of the log and fetches anew: Kafka's 500 are dear."""
_SASL = {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb", "https.")


def kafka_options(connection: Connection, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the connector's options for the same brokers with the same security.

    Args:
        connection: how the driver reaches the cluster.
        own: options with ``kafka.`` before Java's names. If they name any security setting, they replace the
            translation of all of them: for what only Java's client can do. One poll is for up to 5,000
            records, if they do not say another ``kafka.max.poll.records``.

    Raises:
        ConfigurationError: a security property has no counterpart; its value is never shown.
    """
    given = dict(own or {})
    # librdkafka allows a protocol before each broker (``SSL://host:9093``), Java does not.
    servers = [s.strip().rpartition("://")[2] for s in connection.bootstrap.split(",") if s.strip()]
    options = {"kafka.bootstrap.servers": ",".join(servers)}
    if not any(name.removeprefix("kafka.").startswith(("security.", "sasl.", "ssl.")) for name in given):
        options |= {f"kafka.{name}": value for name, value in _security(connection.properties).items()}
    options |= _RECORDS_PER_POLL | given
    options["kafka.isolation.level"] = "read_committed"
    return options


def portable(properties: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return librdkafka's properties in a form that means the same on any machine."""
    found: dict[str, str | int | float | bool] = {}
    for name, value in properties.items():
        if name in _FILES and value is not None:
            found[f"{name.removesuffix('location')}pem"] = _content(name, str(value))
        elif isinstance(value, str | int | float | bool):
            found[name] = value
        elif value is not None:
            raise ConfigurationError(
                f"the property {name} cannot travel to Spark's executors",
                hint="give properties as text; certificates and keys as files",
            )
    return found


def _security(properties: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in properties.items():
        if not name.startswith(_SECURITY) or name in _SASL or value is None:
            continue
        if name in _CONVERTED:
            settings[name] = _CONVERTED[name](str(value))
        elif name in _FILES:
            java, form = _FILES[name]
            settings |= {java: _content(name, str(value)), form: "PEM"}
        else:
            raise ConfigurationError(
                f"the property {name} has no counterpart in Spark's Kafka connector",
                hint="give Java's properties as options: kafka.security.protocol and so on",
            )
    return settings | _sasl(properties)


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the file of {name} ({type(error).__name__})") from None


def _sasl(properties: Mapping[str, Any]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    module = _MODULES.get(str(mechanism))
    if module is None:
        raise ConfigurationError(
            f"sasl.mechanism {mechanism} has no counterpart in Spark's Kafka connector",
            hint="give Java's properties as options: kafka.sasl.jaas.config and so on",
        )
    user, password = (_quoted(str(properties.get(f"sasl.{n}", ""))) for n in ("username", "password"))
    return {
        "sasl.mechanism": str(mechanism),
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
