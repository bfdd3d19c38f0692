"""Looks at everything that kpsplit owns, and says what is wrong and what to do about it.

``diagnose`` is pure; each kind of trouble is one small function that yields the checks that fail, and a kind
without trouble is one check that holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby

from kpsplit.control.facts import OpenTransaction
from kpsplit.control.own_topics import (
    CHANGELOG_SEGMENT_BYTES,
    SEGMENT_BYTES,
    long_segments,
    misfits,
    own_topics,
)
from kpsplit.control.plans import WRITERS, Check, Sample
from kpsplit.control.preconditions import LogFacts, deposed, truncation
from kpsplit.control.subtopics import SEALED_CONFIG, copied_config, is_sealed
from kpsplit.errors import duration
from kpsplit.kafka.cluster_admin import TopicFacts
from kpsplit.splitter.control_plane import ControlView, Registrations, unacknowledged
from kpsplit.splitter.key_range import unread_text, without_slots
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase, SubTopic, SubTopicState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import (
    CHANGELOG_PREFIX,
    CONTROL_TOPIC,
    OWN_TOPICS,
    PRODUCERS_TOPIC,
    slots_generation,
    subtopics_prefix,
)

SHORTEST_LEASE_MS = 1000
LONGEST_LEASE_MS = 60_000
PATIENCE_MS = 60_000
"""An attempt that is not fenced may take so long; a fenced one has its own max-pause."""

_CLOCK_TOLERANCE_MS = 60_000
_OVERRIDDEN = {"max.message.bytes"}


OVERWRITTEN = "overwritten"
"""The check of garbage over a registration that did not close: to remove it would remove the registration."""
_MOST_NAMED = 3
_PLAIN = re.compile(rb"[A-Za-z0-9._/-]{1,64}")


@dataclass(frozen=True, slots=True, order=True)
class SetAside:
    """A record of kpsplit's topics that ``kpsplit doctor`` names and ``--forget NAME`` removes.

    ``check``: the kind of trouble that it is. ``why``: what is wrong with it.
    """

    check: str
    topic: str
    why: str
    partition: int
    key: bytes

    @property
    def name(self) -> str:
        """What people call it: short, and safe in any shell, whatever the key is."""
        plain = _PLAIN.fullmatch(self.key) is not None
        key = self.key.decode("ascii") if plain else f"sha256-{sha256(self.key).hexdigest()[:16]}"
        return f"{self.topic.removeprefix('__kpsplit.')}/{self.partition}:{key}"


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in the cluster.

    ``counts`` is the partition count of every topic by its name; ``topics`` holds own, enrolled and
    sub-topics, and changelogs, as far as they exist.
    """

    view: ControlView
    brokers: int
    counts: Mapping[str, int]
    topics: dict[str, TopicFacts]
    logs: dict[PhysicalPartition, dict[PhysicalPartition, LogFacts]]
    now_ms: int
    newer: tuple[str, ...] = field(default=())
    """What records of a newer version were found, by topic."""
    set_aside: tuple[SetAside, ...] = field(default=())
    open_transaction: OpenTransaction | None = None
    """The first that was found in kpsplit's own topics."""
    plain: Mapping[PhysicalPartition, Sample] = field(default_factory=dict)
    """The newest records in the overflow of each parent that is split."""


def producers_set_aside(
    view: ControlView, registrations: Registrations, garbage: Mapping[bytes, str]
) -> Iterator[SetAside]:
    """Yield the records of the producers topic that no operation goes by, or that hold operations up.

    One for each key, so that what is said of it can be done: to remove what stands over a registration
    removes the registration too.
    """
    useless = dict(_useless(view, registrations))
    for key, why in useless.items():
        yield SetAside("registrations", PRODUCERS_TOPIC, why, 0, key)
    owners = {record.key: record.client_id for record in registrations.all()}
    wrong = {key: ("garbage", f"not written by kpsplit ({why})") for key, why in garbage.items()}
    for newer in registrations.newer.values():
        topics = sorted(set(newer.topics) & view.enrolments.keys())
        refused = f"no split or merge of {', '.join(topics)}" if topics else "of no enrolled topic"
        wrong[newer.key] = "versions", f"a producer of a newer kpsplit: {refused}"
    for key, (check, why) in wrong.items():
        if key in useless:
            continue
        over = f", over the registration of {owners[key]}" if key in owners else ""
        kept = registrations.overwritten(key)
        text = "not written by kpsplit (in a newer format)" if kept and check == "versions" else why
        yield SetAside(OVERWRITTEN if kept else check, PRODUCERS_TOPIC, f"{text}{over}", 0, key)


def _useless(view: ControlView, registrations: Registrations) -> Iterator[tuple[bytes, str]]:
    """Yield the keys of registrations that nobody asks, or that do not answer, and why."""
    for record in registrations.all():
        if not record.closed and not view.enrolments.keys() & set(record.topics):
            yield record.key, "of no enrolled topic: no operation asks its producer"
    for parent, state in sorted(view.states.items()):
        for record in unacknowledged(registrations.all(), state):
            yield record.key, f"{parent} was rolled back because it did not acknowledge the fence"


def diagnose(found: Findings) -> list[Check]:
    """Return one check for each kind of trouble that is absent, and one for each trouble that is there."""
    checks = []
    for name, well, look in _KINDS:
        troubles = list(look(found))
        checks += [Check(name, False, *trouble) for trouble in troubles]
        if not troubles:
            checks.append(Check(name, True, well))
    return [*checks, *_plain_writers(found)]


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


def _segments(found: Findings) -> Iterator[Trouble]:
    for name, topic in sorted(found.topics.items()):
        if name in OWN_TOPICS or name.startswith(CHANGELOG_PREFIX):
            wrong = long_segments(topic)
            if wrong is not None:
                size = CHANGELOG_SEGMENT_BYTES if name.startswith(CHANGELOG_PREFIX) else SEGMENT_BYTES
                yield wrong, f"set segment.bytes={size} on {name} with kafka-configs"


def _versions(found: Findings) -> Iterator[Trouble]:
    for text in found.newer:
        yield text, "upgrade this kpsplit: it cannot see what the newer one has recorded"
    yield from _set_aside(
        found, "versions", "upgrade this kpsplit; if the program that wrote it is gone for good, run: {}"
    )


def _settings(found: Findings) -> Iterator[Trouble]:
    lease = found.view.settings.lease_ms
    if not found.view.initialised:
        yield "the control topic holds no settings", "run: kpsplit init"
    elif not SHORTEST_LEASE_MS <= lease <= LONGEST_LEASE_MS:
        yield (
            f"the lease of {lease} ms is outside {SHORTEST_LEASE_MS} to {LONGEST_LEASE_MS} ms",
            "a short one runs out for slow producers, a long one makes operations wait for dead ones",
        )


def _garbage(found: Findings) -> Iterator[Trouble]:
    remedy = "find who else writes there and take the right away from it; the records were skipped"
    if found.view.garbage:
        yield (
            f"{CONTROL_TOPIC} holds {found.view.garbage} records that kpsplit did not write "
            f"(the last: {found.view.last_garbage})",
            remedy,
        )
    yield from _set_aside(found, "garbage", f"{remedy}; to remove them: {{}}")
    yield from _set_aside(
        found,
        OVERWRITTEN,
        "close that producer, or let it answer an operation: its own record takes the place; if it does not "
        "run any more, the next operation removes both",
    )


def _registrations(found: Findings) -> Iterator[Trouble]:
    yield from _set_aside(found, "registrations", "if that producer does not run any more, run: {}")


def _set_aside(found: Findings, check: str, remedy: str) -> Iterator[Trouble]:
    """Yield one trouble for all records with the same thing wrong; ``remedy`` has a place for the command."""
    wrong = sorted(record for record in found.set_aside if record.check == check)
    for (topic, why), records in groupby(wrong, lambda record: (record.topic, record.why)):
        names = [record.name for record in records]
        more = f" and {len(names) - _MOST_NAMED} more (-o json names them)" if names[_MOST_NAMED:] else ""
        text = f"{topic}: {why}: {', '.join(names[:_MOST_NAMED])}{more}"
        yield text, remedy.format(forget_command(names[:_MOST_NAMED]))


def forget_command(names: Iterable[str]) -> str:
    return " ".join(["kpsplit doctor", *(f"--forget {name}" for name in names)])


def _transactions(found: Findings) -> Iterator[Trouble]:
    hung = found.open_transaction
    if hung is not None:
        place = hung.place
        yield (
            hung.text,
            "it ends with its time-out (transaction.max.timeout.ms at most); to end it now run: "
            f"kafka-transactions.sh abort --topic {place.topic} --partition {place.partition} "
            f"--start-offset {hung.offset}",
        )


def _enrolments(found: Findings) -> Iterator[Trouble]:
    for name, enrolment in sorted(found.view.enrolments.items()):
        topic = found.topics.get(name)
        if topic is None:
            yield f"enrolled topic {name} does not exist", "restore it, or leave it: nothing is done to it"
            continue
        verb = "unenroll" if enrolment.returning else "enroll"
        again, least = f"run: kpsplit {verb} {name}", topic.min_insync
        if topic.topic_id != enrolment.topic_id:
            yield f"topic {name} was deleted and made again since it was enrolled", again
        if topic.compacted:
            yield f"enrolled topic {name} is compacted now", f"set cleanup.policy=delete on {name}"
        if topic.replication >= 3 and least < 2:
            yield f"topic {name} has min.insync.replicas={least}", f"set min.insync.replicas=2 on {name}"
        if topic.config.get("unclean.leader.election.enable") == "true":
            remedy = f"set unclean.leader.election.enable=false on {name}"
            yield f"topic {name} allows unclean elections", remedy
        if enrolment.returning:
            yield enrolment.change_text, again
            continue
        if not enrolment.settled:
            yield f"the enrolment of {name} is not settled: every member waits a lease when it starts", again
        if enrolment.former is not None:
            yield f"{enrolment.change_text}; {enrolment.former.topic} is not removed", again
        yield from _other_slots(found, enrolment)


def _other_slots(found: Findings, enrolment: Enrolment) -> Iterator[Trouble]:
    """Yield slots topics of a topic that its enrolment does not name."""
    named = {division.topic for division in enrolment.divisions} | {enrolment.slots_topic}
    for name in sorted(found.counts.keys() - named):
        if slots_generation(name, enrolment.topic) is not None:
            yield (
                f"{name} is left over from a change of the slots of {enrolment.topic}",
                f"to change them run: kpsplit enroll {enrolment.topic} --slots N; else delete it",
            )


def _growth(found: Findings) -> Iterator[Trouble]:
    for name, enrolment in sorted(found.view.enrolments.items()):
        topic, slots = found.topics.get(name), enrolment.slots
        if topic is None or slots is None:
            continue
        has = found.counts.get(enrolment.slots_topic, 0)
        unread = without_slots(len(topic.partitions), slots, has)
        if unread:
            yield unread_text(name, unread), f"run: kpsplit enroll {name}"


def _attempts(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        attempt = state.attempt
        if attempt is None or state.phase is Phase.FROZEN:
            continue
        age = found.now_ms - attempt.started_ms
        if age > attempt.max_pause_ms + PATIENCE_MS:
            yield (
                f"{parent}: {attempt.kind} by {attempt.operator} has been {state.phase} for "
                f"{duration(age / 1000)}",
                f"if that operator is dead run: kpsplit resume {parent}, or kpsplit abort {parent}",
            )


def _clocks(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        for attempt in (state.attempt, state.last.attempt if state.last else None):
            ahead = 0 if attempt is None else attempt.started_ms - found.now_ms
            if attempt is not None and ahead > _CLOCK_TOLERANCE_MS:
                yield (
                    f"{parent}: the clock of {attempt.operator} was ahead of this one by "
                    f"{duration(ahead / 1000)}",
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
        for text in deposed(found.view.states[parent], logs).values():
            yield f"{parent}: {text}", "run kpsplit doctor again"


def _subtopics(found: Findings) -> Iterator[Trouble]:
    for parent, state in sorted(found.view.states.items()):
        yield from filter(None, (_subtopic(found, parent, subtopic) for subtopic in state.subtopics))


def _subtopic(found: Findings, parent: PhysicalPartition, subtopic: SubTopic) -> Trouble | None:
    topic = found.topics.get(subtopic.name)
    kind = subtopic.state
    if topic is None:
        if subtopic.in_lineage:
            return f"{subtopic.name}, {kind} sub-topic of {parent}, does not exist", "restore it from a copy"
        return None
    if subtopic.topic_id is not None and topic.topic_id != subtopic.topic_id:
        return f"{subtopic.name} was deleted and made again", "restore the old one; do not write to this one"
    if kind in (SubTopicState.ABANDONED, SubTopicState.RETIRED):
        abandoned = kind is SubTopicState.ABANDONED
        cause = "an attempt that is over" if abandoned else "a retirement that broke off"
        return f"{subtopic.name} is left over from {cause}", f"run: kpsplit retire {parent}"
    if kind is SubTopicState.SEALED and not is_sealed(topic.config):
        remedy = f"set {'='.join(SEALED_CONFIG)} on {subtopic.name}"
        return f"sealed sub-topic {subtopic.name} accepts writes", remedy
    if kind is SubTopicState.ACTIVE:
        return _differing(found, parent, topic)
    return None


def _differing(found: Findings, parent: PhysicalPartition, topic: TopicFacts) -> Trouble | None:
    beside = found.topics.get(parent.topic)
    if beside is None:
        return None
    wanted = copied_config(beside.explicit)
    other = next(
        (n for n in sorted(wanted) if topic.config.get(n) != wanted[n] and n not in _OVERRIDDEN), None
    )
    if other is None:
        return None
    remedy = f"set {other}={wanted[other]} on {topic.name}, if that is what you want"
    return f"{topic.name} has another {other} than {parent.topic}", remedy


def _plain_writers(found: Findings) -> Iterator[Check]:
    """Tell which split partitions are written to without kpsplit: that is legal, and nobody else says it."""
    for parent, sample in sorted(found.plain.items()):
        plain = sample.records - sample.stamped
        if plain:
            yield Check(
                WRITERS,
                True,
                f"{parent}: {plain} of the newest {sample.records} records in its overflow come from "
                "programs that do not use kpsplit (a plain Producer, an AIOProducer): they are read from "
                "there, in no order with those of the phantoms",
            )


def _strangers(found: Findings) -> Iterator[Trouble]:
    owned = {t.name for s in found.view.states.values() for t in s.subtopics}
    for name in sorted(found.counts.keys() - owned):
        parent = next((t for t in found.view.enrolments if name.startswith(subtopics_prefix(t))), None)
        if parent is not None:
            yield (
                f"{name} begins like a sub-topic of {parent}, but is in no lineage",
                "kpsplit never touches it, but a client with rights on the sub-topics has them there: delete "
                "it if nobody needs it, or rename it",
            )


_KINDS: tuple[tuple[str, str, Callable[[Findings], Iterator[Trouble]]], ...] = (
    ("own topics", "kpsplit's topics are as they have to be", _own_topics),
    ("segments", "the logs that kpsplit reads at a start are in small segments", _segments),
    ("versions", "no records of a newer kpsplit", _versions),
    ("settings", "the lease is set", _settings),
    ("garbage", "nobody else writes to kpsplit's topics", _garbage),
    ("registrations", "no registration holds operations up or is of no use", _registrations),
    ("transactions", "no transaction stays open in kpsplit's topics", _transactions),
    ("enrolments", "every enrolled topic is as it has to be", _enrolments),
    (
        "partitions",
        "every partition has slots; before you add partitions to an enrolled topic: keys move to other "
        "partitions, and their order across that is not kept",
        _growth,
    ),
    ("attempts", "no attempt has been left behind", _attempts),
    ("clocks", "no operator's clock is ahead", _clocks),
    ("frozen", "no partition is frozen", _frozen),
    ("logs", "no log is shorter than its lineage", _truncated),
    ("sub-topics", "every sub-topic is what its lineage says", _subtopics),
    ("strangers", "no other topic begins like a sub-topic", _strangers),
)
