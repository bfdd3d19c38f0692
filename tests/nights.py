"""Which values of a long parametrised test run always, and which at night only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def others_at_night(values: Iterable[T], always: Callable[[T], bool]) -> list[Any]:
    """Return values as parameters of a test; those that are not ``always`` run in ``make nightly`` only.

    Raises:
        ValueError: none of them would run.
    """
    known = list(values)
    if not any(map(always, known)):
        raise ValueError("no value of this test would run in every run")
    return [pytest.param(v, marks=() if always(v) else pytest.mark.nightly) for v in known]


def protocols(always: str) -> list[Any]:
    """Return Kafka's two protocols of groups as parameters of a test; every run has the one that is named."""
    return others_at_night(("classic", "consumer"), lambda protocol: protocol == always)
