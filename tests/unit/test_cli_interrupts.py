"""Ctrl-C: the first one counts, wherever it strikes; later ones do not disturb the roll-back."""

from __future__ import annotations

import os
import signal

import pytest

from kpsplit.admin_cli.failures import Interrupts, is_interrupt, raise_if_lost


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
