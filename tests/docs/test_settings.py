"""The pages on the producer and the consumer name every setting, statistic and method of their own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import fields
from inspect import signature
from pathlib import Path

import confluent_kafka
import pytest

from kpsplit import DeadLetter, Producer, Retry, Skip, Stop
from kpsplit.consumer import config as consumer_config
from kpsplit.consumer import engine
from kpsplit.consumer.run import RunStats, run
from kpsplit.producer import config as producer_config
from kpsplit.producer.metrics import LayoutStats, PartitionStats

DOCS = Path(__file__).parents[2] / "docs"


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
    sources = [path.read_text("utf-8") for path in Path(consumer_config.__file__).parent.rglob("*.py")]
    counted = {name for text in sources for name in re.findall(r'context\.counts\["(\w+)"\] \+=', text)}
    counted |= {"commits_rejected", "commits_failed", "internal_errors"}
    reported = set(re.findall(r'^ {8}"(\w+)": ', inspect.getsource(engine.statistics), re.MULTILINE))
    assert len(counted) > 15 and len(reported) > 10
    assert counted | reported <= rows_of("consumer.md").keys()
