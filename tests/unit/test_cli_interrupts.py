"""Ctrl-C: the first one counts, wherever it strikes; later ones do not disturb the roll-back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.admin_cli.failures import Interrupted, Interrupts, is_interrupt, raise_if_lost
from kpsplit.admin_cli.operating import explained_interrupt, standing
from kpsplit.control.session import operator_name
from kpsplit.errors import ConflictError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    EndedBy,
    Finish,
    Freeze,
    PartitionState,
    Phase,
    Prepare,
    Thaw,
)
from tests.unit.samples import PARENT, UNSPLIT, committed, fenced, split_attempt


def test_the_first_signal_interrupts_and_the_second_one_does_not(capsys) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert "interrupted already, still ending: wait" in capsys.readouterr().err
        assert not interrupts.terminated
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_what_was_ignored_at_the_start_stays_ignored(number) -> None:
    """``nohup kpsplit verify …`` goes on when its terminal is closed."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    except KeyboardInterrupt:
        pytest.fail("it ended the verb")
    finally:
        signal.signal(number, before)


def test_sigterm_is_told_apart() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.terminated


def test_an_interruption_that_was_lost_in_a_library_strikes_at_the_next_step() -> None:
    raise_if_lost("AwaitReady")
    with Interrupts() as interrupts:
        interrupts.count = 1
        for step in ("Claim", "Abort", "LeftOver", "Commit", "Finish"):
            raise_if_lost(step)
        with pytest.raises(KeyboardInterrupt):
            raise_if_lost("AwaitReady")
    raise_if_lost("AwaitReady")


def test_a_system_error_made_of_an_interruption_is_one() -> None:
    made = SystemError("returned a result with an exception set")
    assert not is_interrupt(made)
    made.__cause__ = KeyboardInterrupt()
    assert is_interrupt(made)
    assert is_interrupt(KeyboardInterrupt())
    assert not is_interrupt(ValueError())


MINE = replace(split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2), "mine"), operator=operator_name())
THEIRS = replace(MINE, id="theirs")
"""Of another process of the same name: in two containers both can be ``root@operator pid 1``."""


def rolled_back(state: PartitionState, ended_by: EndedBy = EndedBy.OPERATOR) -> PartitionState:
    assert state.attempt is not None
    return apply(state, Abort(state.attempt.id, ended_by, "interrupted"))


def test_an_interruption_says_what_became_of_the_operation() -> None:
    cut, forward = fenced(UNSPLIT, MINE), committed(UNSPLIT, MINE, {0: 10})
    assert standing(UNSPLIT, UNSPLIT, "mine").startswith("nothing was changed")
    assert standing(UNSPLIT, rolled_back(cut), "mine").startswith("the operation was rolled back")
    assert "roll it back with: kpsplit abort orders/3" in standing(UNSPLIT, cut, "mine")
    took_effect = "the operation took effect, orders/3 is at epoch 1"
    assert standing(UNSPLIT, forward, "mine") == f"{took_effect}; finish with: kpsplit resume orders/3"
    assert standing(UNSPLIT, apply(forward, Finish("mine")), "mine") == took_effect


class Waiting:
    """An Admin, and the call that opens it, whose run is interrupted when the partition is as it is then."""

    def __init__(self, begun: str | None, before: PartitionState = UNSPLIT) -> None:
        self.state, self._begun, self.aborted = before, begun, list[str]()
        self.refuses: Callable[[], None] = lambda: None

    @contextmanager
    def operations(self) -> Iterator[Waiting]:
        yield self

    def view(self) -> Any:
        return SimpleNamespace(state=lambda _: self.state)

    def begun(self, _parent: object) -> str | None:
        return self._begun

    def abort(self, _parent: object, reason: str) -> None:
        assert self.state.attempt is not None
        self.aborted.append(self.state.attempt.id)
        self.refuses()
        self.state = rolled_back(self.state, EndedBy.REQUEST)

    def interrupted_at(self, state: PartitionState, *, resumes: bool = False) -> str:
        with pytest.raises(Interrupted) as caught:
            with explained_interrupt(cast(Any, self), cast(Any, self), PARENT, resumes=resumes):
                self.state = state
                raise KeyboardInterrupt
        return caught.value.outcome


@pytest.mark.parametrize(
    "state",
    [
        apply(UNSPLIT, Prepare(THEIRS)),
        fenced(UNSPLIT, THEIRS),
        rolled_back(fenced(UNSPLIT, THEIRS)),
        committed(UNSPLIT, THEIRS, {0: 10}),
        apply(committed(UNSPLIT, THEIRS, {0: 10}), Finish("theirs")),
    ],
    ids=["preparing", "fenced", "rolled back", "committed", "finished"],
)
def test_who_is_interrupted_while_it_waits_for_its_turn_has_changed_nothing(state: PartitionState) -> None:
    waiting = Waiting(None)
    said = waiting.interrupted_at(state)
    assert said == f"nothing was changed, orders/3 is {state.phase} at epoch {state.epoch}"
    assert waiting.state == state and waiting.aborted == [], "another operator is at work"


def test_an_attempt_of_its_own_is_rolled_back_by_who_is_interrupted() -> None:
    waiting = Waiting("mine")
    assert waiting.interrupted_at(fenced(UNSPLIT, MINE)).startswith("the operation was rolled back")
    assert waiting.aborted == ["mine"]


def test_an_attempt_that_cannot_be_rolled_back_any_more_is_looked_at_again() -> None:
    waiting = Waiting("mine")

    def committed_meanwhile() -> None:
        waiting.state = committed(UNSPLIT, MINE, {0: 10})
        raise ConflictError("it can only go forward")

    waiting.refuses = committed_meanwhile
    assert waiting.interrupted_at(fenced(UNSPLIT, MINE)).startswith("the operation took effect")


def test_what_others_have_ended_since_hides_what_became_of_an_attempt_that_was_begun() -> None:
    for state in (rolled_back(fenced(UNSPLIT, THEIRS)), committed(UNSPLIT, THEIRS, {0: 10})):
        assert "outcome of the operation is unknown" in Waiting("mine").interrupted_at(state)


def test_an_interrupted_resume_says_what_became_of_what_it_found() -> None:
    left = fenced(UNSPLIT, THEIRS)
    done = Waiting(None, left).interrupted_at(rolled_back(left, EndedBy.TAKEOVER), resumes=True)
    assert done == "the operation was rolled back, orders/3 is steady at epoch 0"
    done = Waiting(None, left).interrupted_at(left, resumes=True)
    assert done == "nothing was changed, orders/3 is fenced at epoch 0"
    left = committed(UNSPLIT, THEIRS, {0: 10})
    done = Waiting(None, left).interrupted_at(apply(left, Finish("theirs")), resumes=True)
    assert done == "the operation took effect, orders/3 is at epoch 1"


def test_an_interrupted_thaw_says_whether_it_thawed() -> None:
    frozen = apply(UNSPLIT, Freeze("the log was cut off"))
    done = Waiting(None, frozen).interrupted_at(apply(frozen, Thaw()), resumes=True)
    assert done == "the partition was thawed, orders/3 is steady at epoch 0"
    assert Waiting(None).interrupted_at(frozen) == "the partition was frozen, orders/3 is frozen at epoch 0"
    assert frozen.phase is Phase.FROZEN
