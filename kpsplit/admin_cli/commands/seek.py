"""``kpsplit seek``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import (
    KEY_RANGE,
    NAME,
    PARTITION,
    Reads,
    dry_run_option,
    moment,
    yes_option,
)
from kpsplit.admin_cli.render.console import stderr
from kpsplit.admin_cli.render.status import seek_json, show_seek, target_text
from kpsplit.admin_cli.render.text import one_line
from kpsplit.control.seeking import SeekTarget, Whence
from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition

_DIGITS = len(str(MAX_OFFSET))


def _target(text: str) -> SeekTarget:

    if text in (Whence.EARLIEST, Whence.LATEST):
        return SeekTarget(Whence(text))
    if text.isascii() and text.isdecimal():
        digits = text.lstrip("0") or "0"
        if len(digits) > _DIGITS or int(digits) > MAX_OFFSET:
            raise UsageError("the offset is over 2^63 - 1")
        return SeekTarget(Whence.OFFSET, int(digits))
    at = moment(text)
    if at is None:
        raise UsageError(
            f"{text[:60]!r} is not a target",
            hint="write earliest, latest, a logical offset, or a time such as 2026-03-01T12:00:00Z",
        )
    if at < 0:
        raise UsageError("the time is before 1970")
    return SeekTarget(Whence.TIMESTAMP, at)


TARGET = Reads("target", _target)


@click.command("seek", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option("--group", type=NAME, metavar="NAME", required=True, help="The consumer group.")
@click.option(
    "--to",
    "target",
    type=TARGET,
    metavar="TARGET",
    required=True,
    help="earliest, latest, a logical offset, or a time with its zone (2026-03-01T12:00:00Z).",
)
@click.option("--keys", type=KEY_RANGE, metavar="LO:HI", help="Move only this key range.")
@click.option("--new-group", is_flag=True, help="Create the group if it does not exist.")
@dry_run_option
@yes_option
def command(
    call: Call,
    partition: PhysicalPartition,
    group: str,
    target: SeekTarget,
    keys: KeyRange | None,
    new_group: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a consumer group, or one of its key ranges.

    The group must exist and have no members on the topic. Records that are skipped count as read, so
    `kpsplit retire` may delete them.
    """
    with call.operations() as operations:
        seek = operations.plan_seek(group, partition, keys or WHOLE, target, new_group=new_group)
        if dry_run:
            call.show(seek_json(seek, written=False), lambda console: show_seek(seek, console))
            call.say("dry run: nothing was changed")
            return
        show_seek(seek, stderr())
        call.confirm(f"Move group {one_line(group)} of {partition} now?", yes)
        operations.seek(seek)
    where = f"{seek.cursor.range} of {partition}"
    text = f"group {one_line(group)} is moved to {target_text(target)} in {where}"
    call.show(seek_json(seek, written=True), lambda console: console.print(text))
