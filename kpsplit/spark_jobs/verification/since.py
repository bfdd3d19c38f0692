"""A verification of what was written since a time: where each log begins then, and what is given there. Pure.

What lies before is the given start, as a saved state is; but nobody has verified it. So:

* A log begins at its first record that is not older. Where that is the first record it still has, and there
  were others, nobody can tell how old those were: they count as records that should have been judged.
* A producer's numbers begin with the least one that is found behind the beginnings. Greater ones that are
  not there may still lie before the beginning of another log (clocks differ): they are looked for there
  before they are called missing. Smaller ones are not judged.
* A producer of which nothing was found is not judged at all.
* A certificate is compared for segments that are read whole; of a producer with transactions only if its
  number 0 was found: smaller numbers that are not may be aborted ones, which certificates count.
* Range commits before the time are in force, and not judged themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kpsplit.spark_jobs.offsets import FirstOffsets
from kpsplit.spark_jobs.snapshot import LoggedCommit, Snapshot
from kpsplit.spark_jobs.verification.ledger import Ledger
from kpsplit.spark_jobs.verification.sequence_checks import Who
from kpsplit.spark_jobs.verification.state import PartitionPast, State, Stretches, read_before
from kpsplit.spark_jobs.verification.writers import Writers
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import OFFSETS_TOPIC

NEAR_MS = 10 * 60_000
"""So far before the time a number is looked for first; everything before that only if it is not there."""


@dataclass(frozen=True, slots=True)
class Since:
    """The time, and the first offset of each log that is not older; logs that have none are left out.

    Attributes:
        ms: the time, ms since 1970, as the records' timestamps count it.
        first: of the data and of the offset log.
        near: the same of ``NEAR_MS`` before.
    """

    ms: int
    first: FirstOffsets
    near: FirstOffsets


def start_of(snapshot: Snapshot, since: Since) -> State:
    """Return what is given at the time: up to where logs are not judged, and the range commits in force."""
    partitions = {}
    for state in snapshot.states:
        commits, commits_read = _commits(snapshot, state, since)
        partitions[state.parent.partition] = PartitionPast(
            topic_id=state.topic_id,
            read=_beginnings(snapshot, state, since),
            commits=commits,
            commits_read=commits_read,
        )
    return State("", snapshot.topic, partitions=partitions)


def with_first_numbers(start: State, firsts: Mapping[Who, int], writers: Writers) -> State:
    """Return the start with each producer's numbers below the first one that was found as accounted for.

    Whether those of a producer with transactions lie before the time, or were aborted since, is not known:
    its certificate counts the aborted ones too, and is not compared.

    ``firsts``: the least number of each producer that is there, as data or as a stray.
    """
    ledgers: dict[int, dict[str, Ledger]] = {number: {} for number in start.partitions}
    for (number, name), writer in writers.certified().items():
        if writer.certificate is not None:
            ledgers[number][name] = Ledger(next=writer.certificate.next_sequence, closed=True)
    for (number, name), first in firsts.items():
        unknown = first > 0 and writers.get(number, name).transactional
        ledgers[number][name] = Ledger(next=first, doubtful=unknown)
    known = {n: replace(past, ledgers=ledgers[n]) for n, past in start.partitions.items()}
    return replace(start, partitions=known)


def not_whole(snapshot: Snapshot, start: State) -> set[tuple[int, int]]:
    """Return the segments (partition, id) of which a part, or all, lies before the beginning of its log."""
    return {
        (state.parent.partition, s.id)
        for state in snapshot.states
        for s in state.lineage
        if start.read(state.parent.partition, s.source) > s.start
    }


def stretches_before(snapshot: Snapshot, start: State, since: Since, partitions: set[int]) -> list[Stretches]:
    """Return where numbers are looked for that are not behind the beginnings: near them, then everywhere."""
    everything = read_before(snapshot, start, partitions)
    near = {
        place: (max(first, since.near[place]), behind)
        for place, (first, behind) in everything.items()
        if since.near.get(place, behind) < behind
    }
    return [near, everything] if near and near != everything else [everything]


def _beginnings(snapshot: Snapshot, state: PartitionState, since: Since) -> dict[PhysicalPartition, int]:
    over = _over(snapshot, state, since)
    found = {}
    for place in state.lineage.sources():
        closed = [s.end for s in state.lineage if s.id in over and s.source == place and s.end is not None]
        passed = max(closed, default=-1) + 1
        bounds, cut = snapshot.bounds.get(place), _cut(snapshot, place, since)
        if bounds is None or cut is None:
            found[place] = passed
        elif 0 < bounds.low == cut:
            found[place] = min(passed, cut)
        else:
            found[place] = cut
    return {place: offset for place, offset in found.items() if offset}


def _over(snapshot: Snapshot, state: PartitionState, since: Since) -> set[int]:
    """Return the segments that were closed before the time: what comes behind them has an older record."""
    found: set[int] = set()
    for s in reversed(state.lineage.segments):
        for later in state.lineage.successors(s.id):
            bounds, cut = snapshot.bounds.get(later.source), _cut(snapshot, later.source, since)
            older = bounds is not None and cut is not None and max(bounds.low, later.start) < cut
            if later.id in found or older:
                found.add(s.id)
    return found


def _cut(snapshot: Snapshot, place: PhysicalPartition, since: Since) -> int | None:
    """Return the first offset of a log that is not older than the time, None if the log cannot be read."""
    bounds = snapshot.bounds.get(place)
    if bounds is None or place in snapshot.gone:
        return None
    return max(bounds.low, min(since.first.get(place, bounds.stable), bounds.stable))


def _commits(snapshot: Snapshot, state: PartitionState, since: Since) -> tuple[tuple[LoggedCommit, ...], int]:
    """Return the range commits before the time, and the offset of the offset log behind them."""
    mine = [c for c in snapshot.commits if c.parent == state.parent]
    log = next((PhysicalPartition(OFFSETS_TOPIC, c.log_partition) for c in mine), None)
    behind = max((c.log_offset + 1 for c in mine), default=0)
    first = since.first.get(log, behind) if log is not None else 0
    return tuple(c for c in mine if c.log_offset < first), first
