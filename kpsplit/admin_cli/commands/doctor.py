"""``kpsplit doctor``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import PRINTABLE, yes_option
from kpsplit.admin_cli.render.plan import show_checks
from kpsplit.admin_cli.render.text import one_line
from kpsplit.compiled import in_use
from kpsplit.control.doctor import diagnose
from kpsplit.control.plans import Check
from kpsplit.errors import CheckFailedError, UsageError, many


@click.command("doctor", cls=VerbCommand)
@click.option(
    "--forget",
    "names",
    type=PRINTABLE,
    metavar="NAME",
    multiple=True,
    help="Check nothing; remove this record, as named by `kpsplit doctor`. May be repeated.",
)
@yes_option
def command(call: Call, names: tuple[str, ...], yes: bool) -> None:
    """Check the cluster and everything that kpsplit owns.

    Exits with 3 if a check fails. --forget removes from kpsplit's own topics a record that no kpsplit client
    has written, or whose producer has stopped for good.
    """
    if names:
        _forget(call, names, yes)
        return
    with call.operations() as operations:
        found = operations.findings()
    installed = Check("installation", True, f"producing and reading are {in_use()} here")
    checks = [installed, *diagnose(found)]
    data = {
        "checks": [{"name": c.name, "ok": c.ok, "message": c.message, "remedy": c.remedy} for c in checks],
        "set_aside": [{"name": r.name, "check": r.check, "why": r.why} for r in found.set_aside],
    }
    call.show(data, lambda console: show_checks(checks, console))
    failed = [c for c in checks if not c.ok]
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(checks)} checks failed", hint=failed[0].remedy or None)


def _forget(call: Call, names: tuple[str, ...], yes: bool) -> None:
    with call.operations() as operations:
        there = operations.findings().set_aside
        records = [record for record in there if record.name in names]
        unknown = sorted(set(names) - {record.name for record in records})
        if unknown:
            raise UsageError(
                f"kpsplit doctor names no record {one_line(unknown[0])}; nothing was removed",
                hint="run: kpsplit doctor",
            )
        for record in records:
            call.say(one_line(f"{record.name}: {record.why}"))
        count = len(set(names))
        call.confirm(
            f"Remove {many(count, 'record')} for good? No program that wrote them may still be running.", yes
        )
        operations.forget_records(records)
    removed = sorted(set(names))
    call.show({"removed": removed}, lambda console: console.print(f"removed {', '.join(removed)}"))
