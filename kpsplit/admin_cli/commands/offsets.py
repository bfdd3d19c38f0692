"""``kpsplit offsets``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import NAME, TOPIC_OR_PARTITION
from kpsplit.admin_cli.render.status import draw_groups, progress_json, show_progress


@click.command("offsets", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="TOPIC[/P]")
@click.option(
    "--group", type=NAME, metavar="NAME", help="The consumer group; without it a line for each group."
)
def command(call: Call, subject: tuple[str, int | None], group: str | None) -> None:
    """Show how far consumer groups have come.

    With --group: for each key range its owner (client id, start of the member id, host), its position in
    every segment that it still has to read (offset and logical offset), and its lag. The lag counts all
    offsets of a segment, also those of other ranges and of markers. A segment that "drains" is closed: the
    segments after it wait until this range has read it.
    While the group is in rebalance, a range without an owner waits for its end.

    Without --group: a line for each group that has commits or members in the topic. That takes the right to
    describe the cluster and every group.
    """
    topic, partition = subject
    with call.operations() as operations:
        if group is not None:
            found = operations.offsets(group, topic, partition)
            call.show(progress_json(group, found), lambda console: show_progress(found, console))
            return
        groups = operations.offsets_of_groups(topic, partition)
    data = {"groups": [progress_json(name, progress) for name, progress in groups.items()]}
    nobody = f"no group has commits or members in {topic}"
    call.show(data, lambda console: console.print(draw_groups(groups) if groups else nobody))
