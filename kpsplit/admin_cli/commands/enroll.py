"""``kpsplit enroll``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import TOPIC
from kpsplit.admin_cli.render.console import StepProgress, stderr
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
    "murmur2_random (Java's default) or explicit (the application names the partition).",
)
@click.option(
    "--slots",
    type=click.IntRange(1, MAX_SLOTS),
    metavar="N",
    help="Number of key ranges per partition that the members of a consumer group share. Another number than "
    "the topic has is a change: groups go over to it while they run.  [default: what the topic has, else a "
    "power of two, about 256 in the whole topic]",
)
def command(call: Call, topic: str, partitioner: str, slots: int | None) -> None:
    """Make a topic's partitions splittable.

    Producers that use kpsplit begin to stamp their records, and consumer groups that use it share partitions
    by key range. Nothing else changes. Waits for one lease. Run it again to add what is missing, for example
    the slots of new partitions.

    A change of the number of slots waits for one lease, and then until no group has a member on the former
    slots. That takes the right to describe every group. If it is broken off, groups go on; run it again
    without --slots to finish it. State stores keep the number that they began with: it is refused while a
    group has a changelog of the topic.
    """
    call.begin()
    with call.operations() as operations, StepProgress(stderr(), "waiting for one lease") as progress:
        enrolment = operations.enrol(topic, Partitioner(partitioner), progress, slots=slots)
    data = {
        "topic": enrolment.topic,
        "topic_id": enrolment.topic_id,
        "partitioner": enrolment.partitioner.value,
        "settled": enrolment.settled,
        "slots": enrolment.slots,
        "generation": enrolment.generation,
    }
    text = f"{enrolment.topic} is enrolled (partitioner {enrolment.partitioner}, {enrolment.slots} slots)"
    call.show(data, lambda console: console.print(text))
