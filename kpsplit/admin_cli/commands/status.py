"""``kpsplit status``."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from rich.console import Group, RenderableType
from rich.live import Live

from kpsplit.admin import Admin
from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.failures import line_of
from kpsplit.admin_cli.options import DURATION, TOPIC_OR_PARTITION
from kpsplit.admin_cli.render.console import stdout
from kpsplit.admin_cli.render.status import Drains, draw_statuses, statuses_json
from kpsplit.admin_cli.settings import redactor_for
from kpsplit.clock import monotonic
from kpsplit.control.status import PartitionStatus
from kpsplit.errors import KpsplitError, duration
from kpsplit.splitter.partition_state import PartitionState

Found = tuple["list[PartitionStatus]", "Drains | None"]
Look = Callable[[], Found]


@click.command("status", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="[TOPIC[/P]]", required=False)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C, also while brokers are away.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="How often --watch repeats.")
def command(call: Call, subject: tuple[str, int | None] | None, watch: bool, interval: float) -> None:
    """Show phases, ranges, log ends and writers.

    Without an argument: all enrolled topics. With a partition: its details, and what each group that has
    committed there still has to read of closed segments. That takes up to 6 s, and the right to describe
    the cluster and every group.
    """
    topic, partition = subject or (None, None)
    with call.operations() as operations:

        def look() -> Found:
            statuses = operations.status(topic, partition)
            return statuses, _drains(operations, statuses[0].state) if partition is not None else None

        if watch:
            _watch(call, look, interval)
        else:
            _show(call, *look())


def _drains(operations: Admin, state: PartitionState) -> Drains:
    """Return what groups still drain, or why that is not known. Without a closed segment nobody is asked."""
    if all(segment.is_open for segment in state.lineage):
        return []
    try:
        return operations.drains(state.parent)
    except KpsplitError as error:
        return error


def _show(call: Call, statuses: list[PartitionStatus], drains: Drains | None) -> None:

    if not statuses and not call.as_json:
        call.say("no topic is enrolled; enroll one with: kpsplit enroll TOPIC")
        return
    data = statuses_json(statuses, drains)
    call.show(data, lambda console: console.print(draw_statuses(statuses, drains)))


class StatusWatch:
    """What was found last, and since when it cannot be looked at again, if so. Rich draws it."""

    def __init__(self, call: Call, look: Look) -> None:
        self._look = look
        self._redact = redactor_for(call.given)
        self._seen = monotonic()
        self.found: Found | None = None
        self.trouble = ""

    def look(self) -> bool:
        """Look again; return whether there was an answer.

        Raises:
            KpsplitError: one that does not pass by itself.
        """
        try:
            self.found = self._look()
        except KpsplitError as error:
            if not error.retriable:
                raise
            self.trouble = self._redact(line_of(error, "status"))
            return False
        self.trouble, self._seen = "", monotonic()
        return True

    @property
    def warning(self) -> str:
        return f"{self.trouble}; nothing new for {duration(monotonic() - self._seen)}, trying again"

    def __rich__(self) -> RenderableType:

        found = () if self.found is None else (draw_statuses(*self.found),)
        # Above what may be longer than the terminal is high.
        return Group(self.warning, *found) if self.trouble else Group(*found)


def _watch(call: Call, look: Look, interval: float) -> None:

    console, watch = stdout(), StatusWatch(call, look)
    while call.as_json or not console.is_terminal:
        before = watch.trouble
        if watch.look() and watch.found is not None:
            _show(call, *watch.found)
        elif watch.trouble != before:
            call.say(watch.warning)
        time.sleep(interval)
    with Live(watch, console=console) as live:  # refreshes by itself: an error grows older
        while True:
            watch.look()
            live.refresh()
            time.sleep(interval)
