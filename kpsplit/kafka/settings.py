"""Settings that an application or a file gives, read and put into librdkafka's words. Pure.

``translated`` puts Kafka's own ``client.properties`` into librdkafka's words, where these differ. It
translates only what has the same meaning there: PLAIN and SCRAM logins, and stores in PEM. Everything else
stays as it is, and librdkafka refuses by name what it does not know.
"""

from __future__ import annotations

import re
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


LONG = frozenset(
    {
        "sasl.jaas.config",
        "ssl.truststore.certificates",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
    }
)
"""Java's names whose values may go on in the next line, after a backslash; other values may end with one."""

_TRUSTED = {"location": ("ssl.ca.location",), "certificates": ("ssl.ca.pem",)}
_OWN = {
    "location": ("ssl.certificate.location", "ssl.key.location"),
    "certificate.chain": ("ssl.certificate.pem",),
    "key": ("ssl.key.pem",),
}

_LOGIN = re.compile(r"(?:[\w.]+\.)?(?:Plain|Scram)LoginModule\s+\w+\s+(.*?)\s*;?", re.DOTALL)
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPED = re.compile(r"\\(.)")
_CHECK_HOST = "ssl.endpoint.identification.algorithm"


class UntranslatableError(ConfigurationError):
    """Java's property ``name`` has no counterpart in librdkafka; its value is never shown."""

    def __init__(self, name: str, reason: str, hint: str) -> None:
        super().__init__(f"{name}: {reason}", hint=hint)
        self.name = name


def translated(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties in librdkafka's words; what they say in those already wins.

    Raises:
        UntranslatableError: a login or a store is of a kind that librdkafka does not have.
    """
    rest = dict(properties)
    found: dict[str, str] = {}
    if "sasl.jaas.config" in rest:
        found |= _login(rest.pop("sasl.jaas.config"))
    found |= _store(rest, "ssl.truststore", _TRUSTED)
    if rest.get("ssl.keystore.type", "").upper() == "PKCS12":
        del rest["ssl.keystore.type"]
    elif "ssl.keystore.type" in rest:  # without it, librdkafka's own ssl.keystore.location, in PKCS#12
        found |= _store(rest, "ssl.keystore", _OWN)
    if rest.get(_CHECK_HOST) == "":
        rest[_CHECK_HOST] = "none"
    return found | rest


def _login(text: str) -> dict[str, str]:
    module = _LOGIN.fullmatch(text.strip())
    options = {
        m[1]: _ESCAPED.sub(r"\1", m[2] or m[3] or m[4] or "")
        for m in _OPTION.finditer(module[1] if module else "")
    }
    if not {"username", "password"} <= options.keys():
        raise UntranslatableError(
            "sasl.jaas.config",
            "this is no login with user name and password that librdkafka has",
            "give sasl.username and sasl.password, or librdkafka's own settings of the mechanism",
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _store(rest: dict[str, str], store: str, known: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Take a store's properties out of ``rest``; return librdkafka's."""
    given = {end: f"{store}.{end}" for end in known if f"{store}.{end}" in rest}
    kind = rest.get(f"{store}.type", "JKS").upper()
    if not given:
        return {}
    if kind != "PEM":
        raise UntranslatableError(
            next(iter(given.values())),
            f"a store of the type {kind[:20]}, which librdkafka does not read",
            f"give the store in PEM, with {store}.type=PEM",
        )
    rest.pop(f"{store}.type")
    values = {target: rest[name] for end, name in given.items() for target in known[end]}
    for name in given.values():
        del rest[name]
    return {name: _pem(value) if name.endswith(".pem") else value for name, value in values.items()}


def _pem(text: str) -> str:
    """Return PEM in lines: a file of properties has it in one, with escapes or blanks where lines ended."""
    label = re.compile(r"-----(BEGIN|END) ([A-Z0-9 ]+?)-----")
    lines = label.sub(lambda m: f"\n{m[0]}\n", text.replace("\\n", "\n")).splitlines()
    parts = [p for line in lines for p in ([line.strip()] if label.fullmatch(line.strip()) else line.split())]
    return "".join(f"{part}\n" for part in parts)
