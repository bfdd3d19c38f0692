"""docs/cli.md is what the command line says of itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

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
