"""Secrets never reach the terminal: whatever is shown of errors and logs goes through a Redactor."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping

from kpsplit.admin_cli.render.text import one_line
from kpsplit.kafka.connection import is_secret

MASK = "[redacted]"
SHORTEST = 3
"""Shorter values are left alone: replacing every ``a`` would hide the message and protect nothing."""


class Redactor:
    """Replaces the values of secret properties in any text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST}
        # A secret may contain another one; replacing the shorter first would leave the rest of it.
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @staticmethod
    def secrets(properties: Mapping[str, str]) -> list[str]:
        """Return the values of the secret ones among some properties."""
        return [str(value) for name, value in properties.items() if is_secret(name)]

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def _forms(secret: str) -> Iterable[str]:
    """The secret as it may appear in a message: as it is, trimmed, quoted, or line by line."""
    stripped = secret.strip()
    yield from (secret, stripped, repr(secret)[1:-1], json.dumps(secret)[1:-1])
    yield from (line.strip() for line in secret.splitlines())


_CLIENT_LOG = 2


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redact: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the record in one line, without secrets."""
        return one_line(self._redact(super().format(record)))


def show_logs(verbose: int, redact: Redactor) -> None:
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
