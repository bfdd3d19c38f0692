"""``kpsplit acls``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

import click
from rich.console import Console

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import PRINTABLE, TOPIC
from kpsplit.splitter.records.keys import MOST_GENERATIONS, OWN_IDS, changelog_topic
from kpsplit.splitter.rights import Resource, Right, Role, rights_for


@click.command("acls", cls=VerbCommand)
@click.argument("topic", type=TOPIC)
@click.option(
    "--for",
    "role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="Role of the client.",
)
@click.option(
    "--principal", type=PRINTABLE, metavar="USER", required=True, help="Kafka principal, e.g. User:app."
)
@click.option("--group", type=PRINTABLE, metavar="GROUP", help="The consumer's group.")
@click.option(
    "--transactional-id",
    type=PRINTABLE,
    metavar="PREFIX",
    help="Prefix of the producers' transactional ids, if they use transactions.",
)
@click.option("--takeover", is_flag=True, help="Let the producer roll back an operation whose operator died.")
@click.option("--state", is_flag=True, help="The consumer keeps state in a StateStore.")
@click.option(
    "--generation",
    type=click.IntRange(1, MOST_GENERATIONS),
    metavar="G",
    default=1,
    show_default=True,
    help="Which number of slots of those that the topic has had; each has a topic of its own. kpsplit status "
    "TOPIC/P shows it. Before a change of the number give the rights of the next one too.",
)
def command(
    call: Call,
    topic: str,
    role: str,
    principal: str,
    group: str | None,
    transactional_id: str | None,
    takeover: bool,
    state: bool,
    generation: int,
) -> None:
    """Print the least rights that a client of a topic needs.

    Prints commands of Kafka's kafka-acls.sh, to be run by a user that may alter the cluster. Contacts no
    broker and changes nothing.
    """
    wanted = Role(role)
    if ":" not in principal:
        raise click.UsageError("--principal takes a kind and a name, e.g. User:app")
    if wanted is Role.CONSUMER and group is None:
        raise click.UsageError("--for consumer needs --group")
    if transactional_id and (transactional_id.startswith(OWN_IDS) or OWN_IDS.startswith(transactional_id)):
        raise click.UsageError(
            f"--transactional-id {transactional_id} overlaps kpsplit's own ids, which begin with {OWN_IDS}"
        )
    given = {"group": group, "transactional-id": transactional_id, "takeover": takeover, "state": state}
    _refuse_what_does_not_apply(wanted, {name for name, value in given.items() if value})
    rights = rights_for(
        wanted,
        topic,
        group=group,
        transactional_id=transactional_id,
        takeover=takeover,
        changelog=changelog_topic(group, topic) if state and group is not None else None,
        generation=generation,
    )
    servers = call.given.bootstrap_server or "HOST:PORT"
    data = {"principal": principal, "role": role, "topic": topic, "rights": [_json(r) for r in rights]}

    def render(console: Console) -> None:
        for line in tool_lines(rights, principal, servers):
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    call.show(data, render)


_APPLIES = {
    "group": {Role.CONSUMER},
    "state": {Role.CONSUMER},
    "takeover": {Role.PRODUCER},
    "transactional-id": {Role.PRODUCER},
}


def _refuse_what_does_not_apply(role: Role, given: Collection[str]) -> None:
    """Raise UsageError for an option that does not apply to a role: the user expects a right from it."""
    for name in sorted(given):
        if role not in _APPLIES[name]:
            raise click.UsageError(f"--{name} does not apply to {role.value}s")


def tool_lines(rights: Iterable[Right], principal: str, servers: str) -> Iterator[str]:
    """Yield one command of ``kafka-acls.sh`` per resource."""
    for (resource, name, prefixed), found in groupby(
        sorted(rights), key=lambda r: (r.resource, r.name, r.prefixed)
    ):
        words = ["kafka-acls.sh", "--bootstrap-server", servers, "--add", "--allow-principal", principal]
        words += [part for right in found for part in ("--operation", right.operation)]
        words += _on(resource, name, prefixed)
        yield shlex.join(words)


def _on(resource: Resource, name: str, prefixed: bool) -> list[str]:
    if resource is Resource.CLUSTER:
        return ["--cluster"]
    if prefixed and not name:
        return [f"--{resource}", "*"]
    return [f"--{resource}", name, *(["--resource-pattern-type", "prefixed"] if prefixed else [])]


def _json(right: Right) -> dict[str, str]:
    return {
        "resource": right.resource.value,
        "name": right.name or "*",
        "pattern": "prefixed" if right.prefixed and right.name else "literal",
        "operation": right.operation.value,
    }
