"""Sets the demo up, has it played, reads everything back, retires, and returns the result."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kpsplit.control.operations import Operations
from kpsplit.demo import scenario
from kpsplit.demo.children import Children
from kpsplit.demo.chronicle import Chronicle
from kpsplit.demo.ground import Ground
from kpsplit.demo.group.acts import GroupActs, group_of, orders_of
from kpsplit.demo.group.committed import read_commits
from kpsplit.demo.group.drain import DrainWatch
from kpsplit.demo.group.members import Members
from kpsplit.demo.group.outcome import outcome_of
from kpsplit.demo.journal import read_journal
from kpsplit.demo.narrator import Narrator
from kpsplit.demo.options import KPSPLIT_WRITERS, PARTITIONS, Options, orders_for
from kpsplit.demo.process import PATIENCE_SECONDS
from kpsplit.demo.readback import ReadBack, Reading
from kpsplit.demo.result import DemoResult
from kpsplit.demo.retiring import refused_before_reading, retire_after_reading
from kpsplit.demo.summing_up import Journals, sum_up
from kpsplit.demo.traffic import Line
from kpsplit.demo.verdicts import QUESTIONS
from kpsplit.demo.verification import Verification, report_path
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState


def stage(ground: Ground, options: Options, lines: list[Line] | None, narrator: Narrator) -> DemoResult:
    """Run the whole demo on a cluster.

    Raises:
        KpsplitError: it did not come to its end.
    """
    chronicle = Chronicle(monotonic(), options.topic_name())
    connection = ground.operator
    with Operations(connection, PATIENCE_SECONDS) as operations, _folder() as folder:
        narrator.say(
            f"topic {chronicle.topic}: {PARTITIONS} partitions; {len(KPSPLIT_WRITERS)} kpsplit producers "
            "and a plain one that knows nothing of kpsplit"
        )
        scenario.make_topic(connection, chronicle.topic)
        scenario.enrol(operations, chronicle.topic, narrator.say)
        orders = orders_for(options, lines, ground.producer, chronicle.topic, folder)
        topic = chronicle.topic
        offsets = offset_log_partitions(ClusterAdmin(connection))
        with (
            Children(orders) as children,
            Members(orders_of(ground.consumer, topic, folder)) as members,
            DrainWatch(connection, group_of(topic), offsets, narrator.say) as drains,
        ):
            group = GroupActs(operations, topic, members, drains, narrator.say)
            play = scenario.Play(options, operations, children, group, chronicle, narrator)
            play.run(connection)
            news = play.news()
        hot = scenario.hot_of(chronicle)
        refused_before_reading(ground.consumer, operations, hot, narrator)
        journals = {o.name: read_journal(Path(o.journal)) for o in orders}
        states = [_state(operations, parent) for parent in play.parents]
        with Verification(ground.verifier, topic, report_path(options.html), narrator) as verification:
            lineages = [state.lineage for state in states]
            commits = read_commits(ground.verifier, group_of(topic), lineages, offsets)
            back = _read_back(ground.verifier, chronicle, states, journals, lines, narrator)
            result = sum_up(
                chronicle,
                play.news_before,
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
            _keep(folder, narrator)
            return result
        retired = retire_after_reading(ground.consumer, operations, result, narrator)
        return replace(result, verdicts=(*result.verdicts, retired))


def _read_back(
    connection: Connection,
    chronicle: Chronicle,
    states: list[PartitionState],
    journals: Journals,
    lines: list[Line] | None,
    narrator: Narrator,
) -> ReadBack:
    began = monotonic()
    narrator.say("reading everything back along the lineage, with a fresh client")
    reading = Reading([state.lineage for state in states], lines)
    reading.take_journals(chronicle.topic, journals)
    for state in states:
        reading.read(connection, state)
    back = reading.result()
    narrator.say(f"    {back.history.read:,} records in {monotonic() - began:.1f} s: {back.history}")
    return back


def _of(states: list[PartitionState], parent: PhysicalPartition) -> PartitionState:
    return next(state for state in states if state.parent == parent)


def _state(operations: Operations, parent: PhysicalPartition) -> PartitionState:
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


def _keep(folder: Path, narrator: Narrator) -> None:
    """Keep the journals of a demo that failed."""
    kept = Path(tempfile.mkdtemp(prefix="kpsplit-demo-failed-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    narrator.say(f"the writers' journals are kept in {kept}")
