"""docs/cli.md is what the command line says of itself."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from kpsplit.admin_cli import main
from kpsplit.admin_cli.main import VERBS

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_cli_reference.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_cli_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date() -> None:
    assert load().main(["--check"]) == 0, "run: python scripts/write_cli_reference.py"


def test_the_reference_has_a_section_per_verb() -> None:
    page = load().reference()
    for verb in VERBS:
        if verb.name != "demo":
            assert f"\n## kpsplit {verb.name}\n" in page


def test_the_page_names_each_verb_that_asks() -> None:
    said = next(part for part in load().PREFACE.split("\n\n") if " ask before" in part)
    said = said.partition(" ask before")[0]
    asking = {verb.name for verb in VERBS if any(p.name == "yes" for p in main.load(verb).params)}
    assert {word.partition(" ")[0] for word in re.findall(r"`([^`]+)`", said)} == asking
