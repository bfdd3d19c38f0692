"""Bad input: arbitrary bytes, arbitrary JSON, valid documents with one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

MOST_TEXT = 400
"""No message that a reader of records gives is longer."""

DEPTH = 3000
_EDGES = (0, 1, 2**16, 2**31, 2**32, 2**63, 2**64, 10**400)


class Raw(str):
    """JSON text that stands for itself: what Python's own encoder would never write."""


ODD = [
    Raw(text)
    for text in (
        *("null", "true", "false", "1.0", "1e3", "1e999", "-0", "NaN", "Infinity", "-Infinity"),
        "9" * 5000,
        *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"\\u202e"', '"1"', '""', "[]", "{}"),
        *("[null]", '{"":null}', '{"a":1,"a":1}', "[" * DEPTH + "]" * DEPTH),
        '{"a":' * DEPTH + "1" + "}" * DEPTH,
    )
]  # fmt: skip

SHORT = [text for text in ODD if len(text) < DEPTH]
"""Those of which many may be tried."""

integers = st.sampled_from(_EDGES).flatmap(lambda n: st.sampled_from((n - 1, n, n + 1, -n)))
texts = st.text(max_size=8) | st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Nd")), max_size=4)
values = st.sampled_from(ODD) | integers | texts | st.just("x" * 20_000)
json_values = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def written(value: Any) -> str:
    """The JSON text of a value that may hold ``Raw``."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value) if not isinstance(value, int) or isinstance(value, bool) else _digits(value)


def _digits(number: int) -> str:
    """The digits of a number, more of them than ``str`` writes too."""
    return ("-" if number < 0 else "") + f"{abs(number):d}"


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Any JSON; some of it with a format version, so that it is read on."""
    value = draw(json_values)
    if isinstance(value, dict) and draw(st.booleans()):
        value = value | {"v": draw(st.sampled_from([1, 2, 3, True, "1", Raw("1.0"), 0, -1, 2**70]))}
    return written(value).encode()


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside a JSON value, itself left out."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, inner in inside for p in ((*here, key), *places(inner, (*here, key)))]


def mutations(data: bytes, odd: Sequence[Any] = SHORT) -> Iterator[bytes]:
    """Every way to have one thing wrong in a valid document, with these values in place of others."""
    for way in places(json.loads(data)):
        for change in changes(odd):
            value = json.loads(data)
            *outer, last = way
            around = _inside(value, outer)
            if change(around, last):
                yield written(value).encode()


Change = Callable[[Any, Any], bool]
"""Changes the value under a key of an object or list; False: there is nothing to change so."""


def changes(odd: Sequence[Any]) -> list[Change]:
    """What can be wrong with one value."""
    return [
        _gone,
        _repeated,
        _renamed,
        *(partial(_other, new=new) for new in odd),
        *(partial(_moved, by=by) for by in (-1, 1, 2**31, 2**62, 2**63)),
    ]


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """A valid document with one to three things wrong."""
    value = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        if ways := places(value):
            *outer, last = draw(st.sampled_from(ways))
            draw(st.sampled_from(changes([draw(values)])))(_inside(value, outer), last)
    return written(value).encode()


def doubled(data: bytes) -> Iterator[bytes]:
    """The document with one field standing twice, for every field at every depth."""
    for *outer, last in places(json.loads(data)):
        value = json.loads(data)
        around = _inside(value, outer)
        if isinstance(around, dict):
            twice = Raw(f"{{{json.dumps(last)}:{written(around[last])},{written(around)[1:]}")
            if outer:
                _inside(value, outer[:-1])[outer[-1]] = twice
            yield (written(value) if outer else twice).encode()


def _inside(value: Any, way: Sequence[Any]) -> Any:
    for key in way:
        value = value[key]
    return value


def _gone(around: Any, key: Any) -> bool:
    del around[key]
    return True


def _other(around: Any, key: Any, new: Any) -> bool:
    around[key] = new
    return True


def _moved(around: Any, key: Any, by: int) -> bool:
    if type(around[key]) is not int:
        return False
    around[key] += by
    return True


def _repeated(around: Any, key: Any) -> bool:
    if not isinstance(around, list):
        return False
    around.insert(key, around[key])
    return True


def _renamed(around: Any, key: Any) -> bool:
    if not isinstance(around, dict):
        return False
    around["\ud800"] = around.pop(key)
    return True


class Unread(bytes):
    """Bytes that nobody may look into: only their number is asked for."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Fail the test."""
        raise AssertionError("a document over the limit was parsed")


def check_sound(value: Any, kind: Any) -> None:
    """Fail unless a value is of its declared type all through: no odd numbers, no half characters."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kind = next(k for k in of if isinstance(value, get_origin(k) or k))
        check_sound(value, kind)
    elif origin is tuple:
        inner = of[:1] * len(value) if of[-1] is ... else of
        assert type(value) is tuple
        for item, wanted in zip(value, inner, strict=True):
            check_sound(item, wanted)
    elif origin in (dict, Mapping):
        for key, item in value.items():
            check_sound(key, of[0])
            check_sound(item, of[1])
    elif is_dataclass(kind):
        assert type(value) is kind
        hints = get_type_hints(kind)
        for field in fields(kind):
            check_sound(getattr(value, field.name), hints[field.name])
    else:
        _check_plain(value, kind)


def _check_plain(value: Any, kind: Any) -> None:
    assert type(value) is kind, f"{value!r} is no {kind}"
    if kind is str:
        value.encode("utf-8")
    elif kind is float:
        assert 0 <= value <= 1
    elif kind is int:
        assert -1 <= value < 2**64


def check_message(text: str) -> None:
    """Fail unless this is one line, bounded in length, that any terminal can show."""
    assert text
    assert len(text) <= MOST_TEXT
    assert text.isprintable(), ascii(text)
