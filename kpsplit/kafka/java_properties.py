"""Kafka's own ``client.properties`` in librdkafka's words, where these differ. Pure.

Only what has the same meaning there: PLAIN and SCRAM logins, and stores in PEM. Everything else is left as it
is, and librdkafka refuses what it does not know, by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kpsplit.errors import ConfigurationError

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
    """Java's property ``name`` says something that librdkafka cannot be told; its value is never shown."""

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
