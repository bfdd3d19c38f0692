"""``kpsplit route``."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.call import Call, VerbCommand, find_state
from kpsplit.admin_cli.options import BASE64, HEX, PARTITION_NUMBER, TOPIC
from kpsplit.admin_cli.render.text import bytes_json, place_json, segment_json, show_bytes
from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Layout, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Partitioner


@click.command("route", cls=VerbCommand)
@click.argument("topic", type=TOPIC)
@click.option("--key", metavar="TEXT", help="The key, as UTF-8 text.")
@click.option("--key-base64", type=BASE64, metavar="BASE64", help="The key's bytes in base64.")
@click.option("--key-hex", type=HEX, metavar="HEX", help="The key's bytes in hexadecimal.")
@click.option(
    "--partition", type=PARTITION_NUMBER, metavar="P", help="The partition, if the key does not determine it."
)
def command(
    call: Call,
    topic: str,
    key: str | None,
    key_base64: bytes | None,
    key_hex: bytes | None,
    partition: int | None,
) -> None:
    """Show where a key goes.

    Shows its key hash, its logical partition, the open segment that takes it, and where that is stored.
    """
    data = _key(key, key_base64, key_hex)
    with call.operations() as operations:
        view = operations.view()
        enrolment = view.enrolments.get(topic)
        count = ClusterAdmin(call.connection).partition_count(topic)
        if enrolment is None:
            raise view.not_enrolled(topic)
        number = partition_of(data, enrolment.partitioner, count) if partition is None else partition
        parent = PhysicalPartition(topic, number)
        state = find_state(operations, parent)
    segment = Layout.of(state.lineage).segment_for(key_hash(data))
    by = f"by {enrolment.partitioner}" if partition is None else "named by --partition"
    call.show(
        {
            **_as_json(data, state, segment),
            "partitioner": str(enrolment.partitioner),
            "partition_named": partition is not None,
        },
        lambda console: _show(data, state, segment, by, console),
    )


def _key(text: str | None, base64: bytes | None, hexadecimal: bytes | None) -> bytes:
    given = [k for k in (None if text is None else _bytes_of(text), base64, hexadecimal) if k is not None]
    if len(given) != 1:
        raise click.UsageError("pass one of --key, --key-base64 and --key-hex")
    return given[0]


def _bytes_of(text: str) -> bytes:
    """Return the bytes that were typed, also where they are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise click.UsageError("--key is not valid text; pass --key-base64 or --key-hex") from None


def _as_json(key: bytes, state: PartitionState, segment: Segment) -> dict[str, Any]:
    return {
        **bytes_json("key", key),
        "key_hash": key_hash(key),
        **place_json(state.parent),
        "epoch": state.epoch,
        "phase": state.phase.value,
        **segment_json(segment),
        "kind": segment.kind.value,
    }


def _show(key: bytes, state: PartitionState, segment: Segment, by: str, console: Console) -> None:

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "key": show_bytes(key),
        "key hash": f"{key_hash(key):08x}",
        "logical partition": f"{state.parent} ({by})",
        "segment": f"{segment.id}, {segment.kind}, opened in epoch {segment.opened_epoch} of {state.epoch}",
        "range": str(segment.range),
        "stored in": str(segment.source),
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console.print(table)


def partition_of(key: bytes, partitioner: Partitioner, partitions: int) -> int:
    """Return the partition of a key. Raises UsageError: the key alone does not determine it."""
    import confluent_kafka

    if partitioner is Partitioner.EXPLICIT:
        raise UsageError(
            "the applications of this topic name the partition of every record",
            hint="name the partition with --partition",
        )
    if partitioner is Partitioner.MURMUR2_RANDOM:
        return int(confluent_kafka.murmur2(key, partitions))
    if not key:
        raise UsageError(
            "consistent_random sends empty keys to any partition", hint="name the partition with --partition"
        )
    return int(confluent_kafka.consistent(key, partitions))
