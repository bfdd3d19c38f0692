"""librdkafka's security properties in kafka-python's words; needed for one call only (see leaders.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_SIMPLE = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
_CONVERT: dict[str, Callable[[str], Any]] = {
    "security.protocol": str.upper,
    "sasl.mechanism": str.upper,
    "sasl.mechanisms": str.upper,
    "ssl.endpoint.identification.algorithm": lambda value: value.lower() == "https",
    "ssl.ca.location": lambda value: None if value == "probe" else value,
}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb", "https.")
_HARMLESS = {
    "sasl.kerberos.min.time.before.relogin",
    "enable.ssl.certificate.verification",
    "ssl.providers",
    "https.ca.location",
    "https.ca.pem",
}


class NotExpressibleError(Exception):
    """These settings cannot be said to kafka-python; the message names the property, never its value."""


def kafka_python_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return kafka-python's settings for the same brokers with the same security.

    Raises:
        NotExpressibleError: a security property has no counterpart.
    """
    settings: dict[str, Any] = {"bootstrap_servers": _servers(properties)}
    for name, value in properties.items():
        if name.startswith(_SECURITY):
            settings.update(_one(name, value))
    mechanism = settings.get("sasl_mechanism")
    if mechanism is not None and mechanism not in _MECHANISMS:
        raise NotExpressibleError(f"sasl.mechanism {mechanism}")
    return settings


def _one(name: str, value: Any) -> dict[str, Any]:
    if name in _SIMPLE and value is not None:
        text = str(value)
        return {_SIMPLE[name]: _CONVERT[name](text) if name in _CONVERT else text}
    if name == "enable.ssl.certificate.verification" and str(value).lower() != "true":
        raise NotExpressibleError(name)
    if name in _HARMLESS or value is None:
        return {}
    raise NotExpressibleError(name)


def _servers(properties: Mapping[str, Any]) -> list[str]:
    """Return the brokers without the protocol that librdkafka allows before each (``SSL://host:9093``)."""
    listed = str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list") or "")
    return [server.strip().rpartition("://")[2] for server in listed.split(",") if server.strip()]
