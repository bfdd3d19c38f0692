"""What becomes of missing numbers: lost, open until a later run, or not to be judged; the next state. Pure.

A number is decided once its producer has left a certificate, and everything that it delivered can be read.
Without that: a run that leaves a state notes the number first, since it may be under way, says the next
time that it cannot be judged, and keeps it until the certificate comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.commit_checks import in_force
from kpsplit.spark_jobs.verification.counted import Span, Total, added_up
from kpsplit.spark_jobs.verification.findings import Check, Finding, Severity
from kpsplit.spark_jobs.verification.ledger import Held, Ledger, together
from kpsplit.spark_jobs.verification.numbers import Run, common, minus, united
from kpsplit.spark_jobs.verification.sequence_checks import Holes, Who
from kpsplit.spark_jobs.verification.state import (
    PartitionPast,
    State,
    forgotten,
    held_back,
    lost_unseen,
)
from kpsplit.spark_jobs.verification.writers import Writer, Writers
from kpsplit.splitter.lineage import PhysicalPartition

_UNDER_WAY = "; it may still be under way: a later run tells"
_OPEN = "; lost, failed or still under way: the producer left no certificate"
_EATEN = "; it may be among the data that cannot be read any more"
_HIDDEN = "; it may be hidden by a transaction that is open"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is said of some missing numbers, and whether that is the last word."""

    severity: Severity
    why: str
    final: bool


_LOST = Decision(Severity.FINDING, "", True)


class Decider:
    """Decides about missing numbers.

    Args:
        snapshot: with the certificates.
        past: what earlier runs know.
        going_on: whether a later run goes on from here.

    Attributes:
        eaten: the partitions of which something went that no run has read.
    """

    def __init__(self, snapshot: Snapshot, past: State, going_on: bool) -> None:
        self._past, self._going_on = past, going_on
        self.eaten = {lost.state.parent.partition for lost in lost_unseen(snapshot, past)}
        self._hidden, self._forgotten = held_back(snapshot), forgotten(snapshot, past)

    def findings(self, found: Iterable[Holes]) -> Iterator[Finding]:
        """Yield one finding per run of numbers that are not there."""
        for h in found:
            for check, runs, what in (
                (Check.MISSING, h.runs, "is not there"),
                (Check.STRAYS, h.strays, "went astray and was not sent again"),
            ):
                for part, decision in self.decided(h.writer, runs):
                    for first, last in part:
                        yield _finding(check, h.writer, first, last, what, decision)

    def decided(self, writer: Writer, runs: Iterable[Run]) -> Iterator[tuple[list[Run], Decision]]:
        """Yield rising runs in parts, each with its decision; what was said before is not said again."""
        partition = writer.parent.partition
        known = self._past.ledger(partition, writer.producer)
        beyond = known.next if self._out_of_sight(writer) else None
        eaten: list[Run] = []
        rest: list[Run] = []
        for first, last in runs:
            unseen = partition in self.eaten or (beyond is not None and first <= beyond <= last)
            (eaten if unseen else rest).append((first, last))
        if eaten:
            yield eaten, Decision(Severity.UNPROVEN, _EATEN, True)
        if not rest:
            return
        if self.final(writer):
            yield rest, _LOST
        else:
            yield from self._undecided(rest, known, _OPEN if writer.certificate is None else _HIDDEN)

    def final(self, writer: Writer) -> bool:
        """Tell whether nothing more is to be expected of a producer."""
        return writer.certificate is not None and writer.parent.partition not in self._hidden

    def _undecided(self, runs: list[Run], known: Ledger, why: str) -> Iterator[tuple[list[Run], Decision]]:
        if not self._going_on:
            yield runs, Decision(Severity.UNPROVEN, why, False)
            return
        before, untold = united(known.fresh, known.strays), minus(runs, known.doubted)
        if second_time := common(untold, before):
            yield second_time, Decision(Severity.UNPROVEN, why, False)
        if new := minus(untold, before):
            yield new, Decision(Severity.NOTE, _UNDER_WAY, False)

    def _out_of_sight(self, writer: Writer) -> bool:
        """Tell whether the number behind the known ones may have gone without being seen.

        Unread, or with an aborted transaction in what earlier runs read and nobody can read again.
        """
        partition = writer.parent.partition
        return self._past.past(partition).unread or (writer.transactional and partition in self._forgotten)


def _finding(check: Check, writer: Writer, first: int, last: int, what: str, decision: Decision) -> Finding:
    numbers = f"number {first}" if first == last else f"each of the numbers {first} to {last}"
    message = f"producer {writer.producer}: {numbers} {what}{decision.why}"
    return Finding(
        *(check, decision.severity, writer.parent, message, None, writer.producer),
        first=first,
        last=last,
        count=last - first + 1,
    )


@dataclass(frozen=True)
class Seen:
    """What a run has seen: the ground for the next one.

    ``doubtful``: whose numbers were there more than once, or belong to aborted transactions.
    """

    given: dict[Who, int]
    holes: list[Holes]
    arrived: dict[Who, list[Run]]
    spans: list[Span]
    totals: list[Total]
    doubtful: Collection[Who]
    defects: dict[int, int]

    @property
    def known(self) -> set[Who]:
        """The producers of which something is to be remembered, also if all that came of them went astray."""
        return self.given.keys() | {h.who for h in self.holes}


def successor(snapshot: Snapshot, past: State, now_ms: int, seen: Seen, decider: Decider) -> State:
    """Return the state that the next run begins with."""
    partitions = dict(past.partitions)
    commits = in_force(snapshot, past)
    for state in snapshot.states:
        number = state.parent.partition
        known = past.past(number)
        logged = [c for c in snapshot.commits if c.parent == state.parent]
        partitions[number] = PartitionPast(
            topic_id=state.topic_id,
            read=_read(snapshot, known, state.lineage.sources()),
            totals=tuple(added_up([*known.totals, *(t for t in seen.totals if t.partition == number)])),
            ledgers=_ledgers(snapshot, number, past, seen, decider),
            commits=tuple(c for c in commits if c.parent == state.parent),
            commits_read=max([known.commits_read, *(c.log_offset + 1 for c in logged)]),
            told=known.told + seen.defects.get(number, 0),
            unread=known.unread or number in decider.eaten,
        )
    return replace(past, made_ms=now_ms, partitions=partitions)


def _read(
    snapshot: Snapshot, known: PartitionPast, sources: Iterable[PhysicalPartition]
) -> dict[PhysicalPartition, int]:
    found = dict(known.read)
    for place in sources:
        if place in snapshot.bounds and place not in snapshot.gone:
            found[place] = snapshot.bounds[place].stable
    return found


def _ledgers(
    snapshot: Snapshot, partition: int, past: State, seen: Seen, decider: Decider
) -> dict[str, Ledger]:
    writers = Writers(snapshot)
    spans: dict[str, dict[int, Held]] = defaultdict(dict)
    for span in seen.spans:
        if span.partition == partition:
            spans[span.producer][span.segment] = Held(span.records, span.first, span.last)
    gaps = {h.writer.producer: h for h in seen.holes if h.writer.parent.partition == partition}
    found = dict(past.past(partition).ledgers)
    for who in sorted(seen.known):
        if who[0] == partition:
            writer, known = writers.get(*who), past.ledger(*who)
            told = _decided(known, writer, gaps.get(who[1]), seen.arrived.get(who, []), decider)
            found[who[1]] = replace(
                told,
                next=max(known.next, seen.given.get(who, 0)),
                doubtful=known.doubtful or who in seen.doubtful or bool(told.gone),
                closed=decider.final(writer),
                segments=together(known, spans[who[1]]),
            )
    return found


def _decided(
    known: Ledger, writer: Writer, gaps: Holes | None, arrived: list[Run], decider: Decider
) -> Ledger:
    """Return the ledger with every missing number where it belongs now."""
    gone: list[Run] = list(known.gone)
    still: list[Run] = []
    for runs in (gaps.runs, gaps.strays) if gaps else ():
        final = united(*(part for part, d in decider.decided(writer, runs) if d.final))
        gone, still = united(gone, final), united(still, minus(runs, final))
    before = united(known.fresh, known.doubted, known.strays)
    return replace(
        known,
        fresh=tuple(minus(still, before)),
        doubted=tuple(common(still, before)),
        gone=tuple(minus(gone, arrived)),
        strays=tuple(minus(gaps.strays, gone)) if gaps else (),
    )
