"""Each mutant is a mistake that can be made in today's code, and the tests notice it."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.mutants.mutants import LIBRARIES, MUTANTS, Mutant, main_of_fork

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(LIBRARIES)
"""Each mistake is made in a process of its own, which has imported nothing but libraries."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_todays_code(mutant: Mutant) -> None:
    assert mutant.file.read_text("utf-8").count(mutant.before) == 1, "give the mutant the new text"
    assert mutant.tests.exists()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    output = tmp_path / "output"
    process = FORKS.Process(target=main_of_fork, args=(mutant.name, output))
    process.start()
    process.join()
    assert process.exitcode == pytest.ExitCode.TESTS_FAILED, output.read_text("utf-8")[-4000:]
