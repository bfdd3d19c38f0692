"""One call of a verb: its settings, its way to the cluster, the partition it is about, how it shows data."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console

from kpsplit.admin import Admin
from kpsplit.admin_cli.failures import Declined
from kpsplit.admin_cli.options import GLOBAL_OPTIONS, JSON, Given, GlobalOption, given_in
from kpsplit.admin_cli.render.console import stdout
from kpsplit.admin_cli.render.text import one_line
from kpsplit.admin_cli.settings import connect, redactor_for, show_logs
from kpsplit.control.plans import under_way
from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import EndedBy, PartitionState, Phase, Result


class Call:
    """What every verb gets. Clients are opened when they are needed, not before."""

    def __init__(self, given: Given) -> None:
        self.given = given

    @property
    def as_json(self) -> bool:
        return self.given.output == JSON

    @functools.cached_property
    def connection(self) -> Connection:
        """The connection to the cluster; its brokers have answered."""
        return connect(self.given)

    @contextmanager
    def operations(self) -> Iterator[Admin]:

        with Admin(self.connection, self.given.timeout) as operations:
            yield operations

    def show(self, data: Any, render: Callable[[Console], None]) -> None:
        """Print data on stdout: as one line of JSON, or as ``render`` draws it."""
        if self.as_json:
            print_json(data)
        else:
            render(stdout())

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask, unless ``yes`` answers; then ``begin``. Raises as ``ask``."""
        self.ask(question, yes)
        self.begin()

    def ask(self, question: str, yes: bool) -> None:
        """Ask, unless ``yes`` answers. Raises Declined, or UsageError without a terminal."""
        if not yes and not can_ask():
            raise UsageError("this needs confirmation, and there is no terminal to ask on", hint="pass --yes")
        if not yes and not click.confirm(question, default=False, err=True):
            raise Declined

    def begin(self) -> None:
        """Note that what follows changes something: an error or Ctrl-C may come after a change."""
        self.given.changing = True


def can_ask() -> bool:
    """Return whether stdin is a terminal: without one a question has no answer."""
    return sys.stdin.isatty()


def print_json(data: Any) -> None:
    """Print one line of JSON in ASCII, which is safe on any terminal."""
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


class VerbCommand(click.Command):
    """A verb: it takes the global options, and its function gets a Call first."""

    def __init__(
        self, *, callback: Callable[..., Any], params: Sequence[click.Parameter], **rest: Any
    ) -> None:
        super().__init__(callback=with_call(callback), params=[*params, *GLOBAL_OPTIONS], **rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's own options, then the global ones."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shared = [p for p in options if isinstance(p, GlobalOption)]
        own = [p for p in options if not isinstance(p, GlobalOption)]
        for title, params in (("Options", own), ("Global options", shared)):
            rows = [row for p in params if (row := p.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def with_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command's function a Call before its parameters."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = given_in(click.get_current_context())
        # Before the verb: what it logs while it opens clients may hold secrets.
        show_logs(given.verbose, redactor_for(given))
        return function(Call(given), *args, **kwargs)

    return wrapped


def find_state(operations: Admin, parent: PhysicalPartition) -> PartitionState:
    """Raises UsageError: unknown topic, partition out of range, or not enrolled."""
    view = operations.view()
    if parent not in view.states:
        operations.lineage(parent)  # refuses what does not exist
    return view.enrolled_state(parent)


Wanted = Callable[[PartitionState], bool]


def can_be_resumed(state: PartitionState) -> bool:
    return state.attempt is not None


def can_be_aborted(state: PartitionState) -> bool:
    return state.attempt is not None and state.phase is not Phase.COMMITTED


def can_be_thawed(state: PartitionState) -> bool:
    return state.phase is Phase.FROZEN


def can_be_begun_anew(state: PartitionState) -> bool:
    """Return whether a producer rolled back the last operation of a dead operator: resume starts it again."""
    last = state.last
    given_up = last is not None and (last.result, last.ended_by) == (Result.ROLLED_BACK, EndedBy.TAKEOVER)
    return state.attempt is None and state.phase is Phase.STEADY and given_up


def the_only_one(call: Call, verb: str, wanted: Wanted, yes: bool) -> PhysicalPartition | None:
    """Return the only partition that is wanted, None if there is none; ``verb``: with its options.

    Lists on stderr what is found; for ``resume`` also the operations that it could start again by name.

    Raises:
        UsageError: there are several, or there is no terminal to ask on.
    """
    with call.operations() as operations:
        states = sorted(operations.view().states.values(), key=lambda state: state.parent)
    found = [state for state in states if wanted(state)]
    anew = [state for state in states if can_be_begun_anew(state)] if wanted is can_be_resumed else []
    for state in (*found, *anew):
        call.say(f"kpsplit {verb} {state.parent}    # {_in_words(state)}")
    if not found:
        return None
    # The verb asks before it acts; without a terminal nobody could say that the wrong one was found.
    if len(found) == 1 and (yes or can_ask()):
        return found[0].parent
    if len(found) > 1:
        raise UsageError(f"{len(found)} partitions match", hint=f"name one: kpsplit {verb} TOPIC/P")
    raise UsageError("there is no terminal to confirm this partition on", hint="name it, or pass --yes")


def _in_words(state: PartitionState) -> str:

    if state.last is not None and can_be_begun_anew(state):
        attempt = state.last.attempt
        return one_line(
            f"{attempt.kind} by {attempt.operator} was rolled back: {state.last.reason}; this starts it again"
        )
    return one_line(under_way(state) or f"{state.phase}: {state.frozen_reason}")
