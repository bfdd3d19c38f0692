"""``kpsplit enroll``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.param_types import TOPIC
from kpsplit.splitter.key_range import MAX_SLOTS
from kpsplit.splitter.records.control import Partitioner


@click.command("enroll", cls=VerbCommand)
@click.argument("topic", type=TOPIC)
@click.option(
    "--partitioner",
    type=click.Choice([p.value for p in Partitioner]),
    metavar="NAME",
    default=Partitioner.CONSISTENT_RANDOM.value,
    show_default=True,
    help="How the topic's applications choose a partition: consistent_random (librdkafka's default), "
    "murmur2_random (Java's) or explicit (by themselves).",
)
@click.option(
    "--slots",
    type=click.IntRange(1, MAX_SLOTS),
    metavar="N",
    help="In how many key ranges the members of a consumer group share each partition, 1 to 64; fixed from "
    "then on. [default: a power of two that makes about 256 in all]",
)
@global_options
@pass_call
def command(call: Call, topic: str, partitioner: str, slots: int | None) -> None:
    """Make a topic's partitions splittable.

    Producers that use kpsplit begin to stamp their records, and consumer groups that use it share partitions
    by key range; nothing else changes. Waits for one lease. Again: makes what is missing.
    """
    from kpsplit.admin_cli.render.console import stderr
    from kpsplit.admin_cli.render.steps import StepProgress

    with call.operations() as operations, StepProgress(stderr(), "waiting for one lease") as progress:
        enrolment = operations.enrol(topic, Partitioner(partitioner), progress, slots=slots)
    data = {
        "topic": enrolment.topic,
        "topic_id": enrolment.topic_id,
        "partitioner": enrolment.partitioner.value,
        "settled": enrolment.settled,
        "slots": enrolment.slots,
    }
    text = f"{enrolment.topic} is enrolled (partitioner {enrolment.partitioner}, {enrolment.slots} slots)"
    call.show(data, lambda console: console.print(text))
