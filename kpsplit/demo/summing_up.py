"""From journals, news and what was read back to the figures of the result. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kpsplit.demo.chronicle import Chronicle, Span
from kpsplit.demo.figures import (
    Series,
    Spread,
    by_time,
    latencies,
    longest_waits,
    throughput,
    until_caught_up,
    without_suspended,
)
from kpsplit.demo.group.outcome import GroupOutcome
from kpsplit.demo.journal import Entry
from kpsplit.demo.options import PLAIN_WRITER, SUSPENDED
from kpsplit.demo.orders import News
from kpsplit.demo.readback import ReadBack, RecordId
from kpsplit.demo.result import DemoResult
from kpsplit.demo.verdicts import phantom_starts
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

Journals = Mapping[str, Sequence[Entry]]

BIN_SECONDS = 0.2
"""Of the pictures."""


def sum_up(
    chronicle: Chronicle,
    before: Mapping[str, News],
    news: Mapping[str, News],
    state: PartitionState,
    back: ReadBack,
    group: GroupOutcome,
    journals: Journals,
) -> DemoResult:
    """Return the result, still without verdicts. ``before``: the writers' news before the first operation."""
    hot = state.parent.partition
    fences = chronicle.fences
    late = _catching_up(journals, chronicle)
    ours = _undisturbed(journals, chronicle)
    plain = [e for e in journals.get(PLAIN_WRITER, ()) if e.sent_at >= chronicle.began]
    first = {i: seen.first for i, seen in back.segments[state.parent].items()}
    return DemoResult(
        chronicle=chronicle,
        news=news,
        state=state,
        back=back,
        group=group,
        pauses=Spread.of(ms for n in news.values() for ms in n.pauses_ms),
        latencies=latencies(ours, hot, fences),
        control=latencies(plain, hot, fences),
        longest_waits=tuple(longest_waits(ours, hot, fences)),
        held_elsewhere=_held_elsewhere(before, news, str(state.parent)),
        catching_up=late.ended - chronicle.suspension.ended if late and chronicle.suspension else 0.0,
        starts=phantom_starts(state.lineage, first),
        throughput=_throughput(chronicle, state, back, journals),
        slowness=_slowness(chronicle, ours, plain, hot),
    )


def _held_elsewhere(before: Mapping[str, News], after: Mapping[str, News], affected: str) -> int:
    """Return how many records of other partitions were held since, by writers that were not suspended."""
    return sum(
        held - before[name].held_in.get(partition, 0)
        for name, news in after.items()
        if name != SUSPENDED and name in before
        for partition, held in news.held_in.items()
        if partition != affected
    )


def _undisturbed(journals: Journals, chronicle: Chronicle) -> list[Entry]:
    """Return the records of kpsplit's producers that tell about fences.

    Left out: those sent before all writers had started, and those of the suspended writer that were under way
    before it had caught up.
    """
    late = _catching_up(journals, chronicle)
    return [
        entry
        for name, entries in journals.items()
        if name != PLAIN_WRITER
        for entry in without_suspended(entries, late if name == SUSPENDED else None)
        if entry.sent_at >= chronicle.began
    ]


def _catching_up(journals: Journals, chronicle: Chronicle) -> Span | None:
    if chronicle.suspension is None:
        return None
    return until_caught_up(journals.get(SUSPENDED, ()), chronicle.suspension)


def _throughput(
    chronicle: Chronicle, state: PartitionState, back: ReadBack, journals: Journals
) -> tuple[Series, ...]:
    """Return records per second by physical partition, the affected one and its phantoms first."""
    times: dict[PhysicalPartition, list[float]] = defaultdict(list)
    for name, entries in journals.items():
        for entry in entries:
            place = _place_of(back, name, entry)
            if place is not None and entry.reported_at is not None:
                times[place].append(entry.reported_at)
    affected = state.lineage.sources()
    order = [*affected, *sorted(place for place in times if place not in affected)]
    span = chronicle.ended - chronicle.began
    return tuple(
        throughput(str(place), times.get(place, ()), chronicle.began, span, BIN_SECONDS) for place in order
    )


def _place_of(back: ReadBack, writer: str, entry: Entry) -> PhysicalPartition | None:
    by_line: RecordId = ("", entry.sequence)
    return back.places.get((writer, entry.sequence)) or back.places.get(by_line)


def _slowness(
    chronicle: Chronicle, ours: Sequence[Entry], plain: Sequence[Entry], hot: int
) -> tuple[Series, ...]:
    """Return the greatest latency (ms) by time: affected partition, the others, the others of the control."""
    span = chronicle.ended - chronicle.began
    chosen = (
        ("affected partition", [e for e in ours if e.partition == hot]),
        ("other partitions", [e for e in ours if e.partition != hot]),
        ("other partitions, plain writer", [e for e in plain if e.partition != hot]),
    )
    return tuple(
        by_time(
            name,
            [(e.sent_at, e.latency * 1000) for e in entries if e.latency is not None],
            *(chronicle.began, span, BIN_SECONDS, max),
        )
        for name, entries in chosen
    )
