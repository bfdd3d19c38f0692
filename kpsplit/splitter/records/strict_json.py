"""Strict JSON: canonical encoding, and decoding that rejects everything unexpected with a reason.

Rejected: more than ``MAX_BYTES``, bytes that are not UTF-8, duplicate or unknown keys, numbers that are not
64-bit integers (no floats, NaN, huge digits), nesting deeper than the formats need, a newer version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from kpsplit.errors import FutureVersionError, KpsplitError, RecordError

MAX_BYTES = 900_000
"""No record is larger: below the brokers' default limit of 1 MiB for a batch."""

_MAX_INT = (1 << 63) - 1
ANY_VERSION = 0xFFFF
"""No format version is greater."""
_SHOWN = 60
_LONGEST_NAME = 1000

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def encode(value: dict[str, Any]) -> bytes:
    """Return the canonical bytes: sorted keys, no spaces, ASCII; RecordError if more than ``MAX_BYTES``."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(data) > MAX_BYTES:
        raise RecordError(
            f"a record of {len(data)} bytes is over the limit of {MAX_BYTES}",
            hint="what it describes has too long a history to go on",
        )
    return data


def encode_readable(value: dict[str, Any], read: Callable[[bytes], object]) -> bytes:
    """Return the canonical bytes of a JSON object that its own reader accepts.

    Nothing that readers would reject is ever written: it would be lost for all of them.

    Raises:
        RecordError: a field is over its limit, or the whole is over MAX_BYTES.
    """
    data = encode(value)
    read(data)
    return data


def form_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, for a format that names them alike; tests compare it.

    Not ``asdict``: that copies each of the numbers in a certificate.
    """
    return {field.name: getattr(value, field.name) for field in fields(value)}


def decode(data: bytes | None, what: str, version: int) -> Fields:
    """Return the fields of a JSON object of the given format version and of at most ``MAX_BYTES``.

    Raises:
        RecordError: the bytes are no such object; the message says why and never shows a value.
        FutureVersionError: the object names a newer version.
    """
    value = _object(data, what)
    found = value.pop("v", None)
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= ANY_VERSION:
        raise RecordError(f"{what}: no format version")
    if found > version:
        raise FutureVersionError(
            f"{what}: format version {found} is newer than {version}, the newest that this kpsplit reads",
            hint="upgrade kpsplit",
        )
    return Fields(value, what, found)


def decode_unversioned(data: bytes | None, what: str) -> Fields:
    """Return the fields of a JSON object without a format version (a key); RecordError if it is none."""
    return Fields(_object(data, what), what)


def _object(data: bytes | None, what: str) -> dict[str, Any]:
    if data is None:
        raise RecordError(f"{what}: no value")
    if len(data) > MAX_BYTES:
        raise RecordError(f"{what}: {len(data)} bytes are over the limit of {MAX_BYTES}")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_float=_reject, parse_constant=_reject
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what}: not strict JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise RecordError(f"{what}: not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def is_unicode(text: str) -> bool:
    """Return whether a text can be written in UTF-8: half a surrogate pair is no character."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and is_unicode(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT


def _reject(_text: str) -> NoReturn:
    raise ValueError("not an integer")


class Fields:
    """The fields of one JSON object; each is taken exactly once, ``done`` rejects what is left."""

    def __init__(self, value: dict[str, Any], what: str, version: int = 1) -> None:
        self._left = dict(value)
        self._what = what
        self.version = version

    def fail(self, reason: str) -> NoReturn:
        """Raise RecordError."""
        raise RecordError(f"{self._what}: {reason}")

    def done(self) -> None:
        """Reject fields that nobody asked for."""
        if self._left:
            self.fail(f"unknown field {min(self._left)[:_SHOWN]!r}")

    def integer(self, name: str, low: int = 0, high: int = _MAX_INT) -> int:
        value = self._take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(f"{name} is not an integer from {low} to {high}")
        return value

    def optional_integer(self, name: str, low: int = 0, high: int = _MAX_INT) -> int | None:
        return None if self._null(name) else self.integer(name, low, high)

    def text(self, name: str, longest: int = 1000) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not _is_text(value, longest):
            self.fail(f"{name} is not a text of at most {longest} characters")
        return value

    def optional_text(self, name: str, longest: int = 1000) -> str | None:
        return None if self._null(name) else self.text(name, longest)

    def boolean(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            self.fail(f"{name} is not true or false")
        return value

    def choice(self, name: str, kind: type[E]) -> E:
        value = self._take(name)
        if not isinstance(value, str) or value not in kind.__members__.values():
            self.fail(f"{name} is not one of {', '.join(kind)}")
        return kind(value)

    def items(self, name: str, longest: int = 100_000) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > longest:
            self.fail(f"{name} is not a list of at most {longest} items")
        return value

    def objects(
        self, name: str, read: Callable[[Fields], T], before: Iterable[tuple[dict[str, Any], T]] = ()
    ) -> tuple[T, ...]:
        """``before``: what was read earlier, each after its form. One of the same form is not read again."""
        values = self.items(name)
        first = [
            known if value == form else self._object(value, name, read)
            for value, (form, known) in zip(values, before, strict=False)
        ]
        return (*first, *(self._object(value, name, read) for value in values[len(first) :]))

    def optional_object(self, name: str, read: Callable[[Fields], T]) -> T | None:
        if self._null(name):
            return None
        return self._object(self._take(name), name, read)

    def integers(self, name: str) -> tuple[int, ...]:
        values = self.items(name)
        if not all(map(_is_count, values)):
            self.fail(f"{name} is not a list of integers")
        return tuple(values)

    def texts(self, name: str, longest: int = 1000) -> tuple[str, ...]:
        values = self.items(name)
        if not all(_is_text(v, longest) for v in values):
            self.fail(f"{name} is not a list of texts")
        return tuple(values)

    def text_map(self, name: str) -> dict[str, str]:
        value = self._map(name)
        if not all(_is_text(v, _LONGEST_NAME) for v in value.values()):
            self.fail(f"{name} is not a map of texts")
        return value

    def number_map(self, name: str) -> dict[str, int]:
        value = self._map(name)
        if not all(map(_is_count, value.values())):
            self.fail(f"{name} is not a map of integers")
        return value

    def object_map(self, name: str, read: Callable[[Fields], T]) -> dict[str, T]:
        return {k: self._object(v, name, read) for k, v in self._map(name).items()}

    def guard(self, make: Callable[[], T]) -> T:
        """Build a value; what its type refuses becomes a rejected record."""
        try:
            return make()
        except RecordError:
            raise
        except KpsplitError as error:
            self.fail(error.message)

    def _map(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if not isinstance(value, dict) or not all(_is_text(k, _LONGEST_NAME) for k in value):
            self.fail(f"{name} is not a map by names of at most {_LONGEST_NAME} characters")
        return dict(value)

    def _object(self, value: Any, name: str, read: Callable[[Fields], T]) -> T:
        if not isinstance(value, dict):
            self.fail(f"{name} is not an object")
        fields = Fields(value, f"{self._what}: {name}", self.version)
        result = read(fields)
        fields.done()
        return result

    def _take(self, name: str) -> Any:
        if name not in self._left:
            self.fail(f"no field {name!r}")
        return self._left.pop(name)

    def _null(self, name: str) -> bool:
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return True
        return False
