"""docs/seeds.md names tests and files that exist, and its figures are those of its rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
INTRODUCTION = PAGE.partition("\n## ")[0]
VERDICTS = ("works", "in part", "different", "not there")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| (?:\d{3}|own)-", line)
]
"""Of each row: number, what was asked for, verdict, where, the tests, the note."""


def test_every_row_has_its_six_cells_and_a_verdict() -> None:
    for row in ROWS:
        assert len(row) == 6, row
        number, asked, verdict, where, shown, note = row
        assert asked and where and shown, number
        assert verdict in VERDICTS, f"{number}: {verdict}"
        assert note or verdict == "works", f"{number} has no reason"


def test_every_number_is_there_once() -> None:
    assert len(ROWS) == 126
    numbers = [row[0] for row in ROWS]
    lengths = Counter(number.partition("-")[0] for number in numbers)
    assert numbers == [f"{name}-{n}" for name, length in lengths.items() for n in range(1, length + 1)]


def test_every_test_that_a_row_names_exists() -> None:
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    existing = set(re.findall(r"^\s*(?:async )?def (test_\w+)", source, flags=re.MULTILINE))
    for number, *_, shown, _note in ROWS:
        named = re.findall(r"`(test_\w+)`", shown)
        assert shown == "–" or shown == ", ".join(f"`{name}`" for name in named), number
        assert len(named) <= 2, number
        assert set(named) <= existing, f"{number} names {sorted(set(named) - existing)}"


def test_every_row_that_works_names_a_test() -> None:
    assert [number for number, _, verdict, _, shown, _ in ROWS if verdict == "works" and shown == "–"] == []


def test_every_file_that_a_row_names_exists() -> None:
    for number, _, _, where, _, _ in ROWS:
        links = re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", where)
        files = re.findall(r"`([^`]+)`", where)
        assert files or links, number
        for name in files:
            assert any((base / name).is_file() for base in (ROOT / "kpsplit", ROOT)), f"{number} names {name}"
        for page in links:
            assert (ROOT / "docs" / page).is_file(), f"{number} links to {page}"


def test_the_introduction_has_the_figures_of_all_rows() -> None:
    verdicts = Counter(row[2] for row in ROWS)
    said = re.search(
        r"ask for (\d+) things: (\d+) work, (\d+) work in part, (\d+) are different on purpose, "
        r"and (\d+) are not there",
        " ".join(INTRODUCTION.split()),
    )
    assert said
    assert [int(figure) for figure in said.groups()] == [len(ROWS), *(verdicts[v] for v in VERDICTS)]


@pytest.mark.parametrize("proposal", ["000", "001", "002", "003", "004", "own"])
def test_the_first_table_has_the_figures_of_a_proposal(proposal: str) -> None:
    verdicts = Counter(row[2] for row in ROWS if row[0].startswith(f"{proposal}-"))
    figures = [verdicts.total(), *(verdicts[verdict] for verdict in VERDICTS)]
    assert f"| {proposal} | {' | '.join(map(str, figures))} |" in INTRODUCTION
