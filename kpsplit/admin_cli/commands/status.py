"""``kpsplit status``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, VerbCommand, check_partition, print_json
from kpsplit.admin_cli.param_types import DURATION, TOPIC_OR_PARTITION
from kpsplit.splitter.lineage import PhysicalPartition

if TYPE_CHECKING:
    from kpsplit.control.status import PartitionStatus

Look = Callable[[], "list[PartitionStatus]"]


@click.command("status", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="[TOPIC[/P]]", required=False)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="How often --watch repeats.")
def command(call: Call, subject: tuple[str, int | None] | None, watch: bool, interval: float) -> None:
    """Show phases, ranges, log ends and writers.

    Without an argument: all enrolled topics. With a partition: its details.
    """
    topic, partition = subject or (None, None)
    details = partition is not None
    with call.operations() as operations:

        def look() -> list[PartitionStatus]:
            return operations.status(topic, partition)

        statuses = look()
        if topic is not None and not statuses:
            check_partition(call.connection, PhysicalPartition(topic, partition or 0))
            raise operations.view().not_enrolled(topic)
        if watch:
            _watch(call, look, details, interval)
        else:
            _show(call, statuses, details)


def _show(call: Call, statuses: list[PartitionStatus], details: bool) -> None:
    from kpsplit.admin_cli.render.status import show_statuses, statuses_json

    if not statuses and not call.as_json:
        call.say("no topic is enrolled; enroll one with: kpsplit enroll TOPIC")
        return
    call.show(statuses_json(statuses), lambda console: show_statuses(statuses, details, console))


def _watch(call: Call, look: Look, details: bool, interval: float) -> None:
    from rich.live import Live

    from kpsplit.admin_cli.render.console import stdout
    from kpsplit.admin_cli.render.status import draw_statuses, statuses_json

    console = stdout()
    if call.as_json or not console.is_terminal:
        while True:
            if call.as_json:
                print_json(statuses_json(look()))
            else:
                _show(call, look(), details)
            time.sleep(interval)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            live.update(draw_statuses(look(), details), refresh=True)
            time.sleep(interval)
