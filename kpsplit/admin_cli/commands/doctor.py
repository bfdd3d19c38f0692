"""``kpsplit doctor``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.errors import CheckFailedError


@click.command("doctor", cls=VerbCommand)
@global_options
@pass_call
def command(call: Call) -> None:
    """Check the cluster and everything that kpsplit owns.

    Exits with 3 if a check fails.
    """
    from kpsplit.admin_cli.render.plan import show_checks

    with call.operations() as operations:
        checks = operations.doctor()
    data = {
        "checks": [{"name": c.name, "ok": c.ok, "message": c.message, "remedy": c.remedy} for c in checks]
    }
    call.show(data, lambda console: show_checks(checks, console))
    failed = [c for c in checks if not c.ok]
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(checks)} checks failed", hint=failed[0].remedy or None)
