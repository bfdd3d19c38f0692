"""Connection settings from the file, -X and -b, and a first contact that fails clearly and soon."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kpsplit.admin_cli.options import Given, is_sendable
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import AuthorizationError, ConfigurationError, KpsplitError, UnreachableError
from kpsplit.kafka.connection import Connection, is_secret, line_of, names_brokers, quiet, read_properties

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


REACH_SECONDS = 6.0
"""With the start of the process, an unreachable cluster is reported within 10 s."""

_SLICE = 0.1
_ADDRESS = re.compile(r"(?:\[[^\[\]\s]+\]|[^\s:/\[\]]+)(?::(?P<port>[0-9]{1,6}))?")
_PROPERTY = re.compile(r'property "([^"]*)"')
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MOST_PORT = 65_535
Where = Callable[[str], str]
"""Returns the place where a property was given, as part of a sentence."""

_UNKNOWN = re.compile(r'No such configuration property: "([^"]*)"')


def properties_of(given: Given) -> dict[str, str]:
    """Return what was given: the file's, over them those of -X, over all the brokers of -b."""
    properties: dict[str, str] = {}
    if given.command_config is not None:
        properties.update(read_properties(given.command_config))
    properties.update(given.properties)
    if given.bootstrap_server is not None:
        properties["bootstrap.servers"] = given.bootstrap_server
    return properties


def redactor_for(given: Given, args: Sequence[str] = ()) -> Redact:
    """Return the redactor for everything secret that was given, also where parsing the arguments failed."""
    properties: dict[str, str] = {}
    for text in args:
        name, equals, value = text.removeprefix("-X").removeprefix("--property=").partition("=")
        if equals:
            properties[name.strip()] = value
    with contextlib.suppress(KpsplitError):
        properties.update(properties_of(given))
    given_too = (properties, given.properties, *given.others)
    return redactor(str(value) for found in given_too for name, value in found.items() if is_secret(name))


def connect(given: Given) -> Connection:
    """Return a connection whose brokers have answered.

    Raises ConfigurationError: a setting is missing, unknown or malformed; UnreachableError: no broker
    answered within REACH_SECONDS; AuthorizationError: the brokers refused the credentials.
    """
    properties = properties_of(given)
    check_sendable(properties)

    def where(name: str) -> str:
        file = given.command_config
        line = None if file is None or name in given.properties else line_of(file, name)
        return "" if line is None else f" ({file}, line {line})"

    if not names_brokers(properties):
        _check_names(properties, where)
    connection = Connection(properties)
    check_brokers(connection.bootstrap)
    reach(connection, min(REACH_SECONDS, given.timeout), where)
    return connection


def _check_names(properties: Mapping[str, str], where: Where) -> None:
    """Raise ConfigurationError if a property is unknown: perhaps it was to name the brokers."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        config: dict[str, Any] = {**properties, "logger": quiet}
        AdminClient(config)
    except (KafkaException, TypeError, ValueError) as error:
        raise refused_setting(str(error.args[0] if error.args else error), where) from error


def check_brokers(text: str) -> None:
    """Raises ConfigurationError: that is no address; the client library would try to reach it without end."""
    parts = [part.strip() for part in text.split(",")]
    for part in filter(None, parts) if any(parts) else parts:
        scheme, _, address = part.rpartition("://")
        found = _ADDRESS.fullmatch(address)
        port = int(found["port"]) if found and found["port"] else 1
        if scheme.upper() not in ("", *PROTOCOLS) or not found or not 1 <= port <= MOST_PORT:
            raise ConfigurationError(
                f"{part[:80]!r} is not a broker address", hint="write HOST:PORT, e.g. -b localhost:9092"
            )


def check_sendable(properties: Mapping[str, str]) -> None:
    """Raises ConfigurationError: the client library would cut a property off at a character, or refuse it."""
    for name, value in properties.items():
        if not is_sendable(name) or not is_sendable(value):
            raise ConfigurationError(
                f"property {name[:60]!r} is not valid UTF-8 or contains NUL",
                hint="write it in UTF-8, without NUL",
            )


def reach(connection: Connection, seconds: float, where: Where = lambda _: "") -> None:
    """Return when a broker has answered; errors as for ``connect``."""
    from confluent_kafka import KafkaException

    from kpsplit.clock import Deadline
    from kpsplit.kafka.error_map import error_of, translate
    from kpsplit.splitter.records.keys import CONTROL_TOPIC

    seen: list[KafkaError] = []
    try:
        # Connected to all of them: one that is down or frozen must not use up the time of the others.
        admin = connection.open_admin("admin", error_cb=seen.append)
    except (KafkaException, TypeError, ValueError) as error:
        raise refused_setting(str(error.args[0] if error.args else error), where) from error
    # Any broker answers for metadata. "Describe cluster" asks the one that is named as the controller, and
    # that may be the frozen one.
    deadline, patience = Deadline(seconds), _SLICE
    while True:
        try:
            admin.list_topics(CONTROL_TOPIC, timeout=max(min(patience, deadline.left()), _SLICE))
        except KafkaException as exception:
            admin.poll(_SLICE)
            if any(_is_credentials(error) for error in seen) or deadline.left() <= 0:
                raise _unreachable(connection, seen, seconds) from exception
            translated = translate(error_of(exception), "reach the cluster")
            if not isinstance(translated, UnreachableError):
                raise translated from exception
            patience *= (
                2  # a slow broker answers the longer request; a frozen one costs little time before it
            )
        else:
            return


def refused_setting(text: str, where: Where) -> ConfigurationError:
    """Return the error for a setting that the client library refused; ``where`` says in which line it is."""
    unknown = _UNKNOWN.search(text)
    if unknown:
        return ConfigurationError(
            f"{unknown[1]!r}{where(unknown[1])} is not a property of librdkafka",
            hint="look it up in librdkafka's CONFIGURATION.md; Java's names differ in places",
        )
    reason = re.sub(r"^KafkaError\{.*?str=\"(.*)\"\}$", r"\1", text)
    named = _PROPERTY.search(reason)
    return ConfigurationError(
        f"the client library refused a setting{where(named[1]) if named else ''}: {reason}",
        hint="see -X and --command-config",
    )


def _reason(text: str) -> str:
    """Return why a connection failed, without the client library's own details."""
    return re.sub(r"^\S+/bootstrap: |\s*\(after \d+ms in state [^)]*\)", "", text)


def _is_credentials(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)


def _unreachable(connection: Connection, seen: list[KafkaError], seconds: float) -> KpsplitError:
    refused = next((error for error in seen if _is_credentials(error)), None)
    if refused is not None:
        return AuthorizationError(
            f"the brokers refused the credentials: {refused.str()}",
            hint="check the sasl.* and ssl.* settings",
        )
    reason = f" ({_reason(seen[0].str())})" if seen else ""
    return UnreachableError(
        f"no broker of {connection.bootstrap} answered within {seconds:.0f} s{reason}",
        hint="check -b/--bootstrap-server, the network and the security settings",
    )


MASK = "[redacted]"
SHORTEST = 3
"""Shorter values are left alone: replacing every ``a`` would hide the message and protect nothing."""


Redact = Callable[[str], str]
"""Masks secrets in a text."""


def redactor(secrets: Iterable[str]) -> Redact:
    """Return what masks some secrets, in each form that they may have in a message."""
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST}
    # A secret may contain another one; replacing the shorter first would leave the rest of it.
    longest_first = sorted(forms, key=len, reverse=True)
    if not forms:
        return lambda text: text
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: pattern.sub(MASK, text)


def _forms(secret: str) -> Iterable[str]:
    """The secret as it may appear in a message: as it is, trimmed, quoted, in one line, or line by line."""
    stripped = secret.strip()
    yield from (secret, stripped, one_line(secret), repr(secret)[1:-1], json.dumps(secret)[1:-1])
    yield from (line.strip() for line in secret.splitlines())


_CLIENT_LOG = 2


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redact: Redact) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return one_line(self._redact(super().format(record)))


def show_logs(verbose: int, redact: Redact) -> None:
    """Send kpsplit's log to stderr, and with -vv the client library's as well."""
    if not verbose:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_RedactingFormatter(redact))
    logger = logging.getLogger("kpsplit")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if verbose >= _CLIENT_LOG else logging.INFO)
    logging.getLogger("kpsplit.librdkafka").setLevel(
        logging.DEBUG if verbose >= _CLIENT_LOG else logging.CRITICAL
    )
