"""Each mutant is a mistake that can be made in today's code, and the tests notice it."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.mutants import in_place
from tests.mutants.mutants import LIBRARIES, MUTANTS, Mutant, main_of_fork

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(LIBRARIES)
"""Processes that have imported nothing but libraries."""


class Collected:
    """The process that has collected tests, see ``in_place``; it ends with this one."""

    def __init__(self) -> None:
        self._ours, theirs = FORKS.Pipe()
        FORKS.Process(target=in_place.serve, args=(theirs,), daemon=True).start()
        theirs.close()

    def code_with(self, mutant: Mutant, output: Path) -> int:
        """Return the exit code of the tests with a mistake made."""
        self._ours.send((mutant.name, output))
        return self._ours.recv()


@pytest.fixture(scope="session")
def collected() -> Collected:
    return Collected()


def _code_alone(mutant: Mutant, output: Path) -> int | None:
    """Return the exit code of the tests in a process that imports the package with the mistake."""
    process = FORKS.Process(target=main_of_fork, args=(mutant.name, output))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_todays_code(mutant: Mutant) -> None:
    assert mutant.file.read_text("utf-8").count(mutant.before) == 1, "give the mutant the new text"
    assert mutant.tests.exists()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant, collected: Collected, tmp_path: Path) -> None:
    output = tmp_path / "output"
    code: int | None = collected.code_with(mutant, output)
    if code == in_place.NOT_IN_A_FUNCTION:
        code = _code_alone(mutant, output)
    assert code == pytest.ExitCode.TESTS_FAILED, output.read_text("utf-8")[-4000:]
