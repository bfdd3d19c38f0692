"""``kpsplit forget``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import group_option, yes_option
from kpsplit.admin_cli.param_types import TOPIC
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import many

if TYPE_CHECKING:
    from kpsplit.control.seeking import Forgettable


@click.command("forget", cls=VerbCommand)
@click.argument("topic", type=TOPIC, metavar="TOPIC")
@group_option
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@yes_option
def command(call: Call, topic: str, group: str, dry_run: bool, yes: bool) -> None:
    """Remove what a consumer group has committed.

    Removes all of its commits on the topic, where the group must have no members. `kpsplit retire` no longer
    waits for it. If the group comes back, it starts as a new one.
    """
    with call.operations() as operations:
        found = operations.plan_forget_group(group, topic)
        if not dry_run:
            call.say(_told(found, "will be removed"))
            call.confirm(f"Forget group {one_line(group)} on {topic}?", yes)
            operations.forget_group(found)
    text = _told(found, "would be removed" if dry_run else "are removed")
    call.show(_json(found, removed=not dry_run), lambda console: console.print(text, soft_wrap=True))


def _told(found: Forgettable, what: str) -> str:
    return (
        f"group {one_line(found.group)} on {found.topic}: {many(len(found.commits), 'range commit')} and "
        f"{many(len(found.offsets), 'ordinary offset')} {what}"
    )


def _json(found: Forgettable, *, removed: bool) -> dict[str, object]:
    return {
        "group": found.group,
        "topic": found.topic,
        "range_commits": [
            {"partition": key.parent.partition, "range": [key.range.lo, key.range.hi]}
            for key in found.commits
        ],
        "offsets": [{"topic": place.topic, "partition": place.partition} for place in found.offsets],
        "removed": removed,
    }
