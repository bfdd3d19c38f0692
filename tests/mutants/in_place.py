"""A process that has collected tests, and makes each mistake in a child: in functions that are there.

Most of a mutant's time was the import of the package and of its tests. Here they are imported once for all.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from functools import cache
from inspect import CO_OPTIMIZED
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

import pytest

from tests.mutants.mutants import MUTANTS, OPTIONS, PATIENCE, ROOT, EndsAtOnce, Mutant

PACKAGE = f"{ROOT / 'kpsplit'}{os.sep}"
NOT_IN_A_FUNCTION = -1
"""Said in place of an exit code: the package has to be imported with the mistake."""
Place = tuple[tuple[str, int], ...]
"""The names on the way from a module to code in it, and which of several with one name (properties)."""


def places(code: CodeType, at: Place = ()) -> Iterator[tuple[Place, CodeType]]:
    """Give code and all that is in it."""
    yield at, code
    names: list[str] = []
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from places(inner, (*at, (inner.co_name, names.count(inner.co_name))))
            names.append(inner.co_name)


@cache
def _in_module(text: str) -> dict[Place, CodeType]:
    return dict(places(compile(text, "", "exec", dont_inherit=True)))


def _does(code: CodeType) -> tuple[object, ...]:
    """What code does itself, without that of what it defines."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_code, code.co_names, constants


def replacements(
    before: str, after: str, live: dict[CodeType, list[FunctionType]]
) -> dict[CodeType, CodeType] | None:
    """Return the new code of each function of a module; None where more than functions changes.

    What a module or class does was done when it was imported, and a function gets its free variables once.
    """
    new = _in_module(after)
    found: dict[CodeType, CodeType] = {}
    for place, code in _in_module(before).items():
        other = new.get(place)
        if not code.co_flags & CO_OPTIMIZED:
            if other is None or _does(other) != _does(code):
                return None
        elif code in live and (other is None or not _takes_over(found, code, other)):
            return None
    return found


def _takes_over(found: dict[CodeType, CodeType], code: CodeType, other: CodeType) -> bool:
    """Have other code replace a function's; False if it cannot, or if the same code is to become two."""
    return other.co_freevars == code.co_freevars and found.setdefault(code, other) == other


class InPlace:
    """What the process does in place of a run: it takes names of mutants, and says how their tests ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._live: dict[str, dict[CodeType, list[FunctionType]]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        """Find the functions of the package, before the collector forgets what is there."""
        for made in gc.get_objects():
            if isinstance(made, FunctionType) and (file := made.__code__.co_filename).startswith(PACKAGE):
                self._live.setdefault(file, {}).setdefault(made.__code__, []).append(made)

    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        """Serve until nobody asks any more, and end without a summary of no tests."""
        while True:
            try:
                name, output = self._connection.recv()
            except EOFError:
                os._exit(pytest.ExitCode.OK)
            mutant = next(m for m in MUTANTS if m.name == name)
            self._connection.send(self._exit_code(mutant, _chosen(session.items, mutant), output))

    def _exit_code(self, mutant: Mutant, items: list[pytest.Item], output: Path) -> int:
        text, live = mutant.file.read_text("utf-8"), self._live.get(str(mutant.file), {})
        new = replacements(text, text.replace(mutant.before, mutant.after), live)
        if not new:
            return NOT_IN_A_FUNCTION
        child = os.fork()
        if child == 0:
            for code, other in new.items():
                for function in live[code]:
                    function.__code__ = other
            _run(items, output)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _chosen(items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
    chosen = f"tests/{mutant.noticed_by}"
    return [i for i in items if i.nodeid == chosen or i.nodeid.startswith((f"{chosen}::", f"{chosen}["))]


def _run(items: list[pytest.Item], output: Path) -> NoReturn:
    """Be the whole life of a child: the first failure ends it."""
    with output.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    random.seed()
    code = pytest.ExitCode.INTERNAL_ERROR
    try:
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        code = pytest.ExitCode.OK if items else pytest.ExitCode.NO_TESTS_COLLECTED
    finally:
        os._exit(code)


def serve(connection: Connection) -> None:
    """Be the process: it has imported nothing but libraries yet."""
    from tests.unit import lane_samples

    lane_samples.PATIENCE = PATIENCE  # what waits in vain has noticed it
    files = sorted({str(mutant.tests) for mutant in MUTANTS})
    pytest.main([*OPTIONS, "--tb=native", "--capture=no", *files], [EndsAtOnce(), InPlace(connection)])
