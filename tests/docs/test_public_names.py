"""The public names: imported on first use, all of them in the reference, and nothing else on any page."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import kpsplit

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kpsplit"
SCRIPT = ROOT / "scripts" / "write_api_reference.py"
PUBLIC_MODULES = {"errors", "testing", "devcluster", "spark_jobs"}
COMMANDS = {"kpsplit.devcluster.jars", "kpsplit.spark_jobs.jars"}
"""Run with ``python -m``; they print which files are used."""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after it ran the code, without the standard library's."""
    script = f"import sys; before = set(sys.modules); {code}; import json"
    script += "; print(json.dumps(sorted(set(sys.modules) - before)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name for name in json.loads(run.stdout) if name.split(".")[0] not in sys.stdlib_module_names}


def test_importing_the_package_loads_nothing_but_its_errors() -> None:
    assert loaded_by("import kpsplit") == {"kpsplit", "kpsplit.errors", "kpsplit.lazy"}


def test_a_producer_loads_no_library_that_it_does_not_use() -> None:
    loaded = {name.split(".")[0] for name in loaded_by("from kpsplit import Producer")}
    assert loaded <= {"kpsplit", "confluent_kafka", "typing_extensions"}


def test_a_consumer_loads_neither_spark_nor_the_command_line_nor_a_store() -> None:
    loaded = {name.split(".")[0] for name in loaded_by("from kpsplit import Consumer")}
    assert not loaded & {"pyspark", "py4j", "pyarrow", "click", "rich", "rocksdict", "kafka"}


@pytest.mark.parametrize("client", ["Producer", "Consumer"])
def test_a_client_loads_nothing_that_plans_or_drives_operations(client: str) -> None:
    """An operation of an operator that died is rolled back with it: it is loaded then."""
    loaded = loaded_by(f"from kpsplit import {client}")
    assert not loaded & {"kpsplit.splitter.steps", "kpsplit.splitter.driver", "kpsplit.control.subtopics"}


def test_type_checkers_and_the_interpreter_find_the_same_public_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == kpsplit._HOMES
    assert {*seen, "errors", "__version__"} == set(kpsplit.__all__)
    assert all(getattr(kpsplit, name) is not None for name in kpsplit.__all__)


def test_the_reference_is_up_to_date() -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main(["--check"]) == 0, "run: python scripts/write_api_reference.py"


def test_every_public_name_and_every_method_of_one_says_what_it_means() -> None:
    silent = []
    public_names = runpy.run_path(str(SCRIPT))["public_names"]
    for module in map(
        importlib.import_module, ["kpsplit", *(f"kpsplit.{m}" for m in sorted(PUBLIC_MODULES))]
    ):
        for name in public_names(module):
            thing = getattr(module, name)
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            members = vars(thing).items() if inspect.isclass(thing) else ()
            methods = [(n, getattr(m, "__func__", m)) for n, m in members if not n.startswith("_")]
            documented = [(n, m) for n, m in methods if inspect.isfunction(m) or isinstance(m, property)]
            silent += [f"{name}.{n}" for n, m in [("", thing), *documented] if not m.__doc__]
    assert silent == []


def test_no_page_and_no_example_names_a_private_module() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for page in pages:
        for path in re.findall(r"(?<![\w.])kpsplit(?:\.\w+)+", page.read_text("utf-8")):
            _, first, *rest = path.split(".")
            if not ((PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists()):
                continue  # a setting, a header, a public name
            inner = PACKAGE.joinpath(first, *rest[:1])
            private = first not in PUBLIC_MODULES or (inner.with_suffix(".py").exists() and rest)
            assert not private or path in COMMANDS, f"{page.name} names {path}"
