"""Looks at everything that kpsplit owns, and says what is wrong and what to do about it.

``diagnose`` is pure; each kind of trouble is one small function that yields the checks that fail, and a kind
without trouble is one check that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kpsplit.kafka.cluster_admin import TopicFacts
from kpsplit.kafka.enrolment import looks_like_subtopic
from kpsplit.kafka.initialise import misfits, own_topics
from kpsplit.kafka.plans import Check
from kpsplit.kafka.preconditions import LogFacts, truncation
from kpsplit.kafka.subtopics import copied_config, is_sealed
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopic, SubTopicState
from kpsplit.splitter.records.keys import CONTROL_TOPIC, PRODUCERS_TOPIC
from kpsplit.splitter.states import Phase
from kpsplit.splitter.writers import Registrations

SHORTEST_LEASE_MS = 1000
LONGEST_LEASE_MS = 60_000
PATIENCE_MS = 60_000
"""An attempt that is not fenced may take so long; a fenced one has its own max-pause."""

_CLOCK_TOLERANCE_MS = 60_000
_OVERRIDDEN = {"max.message.bytes"}


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in the cluster. ``topics`` holds own, enrolled and sub-topics as far as they exist."""

    view: ControlView
    registrations: Registrations
    producers_garbage: int
    brokers: int
    names: frozenset[str]
    topics: dict[str, TopicFacts]
    logs: dict[PhysicalPartition, dict[PhysicalPartition, LogFacts]]
    now_ms: int
    newer: tuple[str, ...] = field(default=())
    """What records of a newer version were found, by topic."""


def diagnose(found: Findings) -> list[Check]:
    """Return one check for each kind of trouble that is absent, and one for each trouble that is there."""
    checks = []
    for name, well, look in _KINDS:
        troubles = list(look(found))
        checks += [Check(name, False, *trouble) for trouble in troubles]
        if not troubles:
            checks.append(Check(name, True, well))
    expired = [r for r in found.registrations.all() if not r.closed and found.registrations.is_expired(r)]
    checks.append(
        Check(
            "expired producers",
            True,
            f"{len(expired)} registrations have expired"
            + (f", of {', '.join(sorted({r.client_id for r in expired})[:5])}" if expired else ""),
            "none: they register again before they write, and those that are gone need nothing"
            if expired
            else "",
        )
    )
    return checks


Trouble = tuple[str, str]


def _own_topics(found: Findings) -> Iterator[Trouble]:
    for own in own_topics(None):
        topic = found.topics.get(own.name)
        if topic is None:
            yield f"there is no topic {own.name}", "run: kpsplit init"
        else:
            for wrong in misfits(own, topic, found.brokers):
                what, _, remedy = wrong.partition(": ")
                yield f"{own.name}: {what}", remedy


def _versions(found: Findings) -> Iterator[Trouble]:
    for text in found.newer:
        yield text, "upgrade this kpsplit: it cannot see what the newer one has recorded"


def _settings(found: Findings) -> Iterator[Trouble]:
    lease = found.view.settings.lease_ms
    if not found.view.initialised:
        yield "the control topic holds no settings", "run: kpsplit init"
    elif not SHORTEST_LEASE_MS <= lease <= LONGEST_LEASE_MS:
        yield (
            f"the lease of {lease} ms is outside {SHORTEST_LEASE_MS} to {LONGEST_LEASE_MS} ms",
            "a short one expires slow producers, a long one makes operations wait for dead ones",
        )


def _garbage(found: Findings) -> Iterator[Trouble]:
    remedy = "find who else writes there and take the right away from it; the records were skipped"
    if found.view.garbage:
        yield (
            f"{CONTROL_TOPIC} holds {found.view.garbage} records that kpsplit did not write "
            f"(the last: {found.view.last_garbage})",
            remedy,
        )
    if found.producers_garbage:
        yield f"{PRODUCERS_TOPIC} holds {found.producers_garbage} records that kpsplit did not write", remedy


def _enrolments(found: Findings) -> Iterator[Trouble]:
    for name, enrolment in sorted(found.view.enrolments.items()):
        topic = found.topics.get(name)
        if topic is None:
            yield f"enrolled topic {name} does not exist", "restore it, or leave it: nothing is done to it"
            continue
        if topic.topic_id != enrolment.topic_id:
            yield (
                f"topic {name} was deleted and made again since it was enrolled",
                f"run: kpsplit enroll {name}",
            )
        if topic.compacted:
            yield f"enrolled topic {name} is compacted now", f"set cleanup.policy=delete on {name}"
        if topic.replication >= 3 and topic.min_insync < 2:
            yield (
                f"topic {name} has min.insync.replicas={topic.min_insync}",
                f"set min.insync.replicas=2 on {name}",
            )
        if topic.config.get("unclean.leader.election.enable") == "true":
            yield (
                f"topic {name} allows unclean elections",
                f"set unclean.leader.election.enable=false on {name}",
            )
        if not enrolment.settled:
            yield f"the enrolment of {name} is not settled", f"run: kpsplit enroll {name}"


def _attempts(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        attempt = state.attempt
        if attempt is None or state.phase is Phase.FROZEN:
            continue
        age = found.now_ms - attempt.started_ms
        if age > attempt.max_pause_ms + PATIENCE_MS:
            yield (
                f"{parent}: {attempt.kind} by {attempt.operator} is {state.phase} since {age / 1000:.0f} s",
                f"if that operator is dead run: kpsplit resume {parent}, or kpsplit abort {parent}",
            )


def _clocks(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        for attempt in (state.attempt, state.last.attempt if state.last else None):
            ahead = 0 if attempt is None else attempt.started_ms - found.now_ms
            if attempt is not None and ahead > _CLOCK_TOLERANCE_MS:
                yield (
                    f"{parent}: the clock of {attempt.operator} was {ahead / 1000:.0f} s ahead of this one",
                    "set the clocks; kpsplit does not depend on them, retention by time does",
                )


def _frozen(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        if state.phase is Phase.FROZEN:
            yield (
                f"{parent} is frozen: {state.frozen_reason}",
                f"decide what is lost, then run: kpsplit resume {parent} --thaw",
            )


def _truncated(found: Findings) -> Iterator[Trouble]:
    for parent, logs in sorted(found.logs.items()):
        problem = truncation(found.view.states[parent], logs)
        if problem is not None:
            yield f"{parent}: {problem}", "do no operation on it before you know what is lost"


def _subtopics(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        for subtopic in state.subtopics:
            trouble = _subtopic(found, parent, state, subtopic)
            if trouble is not None:
                yield trouble


def _subtopic(
    found: Findings, parent: PhysicalPartition, state: PartitionState, subtopic: SubTopic
) -> Trouble | None:
    topic = found.topics.get(subtopic.name)
    kind = subtopic.state
    if topic is None:
        lost = kind in (SubTopicState.ACTIVE, SubTopicState.SEALED)
        if lost:
            return f"{subtopic.name}, {kind} sub-topic of {parent}, does not exist", "restore it from a copy"
        return None
    if subtopic.topic_id is not None and topic.topic_id != subtopic.topic_id:
        return f"{subtopic.name} was deleted and made again", "restore the old one; do not write to this one"
    if kind in (SubTopicState.ABANDONED, SubTopicState.RETIRED):
        remedy = f"run: kpsplit retire {parent}" if kind is SubTopicState.ABANDONED else "delete it"
        return f"{subtopic.name} is left over from an attempt that is over ({kind})", remedy
    if kind is SubTopicState.SEALED and not is_sealed(topic.config):
        return (
            f"sealed sub-topic {subtopic.name} accepts writes",
            f"set max.message.bytes=0 on {subtopic.name}",
        )
    if kind is SubTopicState.ACTIVE:
        return _differing(found, parent, topic)
    return None


def _differing(found: Findings, parent: PhysicalPartition, topic: TopicFacts) -> Trouble | None:
    beside = found.topics.get(parent.topic)
    if beside is None:
        return None
    wanted = copied_config(beside.explicit)
    other = [n for n, v in sorted(wanted.items()) if topic.config.get(n) != v and n not in _OVERRIDDEN]
    if not other:
        return None
    return (
        f"{topic.name} has another {other[0]} than {parent.topic}",
        f"set {other[0]}={wanted[other[0]]} on {topic.name}, if that is what you want",
    )


def _strangers(found: Findings) -> Iterator[Trouble]:
    owned = {t.name for s in found.view.states.values() for t in s.subtopics}
    for name in sorted(found.names - owned):
        parent = name.rpartition(".split-")[0]
        if looks_like_subtopic(name) and parent in found.view.enrolments:
            yield (
                f"{name} looks like a sub-topic of {parent}, but is in no lineage",
                "kpsplit never touches it: delete it if nobody needs it",
            )


_KINDS: tuple[tuple[str, str, Callable[[Findings], Iterator[Trouble]]], ...] = (
    ("own topics", "kpsplit's topics are as they have to be", _own_topics),
    ("versions", "no records of a newer kpsplit", _versions),
    ("settings", "the lease is set", _settings),
    ("garbage", "nobody else writes to kpsplit's topics", _garbage),
    ("enrolments", "every enrolled topic is as it has to be", _enrolments),
    ("attempts", "no attempt has been left behind", _attempts),
    ("clocks", "no operator's clock is ahead", _clocks),
    ("frozen", "no partition is frozen", _frozen),
    ("logs", "no log is shorter than its lineage", _truncated),
    ("sub-topics", "every sub-topic is what its lineage says", _subtopics),
    ("strangers", "no other topic looks like a sub-topic", _strangers),
)
