"""Types of arguments and options; what they refuse becomes a usage error."""

from __future__ import annotations

import base64
import binascii
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition
from kpsplit.splitter.partition_state import MAX_RANGES
from kpsplit.splitter.records.keys import MAX_PARTITION, is_topic_name, parse_partition
from kpsplit.splitter.records.strict_json import is_unicode

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_SHOWN_RANGE = re.compile(r"\[([0-9a-fA-F]+),([0-9a-fA-F]+)\)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 24 * 3600.0
MIN_RANGES = 2


if TYPE_CHECKING:
    _Base = click.ParamType[Any, Any]
else:
    _Base = click.ParamType  # not generic in older versions of click


def is_sendable(text: str) -> bool:
    """Return whether the client library takes a text unchanged: valid characters, and no NUL."""
    return "\0" not in text and is_unicode(text)


class _Type(_Base):
    """Calls ``read``; a UsageError of the core becomes click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text that was given, or pass a value on that was read before."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)

    def read(self, text: str) -> Any:
        """Read the text."""
        raise NotImplementedError


class PartitionType(_Type):
    """``orders/3``."""

    name = "topic/p"

    def read(self, text: str) -> PhysicalPartition:
        """Read ``TOPIC/P``."""
        return parse_partition(text)


class TopicType(_Type):
    """The name of a topic."""

    name = "topic"

    def read(self, text: str) -> str:
        """Check the name."""
        if not is_topic_name(text):
            raise UsageError(f"{text[:300]!r} is not the name of a topic", hint="write TOPIC, e.g. orders")
        return text


class TopicOrPartitionType(_Type):
    """``orders`` or ``orders/3``."""

    name = "topic[/p]"

    def read(self, text: str) -> tuple[str, int | None]:
        """Read ``TOPIC`` or ``TOPIC/P``."""
        if "/" in text:
            parent = parse_partition(text)
            return parent.topic, parent.partition
        return TOPIC.read(text), None


class KeyRangeType(_Type):
    """``40000000:80000000``."""

    name = "lo:hi"

    def read(self, text: str) -> KeyRange:
        """Read ``LO:HI`` in hexadecimal; ``[LO,HI)`` is accepted as well."""
        return KeyRange.parse(_SHOWN_RANGE.sub(r"\1:\2", text))


class KeyRangesType(_Type):
    """One or more ranges, separated by commas."""

    name = "lo:hi[,lo:hi…]"

    def read(self, text: str) -> tuple[KeyRange, ...]:
        """Read the ranges."""
        return tuple(KeyRange.parse(part) for part in _SHOWN_RANGE.sub(r"\1:\2", text).split(","))


class DurationType(_Type):
    """``250ms``, ``10s``, ``2m``, ``1h``, or plain seconds; a number of seconds."""

    name = "duration"

    def read(self, text: str) -> float:
        """Read a duration above zero and below a day."""
        match = _DURATION.fullmatch(text.strip())
        seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
        if not 0 < seconds <= _LONGEST:
            raise UsageError(f"{text[:40]!r} is not a duration", hint="write for example 250ms, 10s or 2m")
        return seconds


class SinceType(_Base):
    """A time with its zone, or a duration before now; ms since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text that was given."""
        if not isinstance(value, str):
            return value
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
        if at is None:
            return time.time_ns() // 1_000_000 - self._ago(value, param, ctx)
        if at.tzinfo is None:
            self.fail(f"{value[:60]!r} has no time zone; write for example {value[:60]}Z", param, ctx)
        return max(0, round(at.timestamp() * 1000))

    def _ago(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return round(DURATION.read(text) * 1000)
        except UsageError:
            self.fail(f"{text[:60]!r} is not a time; write 2026-03-01T12:00:00Z, or 6h", param, ctx)


class NameType(_Type):
    """A name that Kafka may hold: any valid text without NUL, where the client library would cut it."""

    name = "name"

    def read(self, text: str) -> str:
        """Check the name."""
        if not is_sendable(text):
            raise UsageError(f"{text[:60]!r} is not UTF-8 text", hint="check the terminal's encoding")
        return text


class PrintableType(_Type):
    """A name that is printed as a part of a command, exactly as it is."""

    name = "name"

    def read(self, text: str) -> str:
        """Check the name."""
        if not text:
            raise UsageError("the name is empty")
        if not text.isprintable():
            raise UsageError(f"{text[:60]!r} has characters that cannot be printed")
        return text


class PropertyType(_Type):
    """``key=value``. A text without ``=`` is never shown: it may be a secret."""

    name = "key=value"

    def read(self, text: str) -> tuple[str, str]:
        """Read ``key=value``."""
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError("not a key=value pair", hint="write for example -X security.protocol=SSL")
        return key.strip(), value


class Base64Type(_Type):
    """Bytes, in base64."""

    name = "base64"

    def read(self, text: str) -> bytes:
        """Decode the text."""
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("this is not base64") from None


class HexType(_Type):
    """Bytes, in hexadecimal."""

    name = "hex"

    def read(self, text: str) -> bytes:
        """Decode the text."""
        try:
            return bytes.fromhex(text.removeprefix("0x"))
        except ValueError:
            raise UsageError("this is not hexadecimal") from None


PARTITION = PartitionType()
TOPIC = TopicType()
TOPIC_OR_PARTITION = TopicOrPartitionType()
KEY_RANGE = KeyRangeType()
KEY_RANGES = KeyRangesType()
BASE64 = Base64Type()
HEX = HexType()
DURATION = DurationType()
SINCE = SinceType()
NAME = NameType()
PRINTABLE = PrintableType()
PROPERTY = PropertyType()
RANGES = click.IntRange(MIN_RANGES, MAX_RANGES)
OFFSET = click.IntRange(0, MAX_OFFSET)
COUNT = click.IntRange(1, MAX_OFFSET)
PARTITION_NUMBER = click.IntRange(0, MAX_PARTITION)
