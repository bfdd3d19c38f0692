"""Gathers what the doctor looks at, and removes the records that an operator gives up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from kpsplit.clock import Deadline, wall_ms
from kpsplit.control.doctor import OVERWRITTEN, Findings, SetAside, producers_set_aside
from kpsplit.control.facts import FactsGatherer
from kpsplit.control.plans import Sample, sample_partition
from kpsplit.control.preconditions import LogFacts
from kpsplit.control.session import ClusterSession
from kpsplit.errors import CheckFailedError, ConflictError, FutureVersionError, after_a_change
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.offset_log import OffsetExamination
from kpsplit.kafka.producers_log import ProducersLog
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import (
    CHANGELOG_PREFIX,
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    OWN_TOPICS,
    PRODUCERS_TOPIC,
)

OVERFLOW_SAMPLED = 200
"""So many of the newest records of an overflow are looked at."""


def examine(admin: ClusterAdmin, deadline: Deadline) -> Findings:
    """Look at everything that kpsplit owns; with fresh readers, as other ones may have stopped."""
    listed = admin.topics()
    changelogs = {name for name in listed if name.startswith(CHANGELOG_PREFIX)}
    topics = _needed(admin, changelogs | set(OWN_TOPICS), listed, deadline)
    names = frozenset(topics)
    log = topics.get(OFFSETS_TOPIC)
    offsets = OffsetExamination(len(log.partitions) if log else 0)
    if log:
        offsets.read(admin.connection, deadline)
    view, newer = _view(admin, names, deadline)
    topics |= _of_lineages(admin, view, listed, deadline)
    unlisted = {d.topic for e in view.enrolments.values() for d in e.divisions} - listed.keys()
    counted = topics | {name: topic for name, topic in admin.certain(unlisted, deadline).items() if topic}
    counts = {**listed, **{name: len(topic.partitions) for name, topic in counted.items()}}
    own = [PhysicalPartition(name, n) for name in OWN_TOPICS for n in range(counts.get(name, 0))]
    gatherer = FactsGatherer(admin)
    logs = gatherer.logs([(s, set(s.lineage.sources())) for s in view.states.values()], deadline)
    return Findings(
        view=view,
        brokers=len(admin.brokers()),
        counts=counts,
        topics=topics,
        logs=logs,
        now_ms=wall_ms(),
        newer=(newer,) if newer else (),
        set_aside=tuple(sorted([*_of_producers(admin, view, names, deadline), *_of_offsets(offsets, view)])),
        open_transaction=gatherer.hung(own, deadline),
        plain=_plain(admin, view, logs, deadline),
    )


def _plain(
    admin: ClusterAdmin,
    view: ControlView,
    logs: Mapping[PhysicalPartition, Mapping[PhysicalPartition, LogFacts]],
    deadline: Deadline,
) -> dict[PhysicalPartition, Sample]:
    """Return the newest records in the overflow of each parent that is split, where there are any."""
    found = {}
    for parent, state in view.states.items():
        end = logs[parent][parent].end if parent in logs[parent] else None
        start = next((s.start for s in state.lineage.open_overflows() if s.source == parent), None)
        if start is None or end is None or end <= start:
            continue
        most, count = min(OVERFLOW_SAMPLED, end - start), admin.partition_count(parent.topic)
        logical = parent.partition, count
        found[parent] = sample_partition(admin, parent, most, logical, deadline, state.home(parent))
    return found


def _view(admin: ClusterAdmin, names: frozenset[str], deadline: Deadline) -> tuple[ControlView, str | None]:
    if CONTROL_TOPIC not in names:
        return ControlView(), None
    tail = ControlTail(admin.connection)
    try:
        tail.read_to_end(deadline)
    except FutureVersionError as error:
        return tail.view, f"{CONTROL_TOPIC}: {error.message}"
    finally:
        tail.close()
    return tail.view, None


def _of_producers(
    admin: ClusterAdmin, view: ControlView, names: frozenset[str], deadline: Deadline
) -> Iterator[SetAside]:
    if PRODUCERS_TOPIC in names:
        log = ProducersLog(admin.connection)
        try:
            yield from producers_set_aside(view, log.read(deadline), log.garbage)
        finally:
            log.close()


def _of_offsets(offsets: OffsetExamination, view: ControlView) -> Iterator[SetAside]:
    """``view``: read after the offset log, so that it knows every segment that an honest commit lists."""

    def segments(parent: PhysicalPartition) -> set[int] | None:
        state = view.state(parent)
        return None if state is None else {segment.id for segment in state.lineage}

    for record in offsets.unfit(segments):
        check = "versions" if record.newer else "garbage"
        why = record.why if record.newer else f"not written by kpsplit ({record.why})"
        yield SetAside(check, OFFSETS_TOPIC, why, record.partition, record.key)


def _of_lineages(
    admin: ClusterAdmin, view: ControlView, listed: Collection[str], deadline: Deadline
) -> dict[str, TopicFacts]:
    """Return the enrolled topics and the sub-topics, those that should be gone as far as they are listed."""
    subtopics = [t for state in view.states.values() for t in state.subtopics]
    needed = {t.name for t in subtopics if t.in_lineage}
    found = _needed(admin, needed | set(view.enrolments), listed, deadline)
    left_over = {t.name for t in subtopics} & set(listed) - needed
    return found | {name: topic for name in sorted(left_over) if (topic := admin.find(name)) is not None}


def _needed(
    admin: ClusterAdmin, wanted: Collection[str], listed: Collection[str], deadline: Deadline
) -> dict[str, TopicFacts]:
    """Return topics that have to be there, without those that are certainly missing.

    Lists of all topics leave out what we may not describe, and what a stale broker does not know.
    """
    found = {name: topic for name in wanted if name in listed and (topic := admin.find(name)) is not None}
    others = admin.certain([name for name in wanted if name not in found], deadline)
    return found | {name: admin.describe(name) for name, topic in others.items() if topic is not None}


def forget(session: ClusterSession, records: Iterable[SetAside]) -> None:
    wanted = set(records)
    for record in sorted(r for r in wanted if r.check == OVERWRITTEN):
        raise CheckFailedError(
            f"{record.name}: {record.why}: nothing was removed", hint="close that producer instead"
        )
    deadline = session.begin()
    there = set(examine(session.admin, deadline).set_aside)
    if not wanted <= there:
        missing = min(wanted - there).name
        raise ConflictError(f"{missing} is not what it was any more", hint="run: kpsplit doctor")
    deadline, where = session.begin(), {(r.topic, r.partition) for r in wanted}
    for number, (topic, partition) in enumerate(sorted(where)):
        keys = {r.key for r in wanted if (r.topic, r.partition) == (topic, partition)}
        tombstones = [(key, None) for key in sorted(keys)]
        with after_a_change("run it again: kpsplit doctor", done=number > 0):
            session.writer().write_all(topic, tombstones, deadline, partition=partition)
