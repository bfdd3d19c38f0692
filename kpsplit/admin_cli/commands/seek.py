"""``kpsplit seek``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.commands.offsets import group_option
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.operating import dry_run_option, yes_option
from kpsplit.admin_cli.param_types import KEY_RANGE, PARTITION
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition

if TYPE_CHECKING:
    from kpsplit.control.seeking import SeekTarget

    _Base = click.ParamType[Any, Any]
else:
    _Base = click.ParamType  # not generic in older versions of click


_DIGITS = len(str(MAX_OFFSET))


class TargetType(_Base):
    """``earliest``, ``latest``, a logical offset, or a time with its zone."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text that was given."""
        from kpsplit.control.seeking import SeekTarget, Whence

        if not isinstance(value, str):
            return value
        if value in (Whence.EARLIEST, Whence.LATEST):
            return SeekTarget(Whence(value))
        if value.isascii() and value.isdecimal():
            digits = value.lstrip("0") or "0"
            if len(digits) > _DIGITS or int(digits) > MAX_OFFSET:
                self.fail("the offset is over 2^63 - 1", param, ctx)
            return SeekTarget(Whence.OFFSET, int(digits))
        return SeekTarget(Whence.TIMESTAMP, self._milliseconds(value, param, ctx))

    def _milliseconds(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text[:60]!r} is not a target; write earliest, latest, a logical offset, "
                "or a time such as 2026-03-01T12:00:00Z",
                param,
                ctx,
            )
        if time.tzinfo is None:
            self.fail(f"{text[:60]!r} has no time zone; write for example {text[:60]}Z", param, ctx)
        milliseconds = round(time.timestamp() * 1000)
        if milliseconds < 0:
            self.fail("the time is before 1970", param, ctx)
        return milliseconds


@click.command("seek", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@group_option
@click.option(
    "--to",
    "target",
    type=TargetType(),
    metavar="TARGET",
    required=True,
    help="earliest, latest, a logical offset, or a time with its zone (2026-03-01T12:00:00Z).",
)
@click.option("--keys", type=KEY_RANGE, metavar="LO:HI", help="Move only this key range.")
@click.option("--new-group", is_flag=True, help="Create the group if it does not exist.")
@dry_run_option
@yes_option
@global_options
@pass_call
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
    from kpsplit.admin_cli.render.console import stderr
    from kpsplit.admin_cli.render.offsets import seek_json, show_seek, target_text
    from kpsplit.admin_cli.render.text import one_line

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
