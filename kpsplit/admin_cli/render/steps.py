"""Progress of an operation on stderr: each step with its time as it ends, what is awaited while it runs."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from kpsplit.admin_cli.interrupts import raise_if_lost
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import duration
from kpsplit.splitter.driver import StepDone

_DONE = {
    "Claim": "operation claimed",
    "Prepare": "intent recorded",
    "CreateSubTopic": "sub-topic created",
    "CoLocateLeaders": "leaders moved to one broker",
    "AwaitReady": "producers answered",
    "Fence": "fence on: producers hold",
    "AwaitAcknowledged": "fence acknowledged",
    "AppendMarkers": "cut",
    "Commit": "committed: new layout in force",
    "SealSubTopics": "emptied sub-topics sealed",
    "Finish": "finished",
    "Abort": "rolled back: old layout stays",
    "Leaders": "leaders checked",
    "Enrol": "enrolment recorded",
    "Slots": "slots created",
    "Settle": "enrolment known to every client",
    "Settled": "enrolment in force",
    "Withdraw": "old commits withdrawn",
    "Missing": "already gone",
    "Retire": "sub-topic retired",
    "Delete": "sub-topic deleted",
    "Freeze": "frozen",
    "Thaw": "thawed",
    "LeftOver": "left over",
    "Keep": "kept",
    "Forced": "deleted, not drained",
    "Snapshot": "kpsplit's own topics read",
    "Spark": "Spark started",
    "Records": "records read",
    "Numbers": "sequence numbers checked",
    "Checks": "checks done",
    "Sizing": "boundaries found",
}
_NEXT = {
    "Claim": "recording the intent",
    "Prepare": "preparing: writers keep running",
    "CreateSubTopic": "waiting for the producers' answers",
    "CoLocateLeaders": "waiting for the producers' answers",
    "AwaitReady": "raising the fence",
    "Fence": "waiting for the producers to hold",
    "AwaitAcknowledged": "cutting",
    "AppendMarkers": "committing",
    "Commit": "finishing",
    "SealSubTopics": "finishing",
    "Snapshot": "starting Spark",
    "Spark": "reading the records: this takes the longest",
    "Records": "checking the sequence numbers",
    "Numbers": "checking order, certificates and range commits",
}
_LABEL_WIDTH = 32
_TIME_WIDTH = 9
_WARNINGS = {"Abort", "LeftOver", "Freeze", "Keep", "Forced"}
"""These are shown whole. Others are cut at the end of a terminal's line, and never in a file."""


class StepProgress:
    """The driver's observer. On a terminal it also shows what is being waited for; a context manager."""

    def __init__(self, console: Console, first: str = "claiming the operation") -> None:
        self._console = console
        self._status: Status | None = None
        self._first = first
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to show what is awaited."""
        if self._console.is_terminal:
            self._status = self._console.status(self._first, spinner="dots")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing it."""
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def __call__(self, step: StepDone) -> None:
        """Print one finished step. A terminal that is gone must not stop the operation half-way."""
        with suppress(OSError):
            if self._console.is_terminal and step.name not in _WARNINGS:
                self._console.print(step_line(step), overflow="ellipsis", no_wrap=True)
            else:
                self._console.print(step_line(step), soft_wrap=True)
            if self._status is not None:
                self._status.update(_NEXT.get(step.name, "working"))
        raise_if_lost(step.name)

    def passed(self, name: str, detail: str = "") -> None:
        """Print a step that ends now and began where the one before ended."""
        began, self._since = self._since, time.monotonic()
        self(StepDone(name, self._since - began, detail))


def step_line(step: StepDone) -> Text:
    """Return the line of a finished step."""
    warning = step.name in _WARNINGS
    line = Text("! " if warning else "✓ ", style="yellow" if warning else "green")
    label = _DONE.get(step.name, one_line(step.name))
    line.append(f"{label:<{_LABEL_WIDTH}}", style="default")
    line.append(f"{duration(step.seconds):>{_TIME_WIDTH}}", style="cyan")
    if step.detail:
        line.append(f"  {one_line(step.detail)}", style="dim")
    return line
