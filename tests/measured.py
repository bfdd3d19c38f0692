"""Times that tests measure: no test asserts one, each run prints them at its end.

They travel as properties of reports: so they arrive where the summary is printed when workers run the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_PREFIX = "measured: "


def measured(title: str, case: str, seconds: float, bound: float) -> tuple[str, tuple[str, float, float]]:
    """Return a measurement as the arguments of pytest's ``record_property``."""
    return _PREFIX + title, (case, round(seconds, 2), bound)


def summary(reports: Iterable[Any]) -> list[str]:
    """Return what to print of the measurements in reports: a line for each title, then one for each case."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name.startswith(_PREFIX) and report.when == "call":
                found.setdefault(name.removeprefix(_PREFIX), []).append(tuple(value))
    lines: list[str] = []
    for title, cases in found.items():
        lines.append(f"{title}:")
        width = max(len(case) for case, _, _ in cases)
        for case, seconds, bound in cases:
            beyond = "  BEYOND ITS BOUND" if seconds > bound else ""
            lines.append(f"  {case:<{width}} {seconds:7.2f} s{beyond}")
    return lines
