"""The pages name every setting, statistic and method, and only commands that exist."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import fields
from inspect import signature
from pathlib import Path

import click
import confluent_kafka
import pytest

from kpsplit import DeadLetter, Producer, Retry, RunOptions, RunStats, Skip, Stop
from kpsplit.admin_cli.main import BY_NAME, load
from kpsplit.consumer import config as consumer_config
from kpsplit.consumer.engine import Engine
from kpsplit.consumer.run.runner import run
from kpsplit.producer import config as producer_config
from kpsplit.producer.state import LayoutStats, PartitionStats

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMAND = re.compile(r"(?:`|^    )kpsplit ([a-z]+)\b([^`#\n]*)", re.MULTILINE)


def rows_of(page: str) -> dict[str, list[str]]:
    """The cells of each table row, by every name in backquotes in its first cell."""
    rows: dict[str, list[str]] = {}
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for name in cells[0].split("`")[1::2]:
                rows[name] = cells[1:]
    return rows


@pytest.mark.parametrize(
    ("page", "keys", "cells"),
    [("producer.md", producer_config._OWN_KEYS, 3), ("consumer.md", consumer_config._OWN_KEYS, 2)],
)
def test_every_setting_has_a_row_and_every_row_a_setting(
    page: str, keys: Collection[str], cells: int
) -> None:
    rows = {name: row for name, row in rows_of(page).items() if name.startswith("kpsplit.")}
    assert rows.keys() == set(keys)
    assert all(len(row) == cells and all(row) for row in rows.values())


def test_every_field_of_the_producers_statistics_has_a_row() -> None:
    names = {field.name for kind in (LayoutStats, PartitionStats) for field in fields(kind)}
    assert names | {"held", "strays"} <= rows_of("producer.md").keys()


def test_every_option_and_every_figure_of_a_run_has_a_row() -> None:
    options = set(signature(run).parameters) - {"consumer", "handler"}
    assert options == set(RunOptions.__annotations__)
    policies = {kind.__name__ for kind in (Stop, Skip, DeadLetter, Retry)}
    rows = rows_of("consumer.md")
    assert options | {field.name for field in fields(RunStats)} <= rows.keys()
    assert policies <= {name.partition("(")[0] for name in rows}


def test_methods_that_the_original_does_not_have_are_on_the_page() -> None:
    page = (DOCS / "producer.md").read_text(encoding="utf-8")
    own = {n for n in vars(Producer) if not n.startswith("_") and not hasattr(confluent_kafka.Producer, n)}
    assert own
    assert all(f"{name}()`" in page for name in own)


def test_every_key_of_the_consumers_statistics_has_a_row() -> None:
    counted, reported = (
        set(re.findall(r'^ {12}"(\w+)": ', inspect.getsource(function), re.MULTILINE))
        for function in (Engine.counts, Engine.statistics)
    )
    assert len(counted) > 15 and len(reported) > 10
    assert counted | reported <= rows_of("consumer.md").keys()


def test_every_command_that_a_page_names_has_this_verb_and_these_options() -> None:
    checked = 0
    for page in {ROOT / "README.md", *DOCS.rglob("*.md")} - {DOCS / "cli.md"}:
        for verb, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            assert verb in BY_NAME, f"{page.name}: kpsplit {verb}"
            command = load(BY_NAME[verb])
            options = {o for c in commands_in(command) for param in c.params for o in param.opts}
            used = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) - {"--help"}
            assert used <= options, f"{page.name}: kpsplit {verb} {rest}"
            checked += 1
    assert checked > 50


def commands_in(command: click.Command) -> list[click.Command]:
    """The command, or all commands of a group."""
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]
