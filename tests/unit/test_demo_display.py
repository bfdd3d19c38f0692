"""What the demo shows while it runs: lines in a file, tables on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from kpsplit.demo.display import Board, LiveDisplay, PlaceLine, open_display
from kpsplit.demo.endpoints import Endpoint, MemberNews, WriterNews, WriterStage

PLACES = (PlaceLine("orders/3", "parent", 7000, 120.0, hot=True), PlaceLine("split-3-1/0", "phantom", 5, 0.2))


class AsIf(Endpoint):  # type: ignore[type-arg]
    """An endpoint without a process."""

    def __init__(self, name: str, news: WriterNews | MemberNews, **state: bool) -> None:
        self.name, self.news = name, news
        self.begun, self.killed, self.suspended = True, False, False
        self.__dict__.update(state)


BOARD = Board(
    "merge",
    PLACES,
    [
        AsIf("writer-1", WriterNews(WriterStage.STOPPING, sent=2500)),
        AsIf("writer-4", WriterNews(WriterStage.STOPPING), suspended=True),
    ],
    [
        AsIf("reader-1", MemberNews(), killed=True),
        AsIf("reader-2", MemberNews(1200, 8)),
        AsIf("reader-3", MemberNews(done=True)),
        AsIf("reader-4", MemberNews(), begun=False),
    ],
)


def test_a_file_gets_a_line_with_the_busy_partitions() -> None:
    stream = io.StringIO()
    with open_display(stream) as display:
        display.show(BOARD)
        display.show(BOARD)
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("merge: 2,500 sent; records/s by partition: 3:120")


def test_a_terminal_shows_how_every_writer_and_member_stands() -> None:
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, force_terminal=True, width=120, color_system=None)) as display:
        display.show(BOARD)
    shown = [line.split()[:2] for line in stream.getvalue().splitlines()]
    for row in (["writer-1", "writing"], ["writer-4", "suspended"], ["reader-1", "killed"]):
        assert row in shown
    for row in (["reader-2", "working"], ["reader-3", "left"], ["reader-4", "joins"]):
        assert row in shown


def test_only_the_time_of_a_line_is_dim() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system="standard")
    with LiveDisplay(console) as display:
        display.say("the group drains")
    assert "s]\x1b[0m the group drains" in stream.getvalue()


def test_a_narrow_terminal_loses_the_bars_and_no_number() -> None:
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, force_terminal=True, width=60, color_system=None)) as display:
        display.show(BOARD)
    assert "120" in stream.getvalue() and "7,000" in stream.getvalue()
