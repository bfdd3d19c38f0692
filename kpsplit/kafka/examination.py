"""Gathers what the doctor looks at."""

from __future__ import annotations

from kpsplit.errors import FutureVersionError
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.doctor import Findings
from kpsplit.kafka.facts import FactsGatherer
from kpsplit.kafka.initialise import own_topics
from kpsplit.kafka.plans import wall_ms
from kpsplit.kafka.producers_log import ProducersLog
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import CONTROL_TOPIC, PRODUCERS_TOPIC
from kpsplit.splitter.writers import Registrations


def examine(connection: Connection, admin: ClusterAdmin, deadline: Deadline) -> Findings:
    """Look at everything that kpsplit owns; with fresh readers, as other ones may have stopped."""
    names = frozenset(admin.topics())
    view, newer = _view(connection, names, deadline)
    registrations, garbage, newer_too = _producers(connection, names, deadline)
    gatherer = FactsGatherer(connection, admin)
    logs = {}
    for parent, state in view.states.items():
        places = {s.source for s in state.lineage}
        logs[parent] = gatherer.logs(state, places, deadline)
    return Findings(
        view=view,
        registrations=registrations,
        producers_garbage=garbage,
        brokers=len(admin.brokers()),
        names=names,
        topics=_topics(admin, view, names),
        logs=logs,
        now_ms=wall_ms(),
        newer=tuple(text for text in (newer, newer_too) if text),
    )


def _view(
    connection: Connection, names: frozenset[str], deadline: Deadline
) -> tuple[ControlView, str | None]:
    if CONTROL_TOPIC not in names:
        return ControlView(), None
    tail = ControlTail(connection)
    try:
        tail.read_to_end(deadline)
    except FutureVersionError as error:
        return tail.view, f"{CONTROL_TOPIC}: {error.message}"
    finally:
        tail.close()
    return tail.view, None


def _producers(
    connection: Connection, names: frozenset[str], deadline: Deadline
) -> tuple[Registrations, int, str | None]:
    if PRODUCERS_TOPIC not in names:
        return Registrations(), 0, None
    log = ProducersLog(connection)
    try:
        return log.read(deadline), log.garbage, None
    except FutureVersionError as error:
        return Registrations(), log.garbage, f"{PRODUCERS_TOPIC}: {error.message}"
    finally:
        log.close()


def _topics(admin: ClusterAdmin, view: ControlView, names: frozenset[str]) -> dict[str, TopicFacts]:
    wanted = {own.name for own in own_topics(None)} | set(view.enrolments)
    wanted |= {t.name for state in view.states.values() for t in state.subtopics}
    found = {name: admin.find(name) for name in sorted(wanted & names)}
    return {name: topic for name, topic in found.items() if topic is not None}
