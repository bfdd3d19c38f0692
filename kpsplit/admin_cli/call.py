"""One call of the command line: its settings, its way to the cluster, and how it shows data."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from kpsplit.admin_cli.failures import Declined
from kpsplit.admin_cli.given import Given, given_in
from kpsplit.admin_cli.redaction import show_logs
from kpsplit.admin_cli.settings import redactor_for
from kpsplit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kpsplit.admin import Admin
    from kpsplit.kafka.connection import Connection

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Call:
    """What every verb gets. Modules are imported and clients opened when they are needed, not before."""

    def __init__(self, given: Given) -> None:
        self.given = given

    @property
    def as_json(self) -> bool:
        """Return whether data is printed as JSON."""
        return self.given.as_json

    @functools.cached_property
    def connection(self) -> Connection:
        """The connection to the cluster; its brokers have answered."""
        from kpsplit.admin_cli.settings import connect

        return connect(self.given)

    @contextmanager
    def operations(self) -> Iterator[Admin]:
        """Open what does the work."""
        from kpsplit.admin import Admin

        with Admin(self.connection, self.given.timeout) as operations:
            yield operations

    def show(self, data: Any, render: Callable[[Console], None]) -> None:
        """Print data on stdout: as one line of JSON, or as ``render`` draws it."""
        if self.as_json:
            print_json(data)
        else:
            from kpsplit.admin_cli.render.console import stdout

            render(stdout())

    def say(self, text: str) -> None:
        """Print a message on stderr."""
        click.echo(text, err=True)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask, unless the answer was given before: ``yes``.

        Raises:
            UsageError: there is no terminal to ask on.
            Declined: the answer was no.
        """
        if yes:
            return
        if not can_ask():
            raise UsageError("this needs confirmation, and there is no terminal to ask on", hint="pass --yes")
        if not click.confirm(question, default=False, err=True):
            raise Declined


def can_ask() -> bool:
    """Return whether stdin is a terminal: without one a question has no answer."""
    return sys.stdin.isatty()


def print_json(data: Any) -> None:
    """Print one line of JSON in ASCII, which is safe on any terminal."""
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def pass_call(function: Callable[Concatenate[Call, Arguments], Result]) -> Callable[Arguments, Result]:
    """Give a command the Call as its first argument."""

    @click.pass_context
    def wrapped(ctx: click.Context, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        given = given_in(ctx)
        # Before the verb: what it logs while it opens clients may hold secrets.
        show_logs(given.verbose, redactor_for(given))
        return function(Call(given), *args, **kwargs)

    return functools.update_wrapper(wrapped, function)
