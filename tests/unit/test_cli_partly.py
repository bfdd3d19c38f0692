"""What a verb says was changed when it ends in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.admin_cli.call import Call
from kpsplit.admin_cli.commands import abort, forget, init, retire
from kpsplit.admin_cli.main import PROGRAM, cli, run
from kpsplit.control.doctor import SetAside
from kpsplit.control.seeking import Forgettable
from kpsplit.errors import EXIT_CONFLICT, ConflictError, KpsplitError, UnreachableError
from kpsplit.splitter.driver import StepDone
from tests.unit.samples import life


def give(monkeypatch: pytest.MonkeyPatch, operations: Any) -> None:
    @contextmanager
    def opened(_: Call) -> Iterator[Any]:
        yield operations

    monkeypatch.setattr(Call, "operations", opened)


def error_of(monkeypatch: pytest.MonkeyPatch, operations: Any, command: Any, *arguments: str) -> KpsplitError:
    give(monkeypatch, operations)
    root = cli.make_context(PROGRAM, [], resilient_parsing=True)
    asks = any(option.name == "yes" for option in command.params)
    context = command.make_context("verb", [*arguments, *(["--yes"] if asks else [])], parent=root)
    with pytest.raises(KpsplitError) as raised, context:
        command.invoke(context)
    return raised.value


@pytest.mark.parametrize("done", [0, 1])
def test_groups_that_are_forgotten_stay_so_when_the_next_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    left = [Forgettable(name, "orders", (), ()) for name in ("first", "second")]

    def forget_group(one: Forgettable) -> None:
        if one is left[done]:
            raise ConflictError(f"group {one.group} has committed meanwhile on orders", hint="retry")

    operations = SimpleNamespace(plan_forget_expired=lambda _: left, forget_group=forget_group)
    error = error_of(monkeypatch, operations, forget.command, "orders", "--expired")
    assert (error.changed, error.hint) == (bool(done), "retry")


@pytest.mark.parametrize("recorded", [False, True])
def test_a_sub_topic_that_is_recorded_as_retired_and_not_deleted_is_a_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: bool
) -> None:
    def retires(*_: Any, observer: Any, **__: Any) -> list[str]:
        if recorded:
            observer(StepDone("Retire", 0.0, "orders.split-3-1"))
        observer(StepDone("Keep", 0.0, "orders.split-3-1: it holds records"))
        return []

    error = error_of(monkeypatch, SimpleNamespace(retire=retires), retire.command, "orders/3")
    assert error.changed is recorded
    assert capsys.readouterr().out == "orders/3: nothing was deleted\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [(False, "nothing was changed"), (True, "something was changed"), (None, "not known")],
)
def test_a_verb_that_changes_something_only_with_an_option_says_what_it_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed: bool | None, said: str
) -> None:
    def forget_records(_: object) -> None:
        raise ConflictError("it is not what it was", hint="run: kpsplit doctor", changed=changed)

    record = SetAside("garbage", "kpsplit.offsets", "not written by kpsplit", 0, b"key")
    there = SimpleNamespace(set_aside=[record])
    give(monkeypatch, SimpleNamespace(findings=lambda: there, forget_records=forget_records))
    assert run(cli, ["doctor", "--forget", record.name, "--yes"]) == EXIT_CONFLICT
    assert said in capsys.readouterr().err.splitlines()[-1]


def unreachable() -> None:
    raise UnreachableError("could not read the control topic: the brokers cannot be reached")


@pytest.mark.parametrize(("outcome", "changed"), [(life().split.last, True), (None, False)])
def test_an_abort_is_a_change_though_how_the_partition_stands_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, outcome: Any, changed: bool
) -> None:
    operations = SimpleNamespace(abort=lambda *_: outcome, view=unreachable)
    error = error_of(monkeypatch, operations, abort.command, "orders/3")
    assert error.changed is changed
    assert error.hint == ("look at: kpsplit status orders/3" if changed else None)


@pytest.mark.parametrize(("created", "changed"), [(["__kpsplit.control"], True), ([], None)])
def test_topics_that_were_created_are_a_change_though_the_lease_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, created: list[str], changed: bool | None
) -> None:
    operations = SimpleNamespace(initialise=lambda _: created, view=unreachable)
    assert error_of(monkeypatch, operations, init.command).changed is changed
