"""What `kpsplit unenroll` says when it is interrupted, and what it refuses before it merges anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kpsplit.admin_cli import call as calls
from kpsplit.admin_cli.commands.unenroll import how_far
from kpsplit.admin_cli.main import cli
from kpsplit.control.plans import Check
from kpsplit.control.returning import following
from kpsplit.errors import CheckFailedError, UnreachableError
from kpsplit.splitter.records.control import Enrolment, Partitioner
from tests.unit.samples import PARENT, life

ENROLLED = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True, 8)
SPLIT = Check("merged", False, f"{PARENT} is split, into 4", f"run: kpsplit merge {PARENT}")
STATE = Check("state", False, "a group keeps state of topic orders by its slots: c", "delete c")


def records() -> list[Enrolment]:
    """The enrolment, and all records of its return."""
    found = [ENROLLED]
    while (record := following(found[-1])) is not None:
        found.append(record)
    return found


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "the return of orders was not begun"),
        (1, "next: claim each partition, so that no operator splits it any more; to go on run: kpsplit un"),
        (
            2,
            "next: wait until no group has a member on the slots topic; to go on run: kpsplit unenroll",
        ),
        (3, "groups and producers go on; next: wait one lease, so that every client knows it; to go on run:"),
        (4, "orders is back with plain clients; to withdraw what may be left of range commits run: kpsplit"),
    ],
)
def test_how_far_a_return_is_follows_from_its_record(number: int, said: str) -> None:
    assert said in how_far("orders", records()[number])


class Operations:
    """An Admin of one topic; ``done``: what was done to it."""

    def __init__(self, *obstacles: Check, interrupts: str = "", gone: bool = False) -> None:
        self.obstacles, self.done = list(obstacles), list[str]()
        self._interrupts, self._gone, self._opened = interrupts, gone, 0

    @contextmanager
    def operations(self) -> Iterator[Operations]:
        self._opened += 1
        if self._gone and self._opened > 1:
            raise UnreachableError("no broker answers")
        yield self

    def plan_unenrol(self, _topic: str) -> list[Check]:
        return self.obstacles

    def status(self, _topic: str) -> list[Any]:
        return [SimpleNamespace(state=life().split)]

    def lineage(self, _parent: object) -> Any:
        return life().split.lineage

    def begun(self, _parent: object) -> None:
        return None

    def merge(self, parent: object, **_: object) -> None:
        self._step(f"merge {parent}")

    def retire(self, parent: object, **_: object) -> None:
        self._step(f"retire {parent}")

    def unenrol(self, topic: str, *_: object, **__: object) -> Enrolment:
        self._step(f"unenrol {topic}")
        if self.obstacles and "merge" not in str(self.done):
            raise CheckFailedError(self.obstacles[0].message, hint=self.obstacles[0].remedy)
        return records()[-1]

    def view(self) -> Any:
        recorded = records()[2 if self._interrupts.startswith("unenrol") else 0]
        state = life().split
        return SimpleNamespace(recorded=lambda _: recorded, state=lambda _: state)

    def _step(self, what: str) -> None:
        self.done.append(what)
        if self._interrupts and what.startswith(self._interrupts):
            raise KeyboardInterrupt


def unenroll(operations: Operations, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(calls.Call, "operations", operations.operations)
    done = CliRunner().invoke(cli, ["-b", "x", "unenroll", "orders", "--yes", *arguments])
    return done.exit_code, " ".join(done.stderr.split())


def test_an_interrupted_return_says_how_far_it_is_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = unenroll(Operations(interrupts="unenrol"), monkeypatch)
    assert code == 130
    assert said.startswith("kpsplit: interrupted; orders is being returned to plain clients, groups and")
    assert said.endswith("to go on run: kpsplit unenroll orders")


def test_what_was_merged_before_an_interruption_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = Operations(SPLIT, interrupts="unenrol")
    code, said = unenroll(operations, monkeypatch, "--merge")
    assert (code, operations.done) == (130, [f"merge {PARENT}", f"retire {PARENT}", "unenrol orders"])
    assert said.startswith(f"kpsplit: interrupted; {PARENT} merged and retired; orders is being returned")


@pytest.mark.parametrize(
    ("inside", "became"),
    [
        ("merge", f"nothing was changed, {PARENT} is steady at epoch 1"),
        ("retire", f"{PARENT} merged, its sub-topics perhaps retired"),  # with --wait it takes the longest
    ],
)
def test_an_interrupted_merge_says_what_became_of_it_and_that_the_return_was_not_begun(
    monkeypatch: pytest.MonkeyPatch, inside: str, became: str
) -> None:
    code, said = unenroll(Operations(SPLIT, interrupts=inside), monkeypatch, "--merge")
    assert code == 130
    assert said == f"kpsplit: interrupted; {became}; the return of orders was not begun"


def test_where_brokers_are_gone_an_interrupted_return_names_how_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, said = unenroll(Operations(interrupts="unenrol", gone=True), monkeypatch)
    assert (code, said) == (
        130,
        "kpsplit: interrupted; how far the return is, is not known; see: kpsplit unenroll orders --dry-run",
    )


def test_nothing_is_merged_while_something_else_forbids_the_return(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = Operations(STATE, SPLIT)
    code, said = unenroll(operations, monkeypatch, "--merge")
    assert (code, operations.done) == (3, ["unenrol orders"])
    assert STATE.message in said and "nothing was changed" in said


def test_ctrl_c_at_the_second_question_has_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        if len(questions) == 2:
            raise click.Abort
        return True

    operations = Operations(SPLIT)
    monkeypatch.setattr(calls.Call, "operations", operations.operations)
    monkeypatch.setattr(calls, "can_ask", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    done = CliRunner().invoke(cli, ["-b", "x", "unenroll", "orders"])
    assert (done.exit_code, len(questions), operations.done) == (130, 2, [])
    assert done.stderr == "kpsplit: interrupted; nothing was changed\n"
