"""Sets the demo up on a cluster, runs the scenario, reads everything back, retires, returns the result."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from kpsplit.admin import Admin
from kpsplit.demo.display import Display, show_step
from kpsplit.demo.group import GroupActions, group_of, orders_of, outcome_of
from kpsplit.demo.journal import read_journal
from kpsplit.demo.judging import read_commits
from kpsplit.demo.options import KPSPLIT_WRITERS, PARTITIONS, Options, orders_for
from kpsplit.demo.processes import PATIENCE_SECONDS, MemberProcesses, WriterProcesses
from kpsplit.demo.readback import ReadBack, Reading
from kpsplit.demo.result import QUESTIONS, DemoResult, DemoVerdict, Journals, sum_up
from kpsplit.demo.scenario import Scenario, enrol, hot_of, make_topic
from kpsplit.demo.timeline import Timeline
from kpsplit.demo.traffic import Line
from kpsplit.demo.verification import Verification, report_path
from kpsplit.demo.watch import DrainWatch
from kpsplit.errors import CheckFailedError, KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import BROKERS_PROPERTIES, Connection, names_brokers
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState

BROKERS = 3
ROLES = ("producer", "consumer", "verifier")
"""Who may have connection settings of their own; the operator has those of the whole demo."""

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """How everybody connects: who splits and merges, the writers, the group, who reads everything back."""

    operator: Connection
    producer: Connection
    consumer: Connection
    verifier: Connection


@contextmanager
def open_endpoints(
    properties: Properties, roles: Mapping[str, Properties], display: Display
) -> Iterator[Endpoints]:
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


def _connected(properties: Properties, roles: Mapping[str, Properties]) -> Endpoints:
    brokers = {name: properties[name] for name in BROKERS_PROPERTIES if name in properties}
    others = {role: Connection({**properties, **roles.get(role, {}), **brokers}) for role in ROLES}
    return Endpoints(operator=Connection(properties), **others)


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
    endpoints: Endpoints, options: Options, lines: list[Line] | None, display: Display
) -> DemoResult:
    """Run the whole demo on a cluster.

    Raises:
        KpsplitError: it did not come to its end.
    """
    timeline = Timeline(monotonic(), options.topic_name())
    connection = endpoints.operator
    with Admin(connection, PATIENCE_SECONDS) as operations, _folder() as folder:
        display.say(
            f"topic {timeline.topic}: {PARTITIONS} partitions; {len(KPSPLIT_WRITERS)} kpsplit producers "
            "and a plain one that knows nothing of kpsplit"
        )
        make_topic(connection, timeline.topic)
        enrol(operations, timeline.topic, display.say)
        orders = orders_for(options, lines, endpoints.producer, timeline.topic, folder)
        topic = timeline.topic
        offsets = offset_log_partitions(ClusterAdmin(connection))
        with (
            WriterProcesses(orders) as children,
            MemberProcesses(orders_of(endpoints.consumer, topic, folder)) as members,
            DrainWatch(connection, group_of(topic), offsets, display.say) as drains,
        ):
            group = GroupActions(operations, topic, members, drains, display.say)
            scenario = Scenario(options, operations, children, group, timeline, display)
            scenario.run(connection)
            news = scenario.news()
        hot = hot_of(timeline)
        refused_before_reading(endpoints.consumer, operations, hot, display)
        journals = {o.name: read_journal(Path(o.journal)) for o in orders}
        states = [_state(operations, parent) for parent in scenario.parents]
        with Verification(endpoints.verifier, topic, report_path(options.html), display) as verification:
            lineages = [state.lineage for state in states]
            commits = read_commits(endpoints.verifier, group_of(topic), lineages, offsets)
            back = _read_back(endpoints.verifier, timeline, states, journals, lines, display)
            result = sum_up(
                timeline,
                scenario.news_before,
                news,
                _of(states, hot),
                back,
                outcome_of(group, back, lineages, commits),
                journals,
            )
            checked = verification.verdict()
        verdicts = [question(result) for question in QUESTIONS] + ([checked] if checked else [])
        result = replace(result, verdicts=tuple(verdicts))
        if not result.passed:
            _keep(folder, display)
            return result
        retired = retire_after_reading(endpoints.consumer, operations, result, display)
        return replace(result, verdicts=(*result.verdicts, retired))


def _read_back(
    connection: Connection,
    timeline: Timeline,
    states: list[PartitionState],
    journals: Journals,
    lines: list[Line] | None,
    display: Display,
) -> ReadBack:
    began = monotonic()
    display.say("reading everything back along the lineage, with a fresh client")
    reading = Reading([state.lineage for state in states], lines)
    reading.take_journals(timeline.topic, journals)
    for state in states:
        reading.read(connection, state)
    back = reading.result()
    display.say(f"    {back.history.read:,} records in {monotonic() - began:.1f} s: {back.history}")
    return back


def _of(states: list[PartitionState], parent: PhysicalPartition) -> PartitionState:
    return next(state for state in states if state.parent == parent)


def _state(operations: Admin, parent: PhysicalPartition) -> PartitionState:
    state = operations.view().state(parent)
    if state is None:
        raise KpsplitError(f"{parent} is not enrolled any more")
    return state


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder for journals that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kpsplit-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(folder: Path, display: Display) -> None:
    """Keep the journals of a demo that failed."""
    kept = Path(tempfile.mkdtemp(prefix="kpsplit-demo-failed-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    display.say(f"the writers' journals are kept in {kept}")
