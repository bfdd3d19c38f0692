"""An application's client configuration, as producers and consumers of kpsplit read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kpsplit.errors import ConfigurationError


def given_settings(config: Mapping[str, Any], own_keys: Collection[str]) -> dict[str, Any]:
    """Return what an application has set, settings of topics in their deprecated place included.

    Raises:
        ConfigurationError: a ``kpsplit.`` setting is none of ``own_keys``.
    """
    deprecated = config.get("default.topic.config") or {}
    given = {k: v for k, v in {**deprecated, **config}.items() if v is not None}
    given.pop("default.topic.config", None)
    for name in given:
        if name.startswith("kpsplit.") and name not in own_keys:
            raise ConfigurationError(
                f"unknown setting {name!r}", hint=f"kpsplit knows {', '.join(sorted(own_keys))}"
            )
    return given


def text(value: Any) -> str:
    """Return a value as librdkafka compares it."""
    return str(value).strip().lower()


def flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a setting that is true or false.

    Raises:
        ConfigurationError: it is neither.
    """
    found = text(given.get(name, default))
    if found not in ("true", "false"):
        raise ConfigurationError(f"{name}={given[name]} is neither true nor false")
    return found == "true"


def number(given: Mapping[str, Any], name: str, default: int, least: int | None = None) -> int:
    """Return a setting that is a whole number.

    Raises:
        ConfigurationError: it is not, or it is less than ``least``.
    """
    try:
        value = int(given.get(name, default))
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} is not a number") from None
    if least is not None and value < least:
        raise ConfigurationError(f"{name}={value} is less than {least}")
    return value
