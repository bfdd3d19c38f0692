"""The one place that asks a record that was read for its headers.

Brokers take header names that are not UTF-8. For a record with such a name the client library (2.16) sets an
error, and returns and keeps a broken list all the same. A look into that list ends the process: the
second caller, and even the first one in a loop, because the interpreter does not look for an error beside a
result in calls that it has specialised. ``methodcaller`` looks. The broken list is replaced at once.
"""

from __future__ import annotations

import logging
from operator import methodcaller
from typing import Any, cast

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes | None]]

_ask = methodcaller("headers")
_warned: set[str] = set()


def headers_of(message: Any) -> Headers | None:
    """Return the headers of a record; None if it has none, an empty list if the client cannot read them.

    A record whose headers cannot be read has no stamp: kpsplit's producers write no such names. It is read
    like a record of a writer that does not use kpsplit. May be called any number of times.
    """
    try:
        return cast("Headers | None", _ask(message))
    except (UnicodeError, SystemError):
        message.set_headers([])
    topic = message.topic()
    if topic not in _warned:
        _warned.add(topic)
        log.warning(
            "kpsplit: %s has records with header names that are not UTF-8; the client library cannot read "
            "the headers of such a record, so it is handed out without headers",
            topic,
        )
    return []
