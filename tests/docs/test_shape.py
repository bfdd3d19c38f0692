"""scripts/shape.py measures what it says, and the table of packages names those that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
shape = runpy.run_path(str(ROOT / "scripts" / "shape.py"))


def package(tmp_path: Path, **sources: str) -> dict[str, int]:
    """The figures of a package made of these modules."""
    for name, source in sources.items():
        file = tmp_path / "kpsplit" / Path(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source + "\n", encoding="utf-8")
    figures: dict[str, int] = shape["Shape"](tmp_path).figures()
    return figures


def test_a_chain_counts_the_modules_of_one_package_only(tmp_path: Path) -> None:
    figures = package(
        tmp_path,
        one__a="import kpsplit.one.b",
        one__b="def f():\n    from kpsplit.one import c",
        one__c="from kpsplit.two.d import Thing",
        two__d="class Thing: ...",
    )
    assert figures["longest import chain inside a package"] == 3
    assert figures["largest fan-out"] == 1
    assert figures["modules in import cycles"] == 0
    assert figures["files under 150 lines with one importer"] == 3


def test_cycles_and_class_names_that_are_used_twice_are_counted(tmp_path: Path) -> None:
    figures = package(
        tmp_path,
        one__a="from kpsplit.one.b import Same\nclass Other: ...",
        one__b="import kpsplit.one.c\nclass Same: ...",
        one__c="import kpsplit.one.a\nclass Same: ...",
        one__d="import kpsplit.one.a",
    )
    assert figures["modules in import cycles"] == 3
    assert figures["class names used twice"] == 1


def test_every_ceiling_is_a_figure_that_can_be_exceeded(tmp_path: Path) -> None:
    figures = package(tmp_path, one__a="")
    assert shape["CEILINGS"].keys() <= figures.keys()
    assert shape["exceeded"]({name: value + 1 for name, value in shape["CEILINGS"].items()}) != []
    assert shape["exceeded"](shape["CEILINGS"]) == []


def test_the_table_keeps_the_figures_from_before() -> None:
    begin, end = shape["BEGIN"], shape["END"]
    page = f"x\n{begin}\n{shape['HEAD']}\n|---|\n| `a` | {' | '.join(['1 → 2'] * 6)} |\n{end}\ny\n"
    rows = {"`a`": ["3"] * 6, "`b`": ["4"] * 6}
    written = shape["with_table"](page, rows)
    assert f"| `a` | {' | '.join(['1 → 3'] * 6)} |" in written
    assert f"| `b` | {' | '.join(['– → 4'] * 6)} |" in written
    assert shape["with_table"](written, rows) == written


def test_the_table_of_packages_names_those_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition(shape["BEGIN"])[2].partition(shape["END"])[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == {path.parent.name for path in (ROOT / "kpsplit").glob("*/__init__.py")}
