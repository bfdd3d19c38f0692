"""``kpsplit demo``."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from kpsplit.admin_cli.call import print_json
from kpsplit.admin_cli.options import CONNECTION_OPTIONS, JSON, OUTPUT_OPTION, Given, given_in
from kpsplit.admin_cli.settings import properties_of, redactor_for
from kpsplit.demo.display import Display
from kpsplit.demo.page import page, write_summary
from kpsplit.demo.records import Line, read_lines
from kpsplit.demo.result import DemoResult, failed_line, last_line, result_json
from kpsplit.demo.scenario import Options
from kpsplit.demo.setup import BROKERS, ROLES, Connections, run_demo
from kpsplit.demo.verification import QUESTION, report_path
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.errors import EXIT_CHECK, ConfigurationError, KpsplitError, UsageError
from kpsplit.files import check_writable, write_whole
from kpsplit.kafka.connection import BROKERS_PROPERTIES, Connection, names_brokers, read_properties
from kpsplit.splitter.records.keys import is_topic_name

DEFAULT_HTML = "kpsplit-demo.html"
DEFAULT_EXPRESSION = r"^(\S+)"
SEEDS = 1_000_000


@click.command("demo", params=[*CONNECTION_OPTIONS, OUTPUT_OPTION])
@click.option(
    "--role-config",
    "role_configs",
    metavar="ROLE=FILE",
    multiple=True,
    help="Settings in which a role connects differently: producer, consumer or verifier; may be repeated.",
)
@click.option("--topic", metavar="TOPIC", help="Name of the topic that is created.  [default: a new name]")
@click.option(
    "--input",
    "input_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Send the lines of this file, each once, and check that they come back complete and in order.",
)
@click.option(
    "--key-regex",
    metavar="REGEX",
    help=r"The first group is a line's key; a line that does not match has none.  [default: ^(\S+)]",
)
@click.option(
    "--duration",
    type=click.FloatRange(2, 3600),
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="Time of steady writing between operations, in all.",
)
@click.option(
    "--rate",
    type=click.FloatRange(10, 200_000),
    default=1500.0,
    show_default=True,
    metavar="N",
    help="Records per second of all producers together; with --input at most.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The same number draws the same keys.  [default: a new one]",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_HTML,
    show_default=True,
    metavar="FILE",
    help="The page with the pictures.",
)
@click.pass_context
def command(
    ctx: click.Context,
    role_configs: tuple[str, ...],
    topic: str | None,
    input_file: Path | None,
    key_regex: str | None,
    duration: float,
    rate: float,
    seed: int | None,
    html: Path,
) -> None:
    """Split and merge under load and check every record.

    Four producers that use kpsplit, and one that does not, write to six partitions with skewed keys. The
    hottest partition is split into four ranges, and its hottest range into two. Then all ranges are merged
    back. One producer is suspended during the first split. Of the group that reads, one member is killed and
    one is suspended. At the end every record is read back and checked, and the sub-topics are deleted. The
    last line on stdout begins with PASS, or with FAIL (exit code 3). With -o json stdout has one object:
    "passed", with the figures and the answers, or with the reason why the demo did not come to its end.

    With -b the demo creates its topic on that cluster. Otherwise it starts an embedded cluster, even if the
    environment names brokers.
    """
    if key_regex is not None and input_file is None:
        raise click.UsageError("--key-regex belongs to --input")
    if topic is not None and not is_topic_name(topic):
        raise ConfigurationError(f"{topic[:300]!r} is not the name of a topic", hint="choose another --topic")
    expression = key_regex or DEFAULT_EXPRESSION
    lines = None if input_file is None else read_lines(input_file, expression)
    check_writable(html, "choose another --html")
    options = Options(
        duration=duration,
        rate=rate,
        seed=random.SystemRandom().randrange(SEEDS) if seed is None else seed,
        html=html,
        input=input_file,
        expression=None if input_file is None else expression,
        topic=topic,
    )
    cluster = cluster_given(given_in(ctx))
    roles = roles_given(role_configs)
    given_in(ctx).others += roles.values()
    if roles and not cluster:
        raise ConfigurationError("--role-config is given but no brokers", hint="add -b HOST:PORT")
    if not _run(ctx, cluster, roles, options, lines):
        ctx.exit(EXIT_CHECK)


def cluster_given(given: Given) -> dict[str, str]:
    """Return the connection settings that were typed, empty for an embedded cluster.

    A cluster that is named in the environment only is not used: a forgotten variable must not bring the
    demo to a production cluster.
    """
    found = properties_of(Given(**given.typed))
    if found and not names_brokers(found):
        raise ConfigurationError("connection settings are given but no brokers", hint="add -b HOST:PORT")
    return found


def roles_given(pairs: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the connection settings that roles have of their own, by the roles' names."""
    found = {}
    for pair in pairs:
        role, _, file = pair.partition("=")
        if role not in ROLES or not file:
            raise ConfigurationError(
                "--role-config takes ROLE=FILE", hint=f"write a ROLE of {', '.join(ROLES)}"
            )
        if role in found:
            raise ConfigurationError(f"--role-config is given twice for {role}")
        found[role] = read_properties(Path(file))
        clash = [name for name in BROKERS_PROPERTIES if name in found[role]]
        if clash:
            raise ConfigurationError(
                f"{file} names {clash[0]}; there is one cluster for all", hint="remove it"
            )
    return found


@contextmanager
def open_connections(
    properties: Mapping[str, Any], roles: Mapping[str, Mapping[str, Any]], display: Display
) -> Iterator[Connections]:
    """Yield connections to the given cluster, or to an embedded one if no brokers are named.

    ``roles``: what a role's connection has instead of ``properties``, by the role's name.
    """
    with ExitStack() as stack:
        if not names_brokers(properties):
            began = time.monotonic()
            display.say(f"starting an embedded cluster of {BROKERS} brokers …")
            cluster = stack.enter_context(DevCluster(brokers=BROKERS))
            display.say(f"    {cluster.bootstrap} after {time.monotonic() - began:.1f} s")
            properties = {**properties, "bootstrap.servers": cluster.bootstrap}
        brokers = {name: properties[name] for name in BROKERS_PROPERTIES if name in properties}
        others = {role: Connection({**properties, **roles.get(role, {}), **brokers}) for role in ROLES}
        yield Connections(operator=Connection(properties), **others)


def _run(
    ctx: click.Context,
    cluster: dict[str, str],
    roles: dict[str, dict[str, Any]],
    options: Options,
    lines: list[Line] | None,
) -> bool:
    """Run the demo, print its result, write the page; return whether it passed."""
    given = given_in(ctx)
    as_json = given.output == JSON

    def failed(reason: str) -> bool:
        reason = redactor_for(given)(reason)
        if as_json:
            print_json({"passed": False, "reason": reason})
        else:
            click.echo(failed_line(reason))
        return False

    click.echo(f"kpsplit demo, seed {options.seed}", err=True)
    try:
        display = Display(sys.stderr)
        with open_connections(cluster, roles, display) as connections:
            result = run_demo(connections, options, lines, display)
        _show(result, options.html, as_json)
    except UsageError:
        raise
    except KpsplitError as error:
        return failed(str(error))
    return result.passed


def _show(result: DemoResult, html: Path, as_json: bool) -> None:
    """Print the result and write the page. Raises KpsplitError: the page cannot be written."""
    if not as_json:
        write_summary(result, sys.stdout)
    write_whole(html, page(result).encode())
    pages = {"page": str(html.resolve())}
    if any(verdict.question == QUESTION for verdict in result.verdicts):
        pages["verification report"] = str(report_path(html).resolve())
    if as_json:
        print_json(result_json(result) | {name.replace(" ", "_"): file for name, file in pages.items()})
        return
    for name, file in pages.items():
        click.echo(f"{name}: {file}")
    click.echo(last_line(result))
