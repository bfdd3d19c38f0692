"""Each mutant is a mistake that can be made in today's code, and the tests notice it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.mutants import MUTANTS, ROOT, Mutant

TESTS_FAILED = 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_todays_code(mutant: Mutant) -> None:
    assert mutant.file.read_text("utf-8").count(mutant.before) == 1, "give the mutant the new text"
    assert mutant.tests.exists()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    command = [sys.executable, "-m", "tests.mutants.mutants", mutant.name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == TESTS_FAILED, run.stdout[-2000:] + run.stderr[-2000:]
