"""The producer's configuration: what kpsplit takes for itself, enforces and refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kpsplit.errors import ConfigurationError
from kpsplit.kafka.connection import AUTO_CREATE
from kpsplit.kafka.settings import (
    flag,
    given_settings,
    metadata_refresh,
    name_of,
    number,
    shown,
    text,
)
from kpsplit.splitter.records.keys import is_writers_id

DEFAULT_PARTITIONER = "consistent_random"
"""librdkafka's default."""

_ENFORCED: dict[str, tuple[frozenset[str], str]] = {
    "enable.idempotence": (frozenset({"true"}), "true"),
    "acks": (frozenset({"all", "-1"}), "all"),
    "request.required.acks": (frozenset({"all", "-1"}), "all"),
    "enable.gapless.guarantee": (frozenset({"false"}), "false"),
}
_OWN_KEYS = frozenset({"kpsplit.takeover.enable"})

RETRY_MS = 10
"""After so long librdkafka sends again what a broker refused, unless the application sets retry.backoff.ms.

A merge moves leaders right before its fence, and the fence waits for what the former leaders refuse. With
librdkafka's own 100 ms one producer in ten kept all others waiting for that long. It grows with each retry.
"""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What the library needs to know of the application's configuration.

    ``queue_messages`` and ``queue_bytes`` bound what librdkafka and the fence hold together.
    ``message_timeout`` (seconds) is how long a record may wait before it fails. ``takeover``: whether this
    producer rolls back an operation whose operator died in the fence. ``metadata_refresh`` (seconds): how
    often it looks whether enrolled topics have grown. ``auto_create``: whether brokers may create the
    application's topics.
    """

    partitioner: str
    client_id: str
    transactional_id: str | None
    on_delivery: Callable[[Any, Any], None] | None
    only_errors: bool
    queue_messages: int
    queue_bytes: int
    message_timeout: float
    takeover: bool
    metadata_refresh: float = 300.0
    auto_create: bool = True


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], ProducerSettings]:
    """Return librdkafka's configuration and kpsplit's settings for an application's configuration.

    Raises:
        ConfigurationError: a setting contradicts what the protocol needs, or an unknown ``kpsplit.`` key.
    """
    given = given_settings(config, _OWN_KEYS)
    for name, (allowed, value) in _ENFORCED.items():
        if name in given and text(given[name]) not in allowed:
            raise ConfigurationError(
                f"{name}={shown(given[name])} contradicts kpsplit, which needs {name}={value}",
                hint=f"remove {name}",
            )
    settings = _settings(given)
    own = {"on_delivery", "delivery.report.only.error", *_OWN_KEYS, *_ENFORCED}
    rest = {k: v for k, v in given.items() if k not in own}
    # librdkafka would have brokers make sub-topics again that were retired; see ``create_unless_there``.
    ours = {"enable.idempotence": True, "acks": "all", AUTO_CREATE: False}
    return {"retry.backoff.ms": RETRY_MS, **rest, **ours}, settings


def _transactional_id(given: Mapping[str, Any]) -> str | None:
    """Return it, None if there is none. A registration with any that is refused here would not count."""
    value = name_of(given, "transactional.id", "") if given.get("transactional.id") else None
    if value is not None and not is_writers_id(value):
        raise ConfigurationError(
            f"transactional.id={shown(value)}: ids that begin with kpsplit. are kpsplit's own, and none "
            "contains NUL",
            hint="choose another transactional.id",
        )
    return value


def _settings(given: Mapping[str, Any]) -> ProducerSettings:
    return ProducerSettings(
        partitioner=name_of(given, "partitioner", DEFAULT_PARTITIONER),
        client_id=name_of(given, "client.id", "rdkafka"),
        transactional_id=_transactional_id(given),
        on_delivery=given.get("on_delivery"),
        only_errors=flag(given, "delivery.report.only.error", False),
        queue_messages=number(given, "queue.buffering.max.messages", 100_000) or (1 << 31) - 1,
        queue_bytes=number(given, "queue.buffering.max.kbytes", 1_048_576) * 1024,
        message_timeout=_message_timeout(given),
        metadata_refresh=metadata_refresh(given),
        auto_create=flag(given, AUTO_CREATE, True),
        takeover=flag(given, "kpsplit.takeover.enable", True),
    )


def _message_timeout(given: Mapping[str, Any]) -> float:
    """Return it in seconds; like librdkafka's own it ends with the transaction that brokers would abort."""
    name = "message.timeout.ms" if "message.timeout.ms" in given else "delivery.timeout.ms"
    seconds = number(given, name, 300_000) / 1000 or float("inf")
    if not given.get("transactional.id"):
        return seconds
    return min(seconds, number(given, "transaction.timeout.ms", 60_000) / 1000)
