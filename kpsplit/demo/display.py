"""Shows what happens, on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import IO, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kpsplit.clock import monotonic
from kpsplit.demo.endpoints import Endpoint, MemberNews, WriterNews, WriterStage
from kpsplit.splitter.driver import StepDone

LINE_SECONDS = 5.0
_BAR_WIDTH = 24
_NUMBERS_WIDTH = 30
"""Of the two columns of numbers, with what is between all columns."""
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
class Board:
    """Everything that the live tables show."""

    phase: str
    places: tuple[PlaceLine, ...]
    writers: Sequence[Endpoint[WriterNews]]
    members: Sequence[Endpoint[MemberNews]]


class Display:
    """Where the demo shows what it does: lines with the seconds since the start. A context manager."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._began = monotonic()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, text: str) -> None:
        self._stream.write(f"{self._clock()} {text}\n")
        self._stream.flush()

    def show(self, board: Board) -> None:
        """Show how things stand, here every few seconds; another thread calls this."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        sent = sum(w.news.sent for w in board.writers)
        busy = "  ".join(f"{_last(p.name)}:{p.rate:.0f}" for p in board.places if p.rate >= 1)
        self.say(f"  {board.phase}: {sent:,} sent; records/s by partition: {busy or 'none'}")

    def _clock(self) -> str:
        return f"[{monotonic() - self._began:6.1f} s]"


def _last(name: str) -> str:
    """Return the short form of a partition's name: its number, or a phantom's name."""
    return name if name.startswith("split-") else name.rpartition("/")[2]


class LiveDisplay(Display):
    """Tables that are drawn anew in place, with what happens above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.file)
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text.assemble((self._clock(), "dim"), f" {text}"))

    def show(self, board: Board) -> None:
        title = Text(board.phase, style="bold")
        self._live.update(
            Group(
                title,
                _places(board.places, self._console.width),
                _writers(board.writers),
                _members(board.members),
            )
        )


def open_display(stream: TextIO | None = None) -> Display:
    """Return the display that suits the stream (stderr when not given)."""
    console = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
    return LiveDisplay(console) if console.is_terminal else Display(stream or sys.stderr)


def show_step(display: Display, step: StepDone) -> None:
    text = _STEP_TEXTS.get(step.name)
    if text is not None:
        detail = f"  ({step.detail})" if step.detail else ""
        display.say(f"    {text:<38}{step.seconds * 1000:7.0f} ms{detail}")


def _table(*columns: str, texts: Collection[str]) -> Table:
    """Return an empty table; ``texts``: the columns that are no numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", no_wrap=True)
    return table


def _places(places: tuple[PlaceLine, ...], width: int) -> Table:
    """Return the table of partitions; the bars take what the other columns leave of the ``width``."""
    table = _table("partition", "now", "records/s", "log end", "", texts=("partition", "now", ""))
    most = max((p.rate for p in places), default=0.0)
    names = max((len(p.name) for p in places), default=0) + max((len(p.role) for p in places), default=0)
    taken = names + _NUMBERS_WIDTH
    longest = max(0, min(_BAR_WIDTH, width - taken))
    for place in places:
        bar = "█" * round(place.rate / most * longest) if most >= 1 else ""
        table.add_row(
            Text(place.name, style="bold" if place.hot else ""),
            Text(place.role, style="dim"),
            f"{place.rate:,.0f}",
            f"{place.end:,}",
            Text(f"{bar:<{longest}}", style="red" if place.hot else "cyan"),
        )
    return table


def _writers(writers: Sequence[Endpoint[WriterNews]]) -> Table:
    table = _table("writer", "stage", "sent", "reported", "waiting", "strays", texts=("writer", "stage"))
    for writer in writers:
        news = writer.news
        stage = WriterStage.WRITING if news.stage is WriterStage.STOPPING else news.stage
        shown = Text("suspended", style="yellow") if writer.suspended else Text(stage)
        numbers = (f"{n:,}" for n in (news.sent, news.ok + news.failed, news.waiting, news.strays))
        table.add_row(writer.name, shown, *numbers)
    return table


def _members(members: Sequence[Endpoint[MemberNews]]) -> Table:
    table = _table("group member", "stage", "worked on", "slots", texts=("group member", "stage"))
    for member in members:
        stage = _stage_of(member)
        shown = Text(stage, style="yellow" if stage in ("killed", "suspended") else "")
        table.add_row(member.name, shown, f"{member.news.worked_on:,}", f"{member.news.slots}")
    return table


def _stage_of(member: Endpoint[MemberNews]) -> str:
    if member.killed or member.suspended:
        return "killed" if member.killed else "suspended"
    if member.news.done:
        return "left"
    return "working" if member.begun else "joins later"
