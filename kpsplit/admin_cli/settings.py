"""Connection settings from the file, -X and -b, and a first contact that fails clearly and soon."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kpsplit.admin_cli.given import Given
from kpsplit.admin_cli.param_types import is_sendable
from kpsplit.admin_cli.redaction import Redactor
from kpsplit.errors import AuthorizationError, ConfigurationError, KpsplitError, UnreachableError
from kpsplit.kafka.connection import Connection, read_properties

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

REACH_SECONDS = 6.0
"""With the start of the process, an unreachable cluster is reported within 10 s."""

_SLICE = 0.1
_UNKNOWN = re.compile(r'No such configuration property: "([^"]*)"')


def properties_of(given: Given) -> dict[str, str]:
    """Return the properties that were given: the file's, over them those of -X, over all the brokers of -b.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    properties: dict[str, str] = {}
    if given.command_config is not None:
        properties.update(_read_config(given.command_config))
    properties.update(given.properties)
    if given.bootstrap_server is not None:
        properties["bootstrap.servers"] = given.bootstrap_server
    return properties


def _read_config(path: Path) -> dict[str, str]:
    try:
        return read_properties(path)
    except ConfigurationError as error:
        error.hint = error.hint or "give --command-config a file of key=value lines"
        raise


def redactor_for(given: Given, args: Sequence[str] = ()) -> Redactor:
    """Return the redactor for everything secret that was given, also where parsing the arguments failed."""
    properties: dict[str, str] = {}
    for text in args:
        name, equals, value = text.removeprefix("-X").removeprefix("--property=").partition("=")
        if equals:
            properties[name.strip()] = value
    with contextlib.suppress(KpsplitError):
        properties.update(properties_of(given))
    found = [*Redactor.secrets(properties), *Redactor.secrets(given.properties)]
    for file in _role_files(args):
        with contextlib.suppress(KpsplitError):
            found += Redactor.secrets(read_properties(file))
    return Redactor(found)


def _role_files(args: Sequence[str]) -> list[Path]:
    """Return the files that ``kpsplit demo --role-config ROLE=FILE`` names."""
    option = "--role-config"
    pairs = [a.removeprefix(f"{option}=") for a in args if a.startswith(f"{option}=")]
    pairs += [value for name, value in pairwise(args) if name == option]
    pairs += os.environ.get("KPSPLIT_DEMO_ROLE_CONFIGS", "").split()
    return [Path(pair.partition("=")[2]) for pair in pairs if "=" in pair]


def connect(given: Given) -> Connection:
    """Return a connection whose brokers have answered.

    Raises:
        ConfigurationError: a setting is missing, unknown or malformed.
        UnreachableError: no broker answered within REACH_SECONDS.
        AuthorizationError: the brokers refused the credentials.
    """
    properties = properties_of(given)
    check_sendable(properties)
    connection = Connection(properties)
    reach(connection, min(REACH_SECONDS, given.timeout))
    return connection


def check_sendable(properties: Mapping[str, str]) -> None:
    """Do nothing if the client library takes every property as it is.

    Raises:
        ConfigurationError: one has a character that it would cut the value at, or cannot take.
    """
    for name, value in properties.items():
        if not is_sendable(name) or not is_sendable(value):
            raise ConfigurationError(
                f"property {name[:60]!r} has a character that is none", hint="write it in UTF-8, without NUL"
            )


def reach(connection: Connection, seconds: float) -> None:
    """Return when a broker has answered; errors as for ``connect``."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from kpsplit.kafka.clock import Deadline
    from kpsplit.kafka.error_map import error_of, translate

    seen: list[KafkaError] = []
    config: dict[str, Any] = {**connection.client("admin"), "error_cb": seen.append}
    try:
        admin = AdminClient(config)
    except (KafkaException, TypeError, ValueError) as error:
        raise refused_setting(str(error.args[0] if error.args else error)) from error
    deadline = Deadline(seconds)
    answer = admin.describe_cluster(request_timeout=max(seconds, 1.0))
    while not answer.done():
        admin.poll(_SLICE)
        if any(_is_credentials(error) for error in seen) or deadline.left() <= 0:
            raise _unreachable(connection, seen, seconds)
    try:
        answer.result(timeout=0)
    except FutureTimeout:
        raise _unreachable(connection, seen, seconds) from None
    except KafkaException as exception:
        if seen:
            raise _unreachable(connection, seen, seconds) from exception
        raise translate(error_of(exception), "reach the cluster") from exception


def refused_setting(text: str) -> ConfigurationError:
    """Return the error for a setting that the client library refused."""
    unknown = _UNKNOWN.search(text)
    if unknown:
        return ConfigurationError(
            f"{unknown[1]!r} is no property of librdkafka",
            hint="look it up in librdkafka's CONFIGURATION.md; Java's names differ in places",
        )
    reason = re.sub(r"^KafkaError\{.*?str=\"(.*)\"\}$", r"\1", text)
    return ConfigurationError(
        f"the client library refused a setting: {reason}", hint="see -X and --command-config"
    )


def _reason(text: str) -> str:
    """Return what a connection failed of, without the client library's own bookkeeping."""
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
