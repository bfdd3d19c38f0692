"""Sets the demo up on a cluster, runs the scenario, reads everything back, retires, returns the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from kpsplit.admin import Admin
from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.fetch.lineage_reader import LineageReader
from kpsplit.demo.display import Display, show_step
from kpsplit.demo.endpoints import (
    PATIENCE_SECONDS,
    Endpoint,
    Endpoints,
    MemberNews,
    MemberOrders,
    WriterNews,
    WriterOrders,
    keep_folder,
)
from kpsplit.demo.judge import CommitHistory, Excuses, ReadBack, ReadBackCheck, judge, read_commits
from kpsplit.demo.records import Line, owner_of, read_journal, read_worked
from kpsplit.demo.result import QUESTIONS, DemoResult, DemoVerdict, GroupOutcome, Journals, sum_up
from kpsplit.demo.scenario import (
    KILLED_MEMBER,
    KPSPLIT_WRITERS,
    MEMBERS,
    OPERATIONS_SECONDS,
    PARTITIONS,
    PLAIN_WRITER,
    SUSPENDED_MEMBER,
    WRITERS,
    Options,
    Participants,
    Scenario,
)
from kpsplit.demo.timeline import DrainWatch, Timeline
from kpsplit.demo.verification import report_path, verification
from kpsplit.errors import CheckFailedError, KpsplitError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import BROKERS_PROPERTIES, Connection, names_brokers
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.records.control import Partitioner

BROKERS = 3
REPLICATION = 3
SLOTS = 4
"""Key ranges per partition that groups share; few: the brokers run beside the demo on one machine."""
DOOMED_SESSION_MS = 10_000
"""After so long without a heartbeat the slots of a member that is killed or suspended are given to others."""
SESSION_MS = 60_000
"""The same for the other members: a busy machine must not cost them their slots."""
ROLES = ("producer", "consumer", "verifier")
"""Roles that may have connection settings of their own; the operator has those of the whole demo."""

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Connections:
    """How each role connects: the operator, the writers, the group, and the reader that checks everything."""

    operator: Connection
    producer: Connection
    consumer: Connection
    verifier: Connection


@contextmanager
def open_connections(
    properties: Properties, roles: Mapping[str, Properties], display: Display
) -> Iterator[Connections]:
    """Yield connections to the given cluster, or to an embedded one if no brokers are named.

    Args:
        properties: for everybody.
        roles: what a role's connection has instead, by the role's name.
        display: shows that an embedded cluster starts.

    Raises:
        KpsplitError: there is no Java, or the cluster does not come up.
    """
    if names_brokers(properties):
        yield _connected(properties, roles)
        return
    from kpsplit.devcluster.cluster import DevCluster

    began = monotonic()
    display.say(f"starting an embedded cluster of {BROKERS} brokers …")
    with DevCluster(brokers=BROKERS) as cluster:
        display.say(f"    {cluster.bootstrap} after {monotonic() - began:.1f} s")
        yield _connected({**properties, "bootstrap.servers": cluster.bootstrap}, roles)


def _connected(properties: Properties, roles: Mapping[str, Properties]) -> Connections:
    brokers = {name: properties[name] for name in BROKERS_PROPERTIES if name in properties}
    others = {role: Connection({**properties, **roles.get(role, {}), **brokers}) for role in ROLES}
    return Connections(operator=Connection(properties), **others)


# -- the topic and the processes -------------------------------------------------------------------


def make_topic(connection: Connection, topic: str) -> None:
    """Create the demo's topic and wait until every broker serves it.

    Raises:
        UsageError: there is a topic of that name already.
    """
    admin = ClusterAdmin(connection)
    replication = min(REPLICATION, len(admin.brokers()))
    config = {"unclean.leader.election.enable": "false"}
    if replication >= REPLICATION:
        config["min.insync.replicas"] = "2"
    if not admin.create(topic, config, partitions=PARTITIONS, replication=replication):
        raise UsageError(f"there is a topic {topic} already", hint="choose another --topic")
    await_served(admin, {topic: PARTITIONS}, Deadline(PATIENCE_SECONDS))


def enrol(operations: Admin, topic: str, say: Callable[[str], None]) -> None:
    """Make kpsplit's topics if they are missing, and enrol the demo's."""
    created = operations.initialise()
    if created:
        say(f"created {', '.join(created)}")
    say(f"enrolling {topic}: waits for one lease …")
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)


def orders_for(
    options: Options, lines: list[Line] | None, connection: Connection, topic: str, journals: Path
) -> list[WriterOrders]:
    """Return what each writer is to do."""
    stocks = stocks_of(lines)
    rates = rates_of(options, stocks)
    return [
        WriterOrders(
            name=name,
            plain=name == PLAIN_WRITER,
            properties={**connection.properties, "client.id": f"kpsplit-demo-{name}"},
            topic=topic,
            partitions=PARTITIONS,
            rate=rates[name],
            seed=options.seed,
            journal=str(journals / f"{name}.journal"),
            writers=WRITERS,
            input=str(options.input.resolve()) if options.input is not None else None,
            expression=options.expression,
            stock=None if stocks is None else stocks[name],
        )
        for name in WRITERS
    ]


def stocks_of(lines: list[Line] | None) -> dict[str, int] | None:
    """Return how many lines of a file are each writer's."""
    if lines is None:
        return None
    owned = dict.fromkeys(WRITERS, 0)
    for line in lines:
        owned[owner_of(line, WRITERS)] += 1
    return owned


def rates_of(options: Options, stocks: dict[str, int] | None) -> dict[str, float]:
    """Return each writer's first rate: equal ones, or such that lines are left to all for the whole demo."""
    if stocks is None:
        return dict.fromkeys(WRITERS, options.rate / len(WRITERS))
    lines = sum(stocks.values())
    total = min(options.rate, lines / (options.duration + OPERATIONS_SECONDS))
    return {name: max(0.1, total * number / lines) for name, number in stocks.items()}


def member_orders(name: str, connection: Connection, topic: str, folder: Path) -> MemberOrders:
    """Return what a member of the group is to do."""
    return MemberOrders(
        name=name,
        properties=connection.properties,
        group=f"{topic}-workers",
        topic=topic,
        journal=str(folder / f"{name}.worked"),
        session_ms=DOOMED_SESSION_MS if name in (KILLED_MEMBER, SUSPENDED_MEMBER) else SESSION_MS,
    )


# -- retirement: refused while a group has not read the phantoms, done once it has -----------------


def _commit(connection: Connection, group: str, positions: Iterable[tuple[PhysicalPartition, int]]) -> None:
    """Commit positions for a group that has no members.

    Raises:
        KpsplitError: the brokers did not take them.
    """
    offsets = [TopicPartition(place.topic, place.partition, position) for place, position in positions]
    consumer = connection.open_consumer("demo-group", group_id=group, enable_auto_commit=False)
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as exception:
        raise translate(error_of(exception), f"commit positions of group {group}") from exception
    finally:
        consumer.close()


def readers_of(topic: str) -> str:
    """Return the name of the demo's own consumer group."""
    return f"{topic}-readers"


def refused_before_reading(
    connection: Connection, operations: Admin, hot: PhysicalPartition, display: Display
) -> None:
    """Try to retire while a group that has read nothing of the phantoms is known.

    Raises:
        KpsplitError: sub-topics with records were deleted although the group had not read them.
    """
    group = readers_of(hot.topic)
    state = operations.view().states[hot]
    unread = {s.source.topic for s in state.lineage if s.end is not None and s.length() and s.source != hot}
    _commit(connection, group, [(hot, 0)])
    display.say(f"retire {hot}, too early: group {group} has read nothing yet")
    try:
        deleted = operations.retire(hot)
    except CheckFailedError as error:
        display.say(f"    refused: {error.message}")
        return
    lost = sorted(unread.intersection(deleted))
    if lost:
        raise KpsplitError(f"retire deleted {', '.join(lost)}, which group {group} had not read")
    display.say(f"    deleted {', '.join(deleted)}: nothing was ever written there")


def retire_after_reading(
    connection: Connection, operations: Admin, result: DemoResult, display: Display
) -> DemoVerdict:
    """Let the group be at the ends, retire, and return whether all sub-topics are gone."""
    hot = result.state.parent
    kept = {t.name for t in result.state.subtopics if t.state is not SubTopicState.RETIRED}
    ends = {s.source: s.end for s in result.state.lineage if s.end is not None and s.source.topic in kept}
    _commit(connection, readers_of(hot.topic), ends.items())
    display.say(f"retire {hot}: the group has read all phantoms")
    deleted = operations.retire(hot, observer=lambda step: show_step(display, step))
    display.say(f"    deleted {', '.join(deleted) or 'nothing more'}")
    state = operations.view().state(hot)
    left = [] if state is None else [t.name for t in state.subtopics if t.state is not SubTopicState.RETIRED]
    ok = state is not None and not left
    return DemoVerdict("retire", ok, f"{len(deleted)} sub-topics deleted, {len(left)} left")


# -- the whole demo --------------------------------------------------------------------------------


def run_demo(
    connections: Connections, options: Options, lines: list[Line] | None, display: Display
) -> DemoResult:
    """Run the whole demo on a cluster.

    Raises:
        KpsplitError: it did not come to its end.
    """
    timeline = Timeline(monotonic(), options.topic_name())
    topic, connection = timeline.topic, connections.operator
    temporary = tempfile.TemporaryDirectory(prefix="kpsplit-demo-", ignore_cleanup_errors=True)
    with Admin(connection, PATIENCE_SECONDS) as operations, temporary as name:
        folder = Path(name)
        display.say(
            f"topic {topic}: {PARTITIONS} partitions; {len(KPSPLIT_WRITERS)} kpsplit producers "
            "and a plain one that knows nothing of kpsplit"
        )
        make_topic(connection, topic)
        enrol(operations, topic, display.say)
        writers = orders_for(options, lines, connections.producer, topic, folder)
        members = [member_orders(name, connections.consumer, topic, folder) for name in MEMBERS]
        group = members[0].group
        offsets = offset_log_partitions(ClusterAdmin(connection))
        with (
            Endpoints[WriterNews]() as writing,
            Endpoints[MemberNews]() as reading,
            DrainWatch(connection, group, offsets, display.say) as drains,
        ):
            for orders in writers:
                writing.all.append(Endpoint("writer", "kpsplit.demo.writer", orders, WriterNews()))
            # A start takes a core for a second, which brokers share: the late member starts now, and waits.
            for member in members:
                news = MemberNews()
                reading.all.append(Endpoint("group member", "kpsplit.demo.member", member, news, waits=True))
            scenario = Scenario(
                options, operations, Participants(writing, reading, group, drains), timeline, display
            )
            hot = scenario.run(connection)
        refused_before_reading(connections.consumer, operations, hot, display)
        journals = {o.name: read_journal(Path(o.journal)) for o in writers}
        worked = {o.name: list(read_worked(Path(o.journal))) for o in members}
        view = operations.view()
        states = [_state(view.state(parent), parent) for parent in scenario.parents]
        lineages = [state.lineage for state in states]
        with verification(connections.verifier, topic, report_path(options.html), display) as spark:
            commits = CommitHistory(read_commits(connections.verifier, group, lineages, offsets), lineages)
            back = _read_back(connections.verifier, topic, states, journals, lines, display)
            excuses = Excuses(scenario.victims(worked), commits)
            verdict = judge(worked, back.offsets, lineages, excuses.excuse)
            outcome = GroupOutcome(verdict, tuple(drains.drains), scenario.progress)
            state = next(state for state in states if state.parent == hot)
            result = sum_up(timeline, scenario.news_before, scenario.news(), state, back, outcome, journals)
            checked = spark()
        verdicts = [question(result) for question in QUESTIONS] + ([checked] if checked else [])
        result = replace(result, verdicts=tuple(verdicts))
        if not result.passed:
            kept = keep_folder(folder, "kpsplit-demo-failed-")
            display.say(f"the writers' journals are kept in {kept}")
            return result
        retired = retire_after_reading(connections.consumer, operations, result, display)
        return replace(result, verdicts=(*result.verdicts, retired))


def _read_back(
    connection: Connection,
    topic: str,
    states: list[PartitionState],
    journals: Journals,
    lines: list[Line] | None,
    display: Display,
) -> ReadBack:
    began = monotonic()
    display.say("reading everything back along the lineage, with a fresh client")
    reading = ReadBackCheck([state.lineage for state in states], {PLAIN_WRITER}, lines)
    reading.take_journals(topic, journals)
    for state in states:
        with LineageReader(connection, state) as reader:
            reading.take(state.parent, reader.records(), reader.tally)
    back = reading.result()
    display.say(f"    {back.history.read:,} records in {monotonic() - began:.1f} s: {back.history}")
    return back


def _state(state: PartitionState | None, parent: PhysicalPartition) -> PartitionState:
    if state is None:
        raise KpsplitError(f"{parent} is not enrolled any more")
    return state
