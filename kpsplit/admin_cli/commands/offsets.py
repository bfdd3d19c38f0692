"""``kpsplit offsets``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import group_option
from kpsplit.admin_cli.param_types import TOPIC_OR_PARTITION


@click.command("offsets", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="TOPIC[/P]")
@group_option
def command(call: Call, subject: tuple[str, int | None], group: str) -> None:
    """Show how far a consumer group has come.

    For each key range: its owner (client id, start of the member id, host), its position in every segment
    that it still has to read (offset and logical offset), and its lag. The lag counts all offsets of a
    segment, also those of other ranges and of markers. A segment that "drains" is closed: the segments after
    it wait until this range has read it.
    """
    from kpsplit.admin_cli.render.offsets import progress_json, show_progress

    topic, partition = subject
    with call.operations() as operations:
        found = operations.offsets(group, topic, partition)
    call.show(progress_json(group, found), lambda console: show_progress(found, console))
