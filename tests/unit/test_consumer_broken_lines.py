"""Whatever line an exception comes at between the client and the application: nothing lost, nothing twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpsplit import compiled
from kpsplit.consumer import engine as engines
from tests.unit import broken_lines
from tests.unit.broken_lines import broken_at, lines_of

ALONE = {
    "poll": None,
    "poll in Python": {"buffer", "logical_message", "record_filter"},
    "interrupted": {"reader", "engine", "buffer", "fetch_state"},
    "consume": {"buffer", "progress"},
    "lanes": {"work_queue", "lanes"},
}
"""Which files are gone through; the reading side is the same for all."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REST_SECONDS", "SLICE_SECONDS"):
        monkeypatch.setattr(engines, name, 0.0)
    monkeypatch.setattr(broken_lines.readings, "_consumer", broken_lines.readings._consumer)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("how", ALONE)
def test_an_exception_at_any_line_loses_doubles_and_reorders_nothing_and_no_commit_passes_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ALONE[how]
    how, _, in_python = how.partition(" in ")
    if in_python:
        monkeypatch.setattr(compiled, "messages", None)
    lines = {line: turns for line, turns in lines_of(how).items() if not files or Path(line[0]).stem in files}
    assert len(lines) > 100
    for line, turns in sorted(lines.items()):
        first, middle, last = 1, (len(turns) + 1) // 2, len(turns)
        try:
            for hit in sorted({first, middle, last}) if how in ("consume", "lanes") else [middle]:
                broken_at(how, line, turns, hit)
        except (AssertionError, MemoryError) as error:
            raise AssertionError(f"with an exception at {Path(line[0]).name}:{line[1]}") from error
