"""Types of arguments and options; what they refuse becomes a usage error."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import MAX_RANGES, MIN_RANGES, KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET
from kpsplit.splitter.records.keys import MAX_PARTITION, is_topic_name, parse_partition
from kpsplit.splitter.records.strict_json import is_unicode

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_SHOWN_RANGE = re.compile(r"\[([0-9a-fA-F]+),([0-9a-fA-F]+)\)")
"""A range as output has it; it is accepted as well."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 24 * 3600.0


if TYPE_CHECKING:
    _Base = click.ParamType[Any, Any]
else:
    _Base = click.ParamType  # not generic in older versions of click


def is_sendable(text: str) -> bool:
    """Return whether the client library takes a text unchanged: valid characters, and no NUL."""
    return "\0" not in text and is_unicode(text)


class Reads(_Base):
    """A type of text that ``read`` turns into a value; what it refuses by a UsageError, click reports."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text that was given, or pass a value on that was read before."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _topic(text: str) -> str:
    if not is_topic_name(text):
        raise UsageError(f"{text[:300]!r} is not the name of a topic", hint="write TOPIC, e.g. orders")
    return text


def _topic_or_partition(text: str) -> tuple[str, int | None]:
    if "/" in text:
        parent = parse_partition(text)
        return parent.topic, parent.partition
    return _topic(text), None


def _ranges(text: str) -> tuple[KeyRange, ...]:
    return tuple(KeyRange.parse(part) for part in _SHOWN_RANGE.sub(r"\1:\2", text).split(","))


def _duration(text: str) -> float:
    """Read a duration above zero and below a day; plain numbers are seconds."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(f"{text[:40]!r} is not a duration", hint="write for example 250ms, 10s or 2m")
    return seconds


def moment(text: str) -> int | None:
    """Return a time in ms since 1970, None if the text is no time.

    Raises:
        UsageError: it has no time zone.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        raise UsageError(f"{text[:60]!r} has no time zone", hint=f"write for example {text[:60]}Z")
    return round(at.timestamp() * 1000)


def _since(text: str) -> int:
    """Read a time with its zone, or a duration before now."""
    at = moment(text)
    if at is not None:
        return max(0, at)
    try:
        return time.time_ns() // 1_000_000 - round(_duration(text) * 1000)
    except UsageError:
        raise UsageError(f"{text[:60]!r} is not a time", hint="write 2026-03-01T12:00:00Z, or 6h") from None


def _name(text: str) -> str:
    if not is_sendable(text):
        raise UsageError(f"{text[:60]!r} is not UTF-8 text", hint="check the terminal's encoding")
    return text


def _printable(text: str) -> str:
    if not text:
        raise UsageError("the name is empty")
    if not text.isprintable():
        raise UsageError(f"{text[:60]!r} has characters that cannot be printed")
    return text


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():  # the text is not shown: it may be a secret
        raise UsageError("not a key=value pair", hint="write for example -X security.protocol=SSL")
    return key.strip(), value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise UsageError("this is not base64") from None


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise UsageError("this is not hexadecimal") from None


PARTITION = Reads("topic/p", parse_partition)
TOPIC = Reads("topic", _topic)
TOPIC_OR_PARTITION = Reads("topic[/p]", _topic_or_partition)
KEY_RANGE = Reads("lo:hi", lambda text: KeyRange.parse(_SHOWN_RANGE.sub(r"\1:\2", text)))
KEY_RANGES = Reads("lo:hi[,lo:hi…]", _ranges)
BASE64 = Reads("base64", _base64)
HEX = Reads("hex", _hex)
DURATION = Reads("duration", _duration)
SINCE = Reads("time", _since)
"""Ms since 1970."""
NAME = Reads("name", _name)
"""A name that Kafka may hold."""
PRINTABLE = Reads("name", _printable)
"""A name that is printed as a part of a command, exactly as it is."""
PROPERTY = Reads("key=value", _property)
RANGES = click.IntRange(MIN_RANGES, MAX_RANGES)
OFFSET = click.IntRange(0, MAX_OFFSET)
COUNT = click.IntRange(1, MAX_OFFSET)
PARTITION_NUMBER = click.IntRange(0, MAX_PARTITION)
