"""Handlers for tests of processes: they have to be importable there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kpsplit import Output


class OddError(Exception):
    """An exception that cannot be sent to another process."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.two = two
        self.cannot_be_sent = sys.stderr


def tell(record: Any) -> Iterator[Output]:
    """Return everything that a record tells, and which process it is."""
    told = (
        record.topic(),
        record.partition(),
        record.offset(),
        record.key(),
        record.headers(),
        record.timestamp(),
        record.source(),
        len(record),
        record.error(),
        os.getpid(),
    )
    yield Output("told", value=repr(told).encode())


def fail(record: Any) -> None:
    """Raise what the value names."""
    if record.value() == b"odd":
        raise OddError("one", "two")
    raise ValueError(record.value().decode())


def die_once(record: Any) -> None:
    """End the process at the first record, unless it has been done before; the value is a path."""
    path = Path(record.value().decode())
    if not path.exists():
        path.touch()
        os._exit(7)


def sleep(record: Any) -> None:
    """Say that it began, then sleep for good; the value is a path."""
    Path(record.value().decode()).touch()
    time.sleep(3600)


def touch(record: Any) -> None:
    """Make the file that the value names."""
    Path(record.value().decode()).touch()
