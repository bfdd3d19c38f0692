"""`kpsplit cluster up|status|down`: a real Kafka on this machine, to try things out.

Errors are raised as KpsplitError; the main command turns them into one line and an exit code.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from click.core import ParameterSource

from kpsplit.admin_cli.call import Call, print_json, with_call
from kpsplit.admin_cli.options import DURATION, OUTPUT_OPTION
from kpsplit.admin_cli.render.console import plain_table, stdout
from kpsplit.devcluster.daemon import RunningCluster, run_folder, serve, start_detached, stop_detached
from kpsplit.devcluster.process import START_SECONDS, KafkaRuntime
from kpsplit.errors import ConflictError, many

_data = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster's data in DIR. Without it, the data is temporary.",
)


@click.group("cluster")
def command() -> None:
    """Run a Kafka cluster on this machine, without Docker."""


@command.command(params=[OUTPUT_OPTION])
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(1, 9), help="Number of brokers.")
@_data
@click.option(
    "--detach/--foreground",
    default=True,
    help="Run in the background, or in the foreground until Ctrl-C.  [default: detach]",
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    default=f"{START_SECONDS:.0f}s",
    show_default=True,
    help="Time limit for all brokers to be ready.",
)
@with_call
def up(call: Call, brokers: int, data: Path | None, detach: bool, timeout: float) -> None:
    """Start a cluster and print its bootstrap servers."""
    if running := RunningCluster.load(run_folder(data)):
        raise ConflictError(
            f"an embedded cluster is already running: {running.bootstrap}",
            hint=f"use it, or stop it with `kpsplit cluster down{_option(data)}`",
        )
    if click.get_current_context().get_parameter_source("timeout") is ParameterSource.DEFAULT:
        timeout = call.given.typed.get("timeout", timeout)  # given before the verb
    KafkaRuntime.find(heap_mb=0, log_level="")  # a first download shows its progress here, not in a log
    call.say(f"starting {many(brokers, 'broker')} …")

    def announce(running: RunningCluster) -> None:
        if call.as_json:
            print_json(_as_json(running))
        else:
            click.echo(running.bootstrap)
            call.say(f"export KPSPLIT_BOOTSTRAP_SERVER={running.bootstrap}")

    if detach:
        announce(start_detached(brokers, data, timeout))
        call.say(f"kpsplit cluster down{_option(data)}    # stops it")
    else:
        serve(brokers, data, timeout, announce=announce)


@command.command(params=[OUTPUT_OPTION])
@_data
@with_call
def status(call: Call, data: Path | None) -> None:
    """Show the brokers of the cluster in the background."""
    running = RunningCluster.load(run_folder(data))
    if call.as_json:
        print_json(_as_json(running))
    elif running is None:
        call.say("no embedded cluster is running; start one with `kpsplit cluster up`")
    else:
        _table(running)


@command.command(params=[OUTPUT_OPTION])
@_data
@with_call
def down(call: Call, data: Path | None) -> None:
    """Stop the cluster in the background."""
    running = RunningCluster.load(run_folder(data))
    if running is None:
        call.say("no embedded cluster is running")
    else:
        stop_detached(running)
        call.say(f"stopped {many(len(running.brokers), 'broker')}")
    if call.as_json:
        print_json(_as_json(None))


def _option(data: Path | None) -> str:
    return f" --data {shlex.quote(str(data))}" if data else ""


def _as_json(running: RunningCluster | None) -> dict[str, object]:
    if running is None:
        return {"running": False, "bootstrap": None, "data": None, "pid": None, "brokers": []}
    brokers = [
        {"id": b.id, "port": b.port, "pid": b.process.pid, "alive": b.process.alive, "log": b.log}
        for b in running.brokers
    ]
    return {
        "running": True,
        "bootstrap": running.bootstrap,
        "data": running.data,
        "pid": running.owner.pid,
        "brokers": brokers,
    }


def _table(running: RunningCluster) -> None:

    table = plain_table("broker", "port", "pid", "state", "log", right=("broker", "port", "pid"))
    for broker in running.brokers:
        state = "running" if broker.process.alive else "ended"
        table.add_row(str(broker.id), str(broker.port), str(broker.process.pid), state, broker.log)
    stdout().print(table)
    click.echo(f"bootstrap: {running.bootstrap}")
