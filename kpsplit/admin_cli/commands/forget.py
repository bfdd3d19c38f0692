"""``kpsplit forget``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import NAME, TOPIC, yes_option
from kpsplit.admin_cli.render.text import one_line, place_json
from kpsplit.control.seeking import Forgettable
from kpsplit.errors import after_a_change, many


@click.command("forget", cls=VerbCommand)
@click.argument("topic", type=TOPIC, metavar="TOPIC")
@click.option("--group", type=NAME, metavar="NAME", help="The consumer group.")
@click.option("--expired", is_flag=True, help="All groups that brokers know nothing of any more.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@yes_option
def command(call: Call, topic: str, group: str | None, expired: bool, dry_run: bool, yes: bool) -> None:
    """Remove what a consumer group has committed.

    Removes all of its commits on the topic, where the group must have no members. `kpsplit retire` no longer
    waits for it. If the group comes back, it starts as a new one.

    Brokers forget a group that has had no members for offsets.retention.minutes (7 days by default); its
    range commits stay until you remove them. --expired does so for all such groups. It takes the right to
    describe the cluster and every group, so that none is taken for gone that is only hidden.
    """
    if (group is None) != expired:
        raise click.UsageError("give either --group NAME or --expired")
    with call.operations() as operations:
        if group is not None:
            found = [operations.plan_forget_group(group, topic)]
        else:
            found = operations.plan_forget_expired(topic)
        if not dry_run and found:
            for one in found:
                call.say(_told(one, "will be removed"))
            names = f"group {one_line(group)}" if group is not None else many(len(found), "group")
            call.confirm(f"Forget {names} on {topic}?", yes)
            for number, one in enumerate(found):
                with after_a_change(done=number > 0):
                    operations.forget_group(one)
    what = "would be removed" if dry_run else "are removed"
    lines = [_told(one, what) for one in found] or [f"there is nothing of an expired group on {topic}"]
    data = [_json(one, removed=not dry_run) for one in found]
    call.show(
        {"groups": data} if expired else data[0],
        lambda console: console.print("\n".join(lines), soft_wrap=True),
    )


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
        "offsets": [place_json(place) for place in found.offsets],
        "removed": removed,
    }
