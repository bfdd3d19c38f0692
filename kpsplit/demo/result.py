"""What the demo found out, as values: the summary, the page and the last line are made of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kpsplit.control.status import PartitionProgress, Spread
from kpsplit.demo.endpoints import WriterNews
from kpsplit.demo.judge import GroupVerdict, ReadBack
from kpsplit.demo.records import JournalEntry
from kpsplit.demo.scenario import PLAIN_WRITER, SUSPENDED_WRITER
from kpsplit.demo.timeline import (
    Latencies,
    SegmentDrain,
    Series,
    Timeline,
    by_time,
    latencies,
    longest_waits,
    slowest,
    throughput,
    until_caught_up,
    without_suspended,
)
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """One question that was put to the result, and its answer."""

    question: str
    ok: bool
    answer: str


@dataclass(frozen=True, slots=True)
class PhantomStart:
    """A phantom's smallest logical offset, and the parent's log end and the split range's end below it."""

    segment: int
    place: str
    first: int | None
    parent_end: int
    above: int

    @property
    def ok(self) -> bool:
        """Return whether it is above both. A phantom that got no record cannot be wrong."""
        return self.first is None or self.first > max(self.parent_end, self.above - 1)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """``progress``: the group's range commits in the affected partition in the middle of the scenario."""

    verdict: GroupVerdict
    drains: tuple[SegmentDrain, ...]
    progress: PartitionProgress | None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything.

    ``control``: the latencies of the plain writer, which no fence can hold: where it waits, brokers are slow.
    ``held_elsewhere``: records of other partitions that were held. ``catching_up``: seconds from the end of
    the suspension until all that the suspended writer had under way was reported.
    """

    timeline: Timeline
    news: Mapping[str, WriterNews]
    state: PartitionState
    back: ReadBack
    group: GroupOutcome
    pauses: Spread
    latencies: Latencies
    control: Latencies
    longest_waits: tuple[float, ...]
    held_elsewhere: int
    catching_up: float
    starts: tuple[PhantomStart, ...]
    throughput: tuple[Series, ...]
    slowness: tuple[Series, ...]
    verdicts: tuple[DemoVerdict, ...] = ()

    @property
    def passed(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)


def figures(result: DemoResult) -> dict[str, int]:
    """Return the figures that programs read, by name."""
    history, pauses = result.back.history, result.pauses
    return {
        "sent": history.sent,
        "delivered": history.delivered,
        "lost": history.lost,
        "duplicated": history.duplicated,
        "out_of_order": history.out_of_order,
        "strays": result.back.strays,
        "pause_p50_ms": round(pauses.p50),
        "pause_p99_ms": round(pauses.p99),
        "pause_max_ms": round(pauses.most),
    }


def last_line(result: DemoResult) -> str:
    """Return the one line that programs read."""
    shown = " ".join(f"{name}={number}" for name, number in figures(result).items())
    failed = next((verdict for verdict in result.verdicts if not verdict.ok), None)
    if failed is None:
        return f"PASS {shown}"
    return f"FAIL {shown} reason={one_line(f'{failed.question}: {failed.answer}')}"


def failed_line(reason: str) -> str:
    """Return that line for a demo that did not come to its end."""
    return f"FAIL reason={one_line(reason)}"


def result_json(result: DemoResult) -> dict[str, Any]:
    """Return the result for programs: the figures, and the answer to each question."""
    return {"passed": result.passed, **figures(result), "verdicts": [asdict(v) for v in result.verdicts]}


def one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# -- the questions that decide between PASS and FAIL -----------------------------------------------


Question = Callable[[DemoResult], DemoVerdict]


def nothing_went_wrong(result: DemoResult) -> DemoVerdict:
    history = result.back.history
    return DemoVerdict("history", history.clean, str(history).replace("\n", "; "))


def everything_arrived(result: DemoResult) -> DemoVerdict:
    """On a cluster that works no send fails, none has an unknown outcome, and no record is in a log twice."""
    history = result.back.history
    ok = history.ok == history.sent == history.delivered == history.read
    deliveries = "" if history.read == history.delivered else f" in {history.read:,} deliveries"
    return DemoVerdict(
        "complete",
        ok,
        f"{history.sent:,} sent, {history.ok:,} reported as delivered, {history.failed:,} failed, "
        f"{history.unknown:,} unknown, {history.delivered:,} read back{deliveries}",
    )


def values_are_intact(result: DemoResult) -> DemoVerdict:
    altered = result.back.altered
    return DemoVerdict("content", not altered, f"{altered} values differ from what was sent")


def readers_agree(result: DemoResult) -> DemoVerdict:
    """Nothing in the logs contradicts the lineage, nothing was missing."""
    tallies = result.back.tallies.values()
    foreign = sum(sum(tally.foreign.values()) for tally in tallies)
    gaps = [gap for tally in tallies for gap in tally.gaps]
    malformed = sum(tally.malformed_headers for tally in tallies)
    ok = not foreign and not gaps and not malformed
    return DemoVerdict(
        "reading", ok, f"{foreign} records contradict the lineage, {len(gaps)} gaps, {malformed} bad headers"
    )


def phantoms_begin_above(result: DemoResult) -> DemoVerdict:
    """Offsets that anybody stored stay correct: phantoms begin above the parent's log end at the split."""
    wrong = [start for start in result.starts if not start.ok]
    worst = wrong or list(result.starts)
    answer = ", ".join(f"{s.place}: {s.first} > {s.parent_end}" for s in worst)
    return DemoVerdict("logical offsets", not wrong, answer)


def the_group_missed_nothing(result: DemoResult) -> DemoVerdict:
    """The group worked on every record, per key in order; twice only what a killed or suspended one had."""
    return DemoVerdict("consumer group", result.group.verdict.good, str(result.group.verdict))


QUESTIONS: tuple[Question, ...] = (
    nothing_went_wrong,
    everything_arrived,
    values_are_intact,
    readers_agree,
    phantoms_begin_above,
    the_group_missed_nothing,
)


def phantom_starts(lineage: Lineage, first_read: dict[int, int | None]) -> tuple[PhantomStart, ...]:
    """Return the start of every phantom beside the ends that it must be above."""
    found = []
    for segment in lineage:
        if segment.kind is not SegmentKind.PHANTOM:
            continue
        before = [lineage.get(i) for i in segment.predecessors]
        above = max((s.logical(s.end) for s in before if s.end is not None), default=0)
        found.append(
            PhantomStart(
                segment.id,
                str(segment.source),
                first_read.get(segment.id),
                _parent_end(lineage, before),
                above,
            )
        )
    return tuple(found)


def _parent_end(lineage: Lineage, before: Sequence[Segment]) -> int:
    """Return where the parent's own log ended when the ancestors of a segment were split off."""
    ends = []
    waiting = list(before)
    while waiting:
        segment = waiting.pop()
        if segment.source == lineage.parent and segment.end is not None:
            ends.append(segment.end)
        else:
            waiting += [lineage.get(i) for i in segment.predecessors]
    return max(ends, default=0)


# -- from journals, news and what was read back to the figures -------------------------------------


Journals = Mapping[str, Sequence[JournalEntry]]

THROUGHPUT_BIN_SECONDS = 1.0
"""Writers send in portions: shorter bins would show the portions, not the rate."""
LATENCY_BIN_SECONDS = 0.2


def sum_up(
    timeline: Timeline,
    before: Mapping[str, WriterNews],
    news: Mapping[str, WriterNews],
    state: PartitionState,
    back: ReadBack,
    group: GroupOutcome,
    journals: Journals,
) -> DemoResult:
    """Return the result, still without verdicts. ``before``: the writers' news before the first operation."""
    hot = state.parent.partition
    fences = timeline.fences
    late = None
    if timeline.suspension is not None:
        late = until_caught_up(journals.get(SUSPENDED_WRITER, ()), timeline.suspension)
    # Not those sent before all writers had started, nor those under way while their own writer was suspended.
    ours = [
        entry
        for name, entries in journals.items()
        if name != PLAIN_WRITER
        for entry in without_suspended(entries, late if name == SUSPENDED_WRITER else None)
        if entry.sent_at >= timeline.began
    ]
    plain = [e for e in journals.get(PLAIN_WRITER, ()) if e.sent_at >= timeline.began]
    first = {i: seen.first for i, seen in back.segments[state.parent].items()}
    return DemoResult(
        timeline=timeline,
        news=news,
        state=state,
        back=back,
        group=group,
        pauses=Spread.of(ms for n in news.values() for ms in n.pauses_ms),
        latencies=latencies(ours, hot, fences),
        control=latencies(plain, hot, fences),
        longest_waits=tuple(longest_waits(ours, hot, fences)),
        held_elsewhere=_held_elsewhere(before, news, str(state.parent)),
        catching_up=late.ended - timeline.suspension.ended if late and timeline.suspension else 0.0,
        starts=phantom_starts(state.lineage, first),
        throughput=_throughput(timeline, state, back, journals),
        slowness=_slowness(timeline, ours, plain, hot),
    )


def _held_elsewhere(before: Mapping[str, WriterNews], after: Mapping[str, WriterNews], affected: str) -> int:
    """Return how many records of other partitions were held since, by writers that were not suspended."""
    return sum(
        held - before[name].held_in.get(partition, 0)
        for name, news in after.items()
        if name != SUSPENDED_WRITER and name in before
        for partition, held in news.held_in.items()
        if partition != affected
    )


def _throughput(
    timeline: Timeline, state: PartitionState, back: ReadBack, journals: Journals
) -> tuple[Series, ...]:
    """Return records per second by physical partition, the affected one and its phantoms first."""
    times: dict[PhysicalPartition, list[float]] = defaultdict(list)
    for name, entries in journals.items():
        for entry in entries:
            # Lines of a file are known by their number alone.
            place = back.places.get((name, entry.sequence)) or back.places.get(("", entry.sequence))
            if place is not None and entry.reported_at is not None:
                times[place].append(entry.reported_at)
    affected = state.lineage.sources()
    order = [*affected, *sorted(place for place in times if place not in affected)]
    span = timeline.ended - timeline.began
    return tuple(
        throughput(str(place), times.get(place, ()), timeline.began, span, THROUGHPUT_BIN_SECONDS)
        for place in order
    )


def _slowness(
    timeline: Timeline, ours: Sequence[JournalEntry], plain: Sequence[JournalEntry], hot: int
) -> tuple[Series, ...]:
    """Return the greatest latency (ms) by time: affected partition, the others, the others of the control."""
    span = timeline.ended - timeline.began
    chosen = (
        ("affected partition", [e for e in ours if e.partition == hot]),
        ("other partitions", [e for e in ours if e.partition != hot]),
        ("other partitions, plain writer", [e for e in plain if e.partition != hot]),
    )
    return tuple(
        by_time(
            name,
            [(e.sent_at, e.latency * 1000) for e in entries if e.latency is not None],
            *(timeline.began, span, LATENCY_BIN_SECONDS, slowest),
        )
        for name, entries in chosen
    )
