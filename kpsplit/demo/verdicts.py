"""The questions that decide between PASS and FAIL, beside the verification in Spark and the retirement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kpsplit.demo.result import DemoResult, PhantomStart, Verdict
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind

Question = Callable[[DemoResult], Verdict]


def nothing_went_wrong(result: DemoResult) -> Verdict:
    """Ask the history checker."""
    history = result.back.history
    return Verdict("history", history.clean, str(history).replace("\n", "; "))


def everything_arrived(result: DemoResult) -> Verdict:
    """On a cluster that works no send fails and none has an unknown outcome."""
    history = result.back.history
    ok = history.ok == history.sent == history.delivered
    return Verdict(
        "complete",
        ok,
        f"{history.sent:,} sent, {history.ok:,} reported as delivered, {history.failed:,} failed, "
        f"{history.unknown:,} unknown, {history.delivered:,} read back",
    )


def values_are_intact(result: DemoResult) -> Verdict:
    """Every value is what was sent."""
    altered = result.back.altered
    return Verdict("content", not altered, f"{altered} values differ from what was sent")


def readers_agree(result: DemoResult) -> Verdict:
    """Nothing in the logs contradicts the lineage, nothing was missing."""
    tallies = result.back.tallies.values()
    foreign = sum(sum(tally.foreign.values()) for tally in tallies)
    gaps = [gap for tally in tallies for gap in tally.gaps]
    malformed = sum(tally.malformed_headers for tally in tallies)
    ok = not foreign and not gaps and not malformed
    return Verdict(
        "reading", ok, f"{foreign} records contradict the lineage, {len(gaps)} gaps, {malformed} bad headers"
    )


def phantoms_begin_above(result: DemoResult) -> Verdict:
    """Offsets that anybody stored stay correct: phantoms begin above the parent's log end at the split."""
    wrong = [start for start in result.starts if not start.ok]
    worst = wrong or list(result.starts)
    told = ", ".join(f"{s.place}: {s.first} > {s.parent_end}" for s in worst)
    return Verdict("logical offsets", not wrong, told)


def the_group_missed_nothing(result: DemoResult) -> Verdict:
    """The group worked on every record, per key in order; twice only what a killed or suspended one had."""
    return Verdict("consumer group", result.group.verdict.good, str(result.group.verdict))


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
