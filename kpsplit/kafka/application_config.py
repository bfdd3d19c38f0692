"""An application's client configuration, as producers and consumers of kpsplit read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kpsplit.errors import ConfigurationError

_TOO_LARGE = 1 << 63
_SHOWN = 60


def given_settings(config: Mapping[str, Any], own_keys: Collection[str]) -> dict[str, Any]:
    """Return what an application has set, settings of topics in their deprecated place included.

    Raises:
        ConfigurationError: a ``kpsplit.`` setting is none of ``own_keys``; a name is no text.
    """
    deprecated = config.get("default.topic.config") or {}
    if not isinstance(deprecated, Mapping):
        raise ConfigurationError("default.topic.config is no dictionary of settings")
    given = {k: v for k, v in {**deprecated, **config}.items() if v is not None}
    given.pop("default.topic.config", None)
    for name in given:
        if not isinstance(name, str):
            raise ConfigurationError(f"a setting is named by a {type(name).__name__}, not by a text")
        if name.startswith("kpsplit.") and name not in own_keys:
            raise ConfigurationError(
                f"unknown setting '{shown(name)}'", hint=f"kpsplit knows {', '.join(sorted(own_keys))}"
            )
    return given


def text(value: Any) -> str:
    """Return a value as librdkafka compares it; "" for a number of thousands of digits, which is none."""
    try:
        return str(value).strip().lower()
    except ValueError:
        return ""


def shown(value: Any) -> str:
    """Return a value as an error shows it: short, and without control characters."""
    if not isinstance(value, (str, int, float)) or (isinstance(value, int) and abs(value) >= _TOO_LARGE):
        return f"a value of type {type(value).__name__}"
    if isinstance(value, str):
        return repr(value[:_SHOWN])[1:-1] + ("…" if len(value) > _SHOWN else "")
    return str(value)


def name_of(given: Mapping[str, Any], name: str, default: str) -> str:
    """Return a setting that is a text, or is written as one.

    Raises:
        ConfigurationError: it cannot be.
    """
    try:
        return str(given.get(name, default))
    except ValueError:
        raise ConfigurationError(f"{name} is not a text") from None


def flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a setting that is true or false.

    Raises:
        ConfigurationError: it is neither.
    """
    found = text(given.get(name, default))
    if found not in ("true", "false"):
        raise ConfigurationError(f"{name}={shown(given[name])} is neither true nor false")
    return found == "true"


def metadata_refresh(given: Mapping[str, Any]) -> float:
    """Return ``topic.metadata.refresh.interval.ms`` in seconds, at least one; infinite if switched off.

    Raises:
        ConfigurationError: as ``number``.
    """
    milliseconds = number(given, "topic.metadata.refresh.interval.ms", 300_000, least=-1)
    return float("inf") if milliseconds < 0 else max(milliseconds / 1000, 1.0)


def number(given: Mapping[str, Any], name: str, default: int, least: int | None = None) -> int:
    """Return a setting that is a whole number.

    Raises:
        ConfigurationError: it is not, or larger than any is, or it is less than ``least``.
    """
    found = given.get(name, default)
    whole = isinstance(found, (int, str)) or (isinstance(found, float) and found.is_integer())
    try:
        value = int(found) if whole and not isinstance(found, bool) else None
    except ValueError:
        value = None
    if value is None:
        raise ConfigurationError(f"{name} is not a whole number")
    if abs(value) >= _TOO_LARGE:
        raise ConfigurationError(f"{name} is too large a number")
    if least is not None and value < least:
        raise ConfigurationError(f"{name}={value} is less than {least}")
    return value
