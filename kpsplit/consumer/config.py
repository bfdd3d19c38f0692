"""The consumer's configuration: what kpsplit takes for itself, what it passes on, what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kpsplit.consumer.fetch.gaps import GapPolicy
from kpsplit.errors import ConfigurationError
from kpsplit.kafka.settings import (
    flag,
    given_settings,
    metadata_refresh,
    name_of,
    number,
    shown,
    text,
)

DEFAULT_STRATEGY = "cooperative-sticky"
"""Rebalances stop only the slots that move. librdkafka's own default, range, stops everything."""

HEARTBEAT_MS = 500
"""A member learns of a rebalance with its next heartbeat, and a slot that moves waits for two of them.
librdkafka's default is 3 s."""

QUEUE_BACKOFF_MS = 5
"""How long librdkafka rests when it has fetched enough ahead; its default, 1 s, halves the throughput."""

REMOTE_KNOWN_SECONDS = 10.0
"""With ``group.protocol=consumer`` the session is the broker's: 45 s, unless its settings were changed."""
LEAST_KNOWN_SECONDS = 0.5
"""A shorter gap between two turns of the engine is an everyday one."""

CLIENT_KBYTES = 16_384
"""What the client that reads has fetched ahead at most; of a smaller bound a quarter."""

_FETCH_PREFIXES = ("fetch.", "queued.")
_FETCH_KEYS = frozenset(
    {
        "max.partition.fetch.bytes",
        "receive.message.max.bytes",
        "message.max.bytes",
        "isolation.level",
        "check.crcs",
        "client.id",
        "throttle_cb",
    }
)
_READING_ONLY = frozenset({"stats_cb", "statistics.interval.ms"})
"""What the group consumer could say of itself is about a client that reads nothing."""
_RESETS = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), "earliest"),
    **dict.fromkeys(("largest", "latest", "end"), "latest"),
    "error": "error",
}


class RevocationPolicy(StrEnum):
    """What a member does when the application does not release slots in time."""

    RETRY_THEN_LEAVE = "retry-then-leave"
    """Waits once more, then leaves the group."""
    LEAVE = "leave"
    """Leaves the group at once; the others go on."""
    RETRY = "retry"
    """Waits until the application answers; the broker's rebalance timeout is the only limit."""


_OWN_KEYS = frozenset(
    {
        "kpsplit.fetch.buffer.bytes",
        "kpsplit.revocation.timeout.ms",
        "kpsplit.revocation.policy",
        "kpsplit.gap.policy",
        "kpsplit.messages",
    }
)
_APPLICATION_KEYS = frozenset(
    {
        "enable.auto.commit",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "on_commit",
        "auto.offset.reset",
    }
)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What the engine needs to know of the application's configuration. Times are in seconds.

    ``auto_store``: records count as processed when the next poll() asks for more; else ``store_offsets``
    tells. ``reset``: earliest, latest or error. ``wrap_all``: every message has ``.segment`` and
    ``.source()``. ``incremental``: rebalances take and give single slots. ``fetch``: settings of the
    consumer that reads data. ``known_for``: how long it holds good that a member owns its slots.
    """

    group: str
    instance: str
    """The member's ``group.instance.id``; empty: it has none."""
    auto_commit: bool
    auto_commit_interval: float
    auto_store: bool
    reset: str
    max_poll_interval: float
    metadata_refresh: float
    buffer_bytes: int
    """Of the bound, what is not the client's own queue."""
    revocation_timeout: float
    revocation_policy: RevocationPolicy
    gap_policy: GapPolicy
    wrap_all: bool
    eof: bool
    incremental: bool
    strategy: str
    """The members' own, of the classic protocol; empty where the brokers assign."""
    assignor: str
    """What the brokers are asked for there; empty where they choose."""
    known_for: float
    on_commit: Callable[[Any, Any], None] | None
    fetch: Mapping[str, Any]


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], ConsumerSettings]:
    """Return the group consumer's configuration and kpsplit's settings for an application's configuration.

    Raises:
        ConfigurationError: a value is malformed, or a ``kpsplit.`` setting is unknown.
    """
    given = given_settings(config, _OWN_KEYS)
    settings = _settings(given)
    passed = {k: v for k, v in given.items() if not _stays_here(k)}
    if settings.strategy:
        passed.setdefault("heartbeat.interval.ms", _heartbeat_ms(given))
    return {**passed, **_group_only(settings)}, settings


def _stays_here(name: str) -> bool:
    ours = name in _OWN_KEYS or name in _APPLICATION_KEYS
    return ours or name in _READING_ONLY or name.startswith(_FETCH_PREFIXES)


def _concerns_reading(name: str) -> bool:
    return name in _FETCH_KEYS or name in _READING_ONLY or name.startswith(_FETCH_PREFIXES)


def _group_only(settings: ConsumerSettings) -> dict[str, Any]:
    """Return settings of the group consumer: it owns slots and commits, but never reads a record."""
    own: dict[str, Any] = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "earliest",
        "queued.min.messages": 1,
    }
    if settings.strategy:
        own["partition.assignment.strategy"] = settings.strategy
    return own


def _settings(given: Mapping[str, Any]) -> ConsumerSettings:
    remote = name_of(given, "group.protocol", "classic").lower() == "consumer"
    strategy = "" if remote else name_of(given, "partition.assignment.strategy", DEFAULT_STRATEGY)
    buffer = number(given, "kpsplit.fetch.buffer.bytes", 64 << 20, least=1)
    client_kbytes = _client_kbytes(given, buffer)
    max_poll = number(given, "max.poll.interval.ms", 300_000, least=0) / 1000
    reset = _choice(given, "auto.offset.reset", "latest", _RESETS)
    return ConsumerSettings(
        group=name_of(given, "group.id", ""),
        instance=name_of(given, "group.instance.id", ""),
        auto_commit=flag(given, "enable.auto.commit", True),
        auto_commit_interval=max(number(given, "auto.commit.interval.ms", 5000, least=0), 1) / 1000,
        auto_store=flag(given, "enable.auto.offset.store", True),
        reset=_RESETS[reset],
        max_poll_interval=max_poll,
        metadata_refresh=metadata_refresh(given),
        buffer_bytes=max(buffer - client_kbytes * 1024, 1),
        revocation_timeout=_revocation_timeout(given, max_poll),
        revocation_policy=RevocationPolicy(
            _choice(given, "kpsplit.revocation.policy", "retry-then-leave", list(RevocationPolicy))
        ),
        gap_policy=GapPolicy(_choice(given, "kpsplit.gap.policy", "error", list(GapPolicy))),
        wrap_all=_choice(given, "kpsplit.messages", "auto", ("auto", "logical")) == "logical",
        eof=flag(given, "enable.partition.eof", False),
        incremental=remote or strategy == "cooperative-sticky",
        strategy=strategy,
        assignor=name_of(given, "group.remote.assignor", "") if remote else "",
        known_for=REMOTE_KNOWN_SECONDS if remote else _known_for(given),
        on_commit=given.get("on_commit"),
        fetch={
            "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
            **{k: v for k, v in given.items() if _concerns_reading(k)},
            "queued.max.messages.kbytes": client_kbytes,
        },
    )


def _client_kbytes(given: Mapping[str, Any], buffer: int) -> int:
    """Return the client's part of the bound: what is asked for, but the rest is at least a quarter."""
    asked = number(given, "queued.max.messages.kbytes", min(CLIENT_KBYTES, buffer // 4096), least=0)
    return max(1, min(asked, buffer * 3 // 4096))


def _revocation_timeout(given: Mapping[str, Any], max_poll: float) -> float:
    """Two tries and the commit fit into the broker's rebalance timeout, unless it is set otherwise."""
    return number(given, "kpsplit.revocation.timeout.ms", int(min(30.0, max_poll / 3) * 1000), least=1) / 1000


def _known_for(given: Mapping[str, Any]) -> float:
    """Half of the least time in which a session can end: its last heartbeat may be one interval old."""
    return max((_session_ms(given) - _heartbeat_ms(given)) / 2000, LEAST_KNOWN_SECONDS)


def _session_ms(given: Mapping[str, Any]) -> int:
    return number(given, "session.timeout.ms", 45_000, least=1)


def _heartbeat_ms(given: Mapping[str, Any]) -> int:
    default = max(1, min(HEARTBEAT_MS, _session_ms(given) // 3))
    return number(given, "heartbeat.interval.ms", default, least=1)


def _choice(given: Mapping[str, Any], name: str, default: str, allowed: Any) -> str:
    found = text(given.get(name, default))
    if found not in allowed:
        raise ConfigurationError(f"{name}={shown(given[name])} is none of {', '.join(allowed)}")
    return found
