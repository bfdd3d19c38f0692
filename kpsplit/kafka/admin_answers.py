"""An admin client whose answers come with kpsplit's errors."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.errors import AuthorizationError, ConfigurationError, UnreachableError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import MISSING, error_of, translate

ANSWER_SECONDS = 8.0
"""How long any one answer may take: unreachable brokers must be an error within 10 s."""

GRACE = 0.5
"""Seconds for which an answer is waited for beyond the time that the brokers were given."""

_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}


class AdminAnswers:
    """Holds the client, waits for its answers, explains its errors. Not thread safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._trouble = _Trouble()
        try:
            self.renew()
        except (KafkaException, ValueError, TypeError) as error:
            raise _refused_setting(error) from None

    def renew(self) -> None:
        """Take a new client; the old one ends, with the questions that nobody has answered."""
        self._client: AdminClient | None = self.connection.open_admin("admin", error_cb=self._trouble.note)

    def close(self) -> None:
        """End the client, with its threads and its connection to every broker."""
        self._client = None

    @property
    def client(self) -> AdminClient:
        """The client itself, for calls that have no method here."""
        if self._client is None:
            self.renew()
        return cast(AdminClient, self._client)

    def answer(
        self, future: Future[Any], what: str, seconds: float = ANSWER_SECONDS, *, writing: bool = False
    ) -> Any:
        """Wait for an answer and return it.

        Raises:
            MissingError: there is no such topic. ExistsError: there is one already.
            KpsplitError: refused, or no answer in time; ``writing``: something may have been changed then.
        """
        try:
            found = future.result(seconds + GRACE)
        except TimeoutError:
            raise UnreachableError(f"could not {what}: no answer in time") from None
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() in MISSING:
                raise MissingError from exception
            if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise ExistsError from exception
            raise self.explained(error, what, writing=writing) from exception
        self._trouble.refusal = ""  # some broker may have refused us; the one that was asked does not
        return found

    def explained(self, error: KafkaError | None, what: str, *, writing: bool = False) -> Exception:
        """Return kpsplit's error; where brokers do not answer because they refuse us, say so."""
        translated = translate(error, what, writing=writing)
        self.client.poll(0)
        reason = self._trouble.refusal
        if isinstance(translated, UnreachableError) and reason:
            return AuthorizationError(f"could not {what}: {reason}", hint="check the security settings")
        return translated


def _refused_setting(error: Exception) -> ConfigurationError:
    """Return the error for settings that librdkafka refuses; it names the property, never its value."""
    found = re.search(r"propert(?:y|ies)[: ]+[\"']?([a-z][a-z0-9._]+)", str(error))
    name = f" {found[1]}" if found else ""
    return ConfigurationError(
        f"the client library refuses the setting{name}", hint="check -X and --command-config"
    )


class _Trouble:
    """What librdkafka says about its connections, when the client is polled."""

    def __init__(self) -> None:
        self.refusal = ""

    def note(self, error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            self.refusal = "TLS failed" if error.code() == KafkaError._SSL else "authentication failed"


class MissingError(Exception):
    """There is no such topic or partition."""


class ExistsError(Exception):
    """There is such a topic already."""
