"""Nobody but one function asks a record that was read for its headers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kpsplit
from kpsplit.kafka.logical_message import headers_of

PACKAGE = Path(kpsplit.__file__).parent


class Broken:
    """A message as the client library gives it: asked a second time it would end the process."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._headers: list[Any] | None = None
        self.asked = 0

    def topic(self) -> str:
        return "orders"

    def headers(self) -> list[Any] | None:
        if self._headers is None:
            self.asked += 1
            assert self.asked == 1, "a segmentation fault"
            raise self._error
        return self._headers

    def set_headers(self, headers: list[Any]) -> None:
        self._headers = headers


def test_headers_that_cannot_be_read_are_asked_for_once_and_are_an_empty_list() -> None:
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError("…")):
        message = Broken(error)
        assert headers_of(message) == []
        assert message.headers() == [], "what the application gets"
        assert headers_of(message) == []


def test_one_function_is_the_only_caller() -> None:
    calls = re.compile(r"\.headers\(\)|methodcaller\(\"headers\"\)")
    callers = [p for p in PACKAGE.rglob("*.py") if any(calls.search(c) for c in code_of(p))]
    assert callers == [PACKAGE / "kafka" / "logical_message.py"]


def code_of(path: Path) -> list[str]:
    """The lines of a file without prose."""
    return [
        line
        for line in path.read_text().splitlines()
        if "``" not in line and not line.strip().startswith('"""')
    ]
