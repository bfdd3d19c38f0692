"""Sets the demo up on a cluster, runs the scenario, reads everything back, retires, returns the result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import TopicPartition

from kpsplit.admin import Admin, Partitioner, PhysicalPartition
from kpsplit.clock import Deadline, monotonic
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
from kpsplit.demo.judge import CommitHistory, excuses, judge, read_back, read_commits
from kpsplit.demo.records import Line, owner_of, read_journal, read_worked
from kpsplit.demo.result import QUESTIONS, DemoResult, DemoVerdict, GroupOutcome, sum_up
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
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import translated
from kpsplit.splitter.partition_state import SubTopicState

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


@dataclass(frozen=True, slots=True)
class Connections:
    """How each role connects: the operator, the writers, the group, and the reader that checks everything."""

    operator: Connection
    producer: Connection
    consumer: Connection
    verifier: Connection


# -- the topic and the processes -------------------------------------------------------------------


def make_topic(connection: Connection, topic: str) -> None:
    """Create the topic and wait until every broker serves it. Raises UsageError: there is one already."""
    admin = ClusterAdmin(connection)
    replication = min(REPLICATION, len(admin.brokers()))
    config = {"unclean.leader.election.enable": "false"}
    if replication >= REPLICATION:
        config["min.insync.replicas"] = "2"
    if not admin.create(topic, config, partitions=PARTITIONS, replication=replication):
        raise UsageError(f"there is a topic {topic} already", hint="choose another --topic")
    await_served(admin, {topic: PARTITIONS}, Deadline(PATIENCE_SECONDS))


def orders_for(
    options: Options, lines: list[Line] | None, connection: Connection, topic: str, journals: Path
) -> list[WriterOrders]:
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


# -- retirement: refused while a group has not read the phantoms, done once it has -----------------


def _commit(connection: Connection, group: str, positions: Iterable[tuple[PhysicalPartition, int]]) -> None:
    """Commit positions for a group that has no members."""
    offsets = [TopicPartition(place.topic, place.partition, position) for place, position in positions]
    with closing(
        connection.open_consumer("demo-group", group_id=group, enable_auto_commit=False)
    ) as consumer:
        consumer.commit(offsets=offsets, asynchronous=False)


def refused_before_reading(
    connection: Connection, operations: Admin, hot: PhysicalPartition, display: Display
) -> None:
    """Try to retire while a known group has read nothing. Raises KpsplitError: records were deleted."""
    group = f"{hot.topic}-readers"
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
    _commit(connection, f"{hot.topic}-readers", ends.items())
    display.say(f"retire {hot}: the group has read all phantoms")
    deleted = operations.retire(hot, observer=lambda step: show_step(display, step))
    display.say(f"    deleted {', '.join(deleted) or 'nothing more'}")
    state = operations.view().state(hot)
    left = [] if state is None else [t.name for t in state.subtopics if t.state is not SubTopicState.RETIRED]
    ok = state is not None and not left
    return DemoVerdict("retire", ok, f"{len(deleted)} sub-topics deleted, {len(left)} left")


# -- the whole demo --------------------------------------------------------------------------------


@translated("run the demo")
def run_demo(
    connections: Connections, options: Options, lines: list[Line] | None, display: Display
) -> DemoResult:
    """Run the whole demo on a cluster. Raises KpsplitError: it did not come to its end."""
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
        if created := operations.initialise():
            display.say(f"created {', '.join(created)}")
        display.say(f"enrolling {topic}: waits for one lease …")
        operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
        writers = orders_for(options, lines, connections.producer, topic, folder)
        members = [
            MemberOrders(
                name=name,
                properties=connections.consumer.properties,
                group=f"{topic}-workers",
                topic=topic,
                journal=str(folder / f"{name}.worked"),
                session_ms=DOOMED_SESSION_MS if name in (KILLED_MEMBER, SUSPENDED_MEMBER) else SESSION_MS,
            )
            for name in MEMBERS
        ]
        group = members[0].group
        with (
            Endpoints[WriterNews]() as writing,
            Endpoints[MemberNews]() as reading,
            DrainWatch(connection, group, display.say) as drains,
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
        states = [state for parent in scenario.parents if (state := view.state(parent)) is not None]
        lineages = [state.lineage for state in states]
        with verification(connections.verifier, topic, report_path(options.html), display) as spark:
            found = read_commits(connections.verifier, group, lineages, drains.partitions)
            commits = CommitHistory(found, lineages)
            began = monotonic()
            display.say("reading everything back along the lineage, with a fresh client")
            back = read_back(connections.verifier, topic, states, journals, {PLAIN_WRITER}, lines)
            display.say(f"    {back.history.read:,} records in {monotonic() - began:.1f} s: {back.history}")
            verdict = judge(worked, back.offsets, lineages, excuses(scenario.victims(worked), commits))
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
