"""kpsplit's own topics: created with the right policy, or refused by name (protocol, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kpsplit.clock import Deadline
from kpsplit.control.session import ClusterSession, wait_a_lease
from kpsplit.errors import CheckFailedError, ConflictError, UsageError, behind_a_change
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts, await_served
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.records.control import DEFAULT_LEASE_MS, Settings, decode_settings, encode_settings
from kpsplit.splitter.records.keys import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    PRODUCERS_TOPIC,
    SETTINGS_KEY,
)

REPLICATION = 3
MOST_OFFSETS_PARTITIONS = 10_000
DEFAULT_OFFSETS_PARTITIONS = 16
AGAIN = "run kpsplit init again: it goes on from there"
_MIN_MESSAGE_BYTES = 1_000_000
"""A control record may have 900,000 bytes."""


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """How one of kpsplit's topics has to be. ``partitions`` None: any number will do for an existing one."""

    name: str
    partitions: int | None


def own_topics(offsets_partitions: int | None) -> tuple[OwnTopic, ...]:
    """Return kpsplit's topics."""
    return (
        OwnTopic(PRODUCERS_TOPIC, 1),
        OwnTopic(CONTROL_TOPIC, CONTROL_PARTITIONS),
        OwnTopic(OFFSETS_TOPIC, offsets_partitions),
    )


def topic_config(replication: int) -> dict[str, str]:
    """Return the settings with which kpsplit's topics are created."""
    config = {
        "cleanup.policy": "compact",
        "unclean.leader.election.enable": "false",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "LogAppendTime",
    }
    if replication >= REPLICATION:
        config["min.insync.replicas"] = "2"
    return config


def misfits(own: OwnTopic, found: TopicFacts, brokers: int) -> list[str]:
    """Return what is wrong with an existing topic of ours, each with the remedy; empty if nothing is."""
    wrong = []
    policy = found.config.get("cleanup.policy", "")
    if policy != "compact":
        wrong.append(f"cleanup.policy is {policy!r}, not 'compact': set it with kafka-configs")
    if own.partitions is not None and len(found.partitions) != own.partitions:
        wrong.append(
            f"it has {len(found.partitions)} partitions, not {own.partitions}: delete it if it is unused"
        )
    needed = min(REPLICATION, brokers)
    if found.replication < needed:
        wrong.append(
            f"its replication factor is {found.replication}, not {needed}: "
            "raise it with kafka-reassign-partitions"
        )
    if needed >= REPLICATION and found.min_insync < 2:
        wrong.append(f"min.insync.replicas is {found.min_insync}, not 2: set it with kafka-configs")
    if found.config.get("unclean.leader.election.enable") == "true":
        wrong.append("unclean.leader.election.enable is true: set it to false with kafka-configs")
    if int(found.config.get("max.message.bytes", _MIN_MESSAGE_BYTES)) < _MIN_MESSAGE_BYTES:
        wrong.append(f"max.message.bytes is below {_MIN_MESSAGE_BYTES}: raise it with kafka-configs")
    return wrong


def create_own_topics(admin: ClusterAdmin, offsets_partitions: int | None, deadline: Deadline) -> list[str]:
    """Create what is missing of kpsplit's topics; return the names of those that were created.

    Raises:
        CheckFailedError: one of them exists and is not as it has to be; nothing was created then.
    """
    brokers = admin.brokers()
    wanted = own_topics(offsets_partitions)
    names = admin.topics()
    found = {own.name: admin.find(own.name) if own.name in names else None for own in wanted}
    for own in wanted:
        _refuse_misfit(own, found[own.name], len(brokers))
    created: list[str] = []
    replication = min(REPLICATION, len(brokers))
    for own in wanted:
        partitions = own.partitions or DEFAULT_OFFSETS_PARTITIONS
        with behind_a_change(AGAIN, done=bool(created)):
            if found[own.name] is not None:
                continue
            together = own.name == CONTROL_TOPIC
            if together:
                await_served(admin, {PRODUCERS_TOPIC: 1}, deadline)
            if admin.create(
                own.name,
                topic_config(replication),
                partitions=partitions,
                replication=replication,
                assignment=_beside(admin.describe(PRODUCERS_TOPIC), partitions) if together else None,
            ):
                created.append(own.name)
    with behind_a_change(AGAIN, done=bool(created)):
        for own in wanted:
            if found[own.name] is None and own.name not in created:  # somebody else has just made it
                found[own.name] = admin.describe(own.name)
                _refuse_misfit(own, found[own.name], len(brokers))
        await_served(admin, _counts(wanted, found), deadline)
    return created


def _beside(topic: TopicFacts, partitions: int) -> list[tuple[int, ...]]:
    """Place all partitions on the brokers of a topic, in the same order.

    A lease needs the ends of all partitions of the control topic. So they have one leader: no more brokers
    than one must answer for it.
    """
    return [topic.partitions[0].replicas] * partitions


def _refuse_misfit(own: OwnTopic, topic: TopicFacts | None, brokers: int) -> None:
    wrong = misfits(own, topic, brokers) if topic else []
    if wrong:
        raise CheckFailedError(
            f"topic {own.name} exists, but {wrong[0]}",
            hint="a topic that exists is not changed: set it right, or delete it",
        )


def _counts(wanted: tuple[OwnTopic, ...], found: Mapping[str, TopicFacts | None]) -> dict[str, int]:
    counts = {}
    for own in wanted:
        topic = found[own.name]
        counts[own.name] = len(topic.partitions) if topic else own.partitions or DEFAULT_OFFSETS_PARTITIONS
    return counts


def settings_to_write(view: ControlView, lease_ms: int | None) -> Settings | None:
    """Return the settings that are to be written, None if those in force stay.

    Raises:
        ConflictError: another lease is in force, and producers of enrolled topics count on it.
        RecordError: the lease is out of bounds.
    """
    wanted = Settings(lease_ms if lease_ms is not None else DEFAULT_LEASE_MS)
    decode_settings(encode_settings(wanted))
    if not view.initialised:
        return wanted
    if lease_ms is None or wanted == view.settings:
        return None
    if view.enrolments:
        raise ConflictError(
            f"the lease is {view.settings.lease_ms} ms; producers of enrolled topics count on it",
            hint="keep it: leave the lease away, or give the same",
        )
    return wanted


def write_settings(writer: AcknowledgedWriter, settings: Settings, deadline: Deadline) -> None:
    """Write the cluster's settings."""
    writer.write(CONTROL_TOPIC, SETTINGS_KEY, encode_settings(settings), deadline)


def initialise(session: ClusterSession, lease_ms: int | None, offsets_partitions: int | None) -> list[str]:
    """Create kpsplit's topics and write the settings; as ``Admin.initialise``."""
    deadline = session.begin()
    if offsets_partitions is not None and not 1 <= offsets_partitions <= MOST_OFFSETS_PARTITIONS:
        raise UsageError(
            f"offset-log partitions must be 1 to {MOST_OFFSETS_PARTITIONS}, got {offsets_partitions}"
        )
    created = create_own_topics(session.admin, offsets_partitions, deadline)
    with behind_a_change(AGAIN, done=bool(created)):
        settings = settings_to_write(session.read(deadline), lease_ms)
        if settings is not None:
            wait_a_lease(session.tail(deadline), deadline)  # an enrolment waits for the new lease only
            write_settings(session.writer(), settings, deadline)
    return created
