"""Log lines on stderr for -v and -vv, redacted."""

from __future__ import annotations

import logging

from kpsplit.admin_cli.redaction import Redactor
from kpsplit.admin_cli.render.text import one_line

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
