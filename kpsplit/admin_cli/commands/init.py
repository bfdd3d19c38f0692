"""``kpsplit init``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.control.own_topics import AGAIN
from kpsplit.errors import after_a_change


@click.command("init", cls=VerbCommand)
@click.option(
    "--lease-ms",
    type=click.IntRange(100, 600_000),
    metavar="MS",
    help="How long a producer's view of the layout stays valid.  [default: 5000, or the present value]",
)
def command(call: Call, lease_ms: int | None) -> None:
    """Create kpsplit's own topics.

    Existing topics are checked; a topic with wrong settings is refused by name.
    """
    call.begin()
    with call.operations() as operations:
        created = operations.initialise(lease_ms)
        # Where all topics were there it may have set the lease all the same.
        with after_a_change(AGAIN, done=bool(created) or None):
            lease = operations.view().settings.lease_ms
    call.show(
        {"created": created, "lease_ms": lease},
        lambda console: console.print(_text(created, lease_ms, lease)),
    )


def _text(created: list[str], wanted: int | None, lease: int) -> str:
    what = f"created {', '.join(created)}" if created else "all topics exist already"
    return f"{what}\nlease: {lease} ms{'' if wanted is None or created else ', set now'}"
