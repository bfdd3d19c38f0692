"""Shows what happens, on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.driver import StepDone

LINE_SECONDS = 5.0
_BAR_WIDTH = 24
_STEP_TEXTS = {
    "CreateSubTopic": "sub-topic created",
    "CoLocateLeaders": "leaders moved together",
    "AwaitReady": "producers answered",
    "Fence": "FENCE: producers hold their records",
    "AwaitAcknowledged": "fence acknowledged",
    "AppendMarkers": "CUT",
    "Commit": "COMMIT: the new layout is in force",
    "SealSubTopics": "emptied sub-topics sealed",
    "Abort": "ROLLED BACK",
    "Keep": "kept",
}


@dataclass(frozen=True, slots=True)
class PlaceLine:
    """One physical partition on the board: its name, what it is now, its log end, records per second."""

    name: str
    role: str
    end: int
    rate: float
    hot: bool = False


@dataclass(frozen=True, slots=True)
class WriterLine:
    """One writer on the board."""

    name: str
    stage: str
    sent: int
    reported: int
    waiting: int
    strays: int


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member of the group on the board."""

    name: str
    stage: str
    worked_on: int
    slots: int


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that the live table shows."""

    phase: str
    places: tuple[PlaceLine, ...]
    writers: tuple[WriterLine, ...]
    members: tuple[MemberLine, ...] = ()


class Display(Protocol):
    """Where the demo shows what it does. ``show`` is called from another thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Show a line about what happens."""
        ...

    def show(self, board: Board) -> None:
        """Show how things stand."""
        ...


def open_display(stream: TextIO | None = None) -> Display:
    """Return the display that suits the stream (stderr when not given)."""
    console = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(stream or sys.stderr)


def show_step(display: Display, step: StepDone) -> None:
    """Show a step of an operation, if it is one worth showing."""
    text = _STEP_TEXTS.get(step.name)
    if text is not None:
        detail = f"  ({step.detail})" if step.detail else ""
        display.say(f"    {text:<38}{step.seconds * 1000:7.0f} ms{detail}")


class PlainDisplay:
    """Lines with the seconds since the start."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = monotonic()
        self._next = 0.0

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def say(self, text: str) -> None:
        """Write a line."""
        self._stream.write(f"[{monotonic() - self._began:6.1f} s] {text}\n")
        self._stream.flush()

    def show(self, board: Board) -> None:
        """Write a line every few seconds."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        sent = sum(w.sent for w in board.writers)
        busy = "  ".join(f"{_last(p.name)}:{p.rate:.0f}" for p in board.places if p.rate >= 1)
        self.say(f"  {board.phase}: {sent:,} sent; records/s by partition: {busy or 'none'}")


def _last(name: str) -> str:
    """Return the short form of a partition's name: its number, or a phantom's name."""
    return name if name.startswith("split-") else name.rpartition("/")[2]


class LiveDisplay:
    """A table that is drawn anew in place, with what happens above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(f"[{monotonic() - self._began:6.1f} s] ", style="dim") + Text(text))

    def show(self, board: Board) -> None:
        """Draw the table anew."""
        title = Text(board.phase, style="bold")
        people = writers_table(board.writers), members_table(board.members)
        self._live.update(Group(title, places_table(board.places), *people))


def places_table(places: tuple[PlaceLine, ...]) -> Table:
    """Return the table of physical partitions."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("partition", "now", "records/s", ""):
        table.add_column(name, justify="right" if name == "records/s" else "left", no_wrap=True)
    table.add_column("log end", justify="right")
    most = max((p.rate for p in places), default=0.0)
    for place in places:
        bar = "█" * round(place.rate / most * _BAR_WIDTH) if most >= 1 else ""
        style = "red" if place.hot else "cyan"
        table.add_row(
            Text(place.name, style="bold" if place.hot else ""),
            Text(place.role, style="dim"),
            f"{place.rate:,.0f}",
            Text(f"{bar:<{_BAR_WIDTH}}", style=style),
            f"{place.end:,}",
        )
    return table


def writers_table(writers: tuple[WriterLine, ...]) -> Table:
    """Return the table of writers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("writer", "stage"):
        table.add_column(name, no_wrap=True)
    for name in ("sent", "reported", "waiting", "strays"):
        table.add_column(name, justify="right")
    for w in writers:
        alarming = "yellow" if w.stage == "suspended" else ""
        numbers = (f"{n:,}" for n in (w.sent, w.reported, w.waiting, w.strays))
        table.add_row(w.name, Text(w.stage, style=alarming), *numbers)
    return table


def members_table(members: tuple[MemberLine, ...]) -> Table:
    """Return the table of the group's members."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("group member", "stage"):
        table.add_column(name, no_wrap=True)
    for name in ("worked on", "slots"):
        table.add_column(name, justify="right")
    for m in members:
        alarming = "" if m.stage == "working" else "yellow"
        table.add_row(m.name, Text(m.stage, style=alarming), f"{m.worked_on:,}", f"{m.slots}")
    return table
