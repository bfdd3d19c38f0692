"""A verdict as one self-contained HTML page with pictures. Pure, but for ``times_of``.

``times_of`` reads from the markers that are still in the logs when each epoch began, by the clock of the
operator that cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, Message

from kpsplit import __version__
from kpsplit import pages as html
from kpsplit.clock import Deadline, wall_ms
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_tail import read_at
from kpsplit.pages import PARENT_COLOUR, lineage_picture
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.commit_checks import drained
from kpsplit.spark_jobs.verification.findings import Verdict, by_weight, result_line
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import instance_name

MOST_READS = 32
"""So many records of one log are read, the newest: a picture with more epochs cannot be labelled anyway."""

TIMES_SECONDS = 20.0
"""Limit for reading clock times; a time that is not read by then is left out."""


@dataclass(frozen=True)
class Times:
    """Clock times in ms since 1970; ``epochs``: by logical partition and epoch, those that are known.

    ``cluster``: the cluster's id (left out if it does not say it) and where it was reached.
    """

    taken_ms: int
    epochs: Mapping[PhysicalPartition, Mapping[int, int]] = field(default_factory=dict)
    cluster: str = ""


def times_of(connection: Connection, snapshot: Snapshot, seconds: float = TIMES_SECONDS) -> Times:
    """Return the times of a snapshot's epochs, as far as they can be read within some seconds."""
    taken, limit = wall_ms(), Deadline(seconds)
    wanted: dict[PhysicalPartition, list[tuple[int, PhysicalPartition, int]]] = defaultdict(list)
    for state in snapshot.states:
        for epoch, place, offset in beginnings(snapshot, state):
            wanted[place].append((offset, state.parent, epoch))
    for asked in wanted.values():
        asked.sort(reverse=True)
    found: dict[PhysicalPartition, dict[int, int]] = {}
    for turn in range(min(MOST_READS, max(map(len, wanted.values()), default=0))):
        now = {place: asked[turn] for place, asked in wanted.items() if turn < len(asked)}
        messages = _read(connection, {place: offset for place, (offset, _, _) in now.items()}, limit)
        for place, (offset, parent, epoch) in now.items():
            at = _time(messages.get(place), offset)
            if at is not None:
                found.setdefault(parent, {})[epoch] = at
    return Times(taken, found, _cluster(connection))


def _cluster(connection: Connection) -> str:
    with suppress(KpsplitError, KafkaException):  # a report without its id is better than none
        return f"{ClusterAdmin(connection).cluster_id()} ({connection.bootstrap})"
    return connection.bootstrap


def beginnings(snapshot: Snapshot, state: PartitionState) -> Iterator[tuple[int, PhysicalPartition, int]]:
    """Yield one record per epoch that was written when it began: epoch, log, offset."""
    first = snapshot.bounds.get(state.parent)
    if first is not None and first.low == 0 < first.high:
        yield 0, state.parent, 0
    ended = {
        s.closed_epoch: (s.source, s.end)
        for s in state.lineage
        if s.closed_epoch is not None and s.end is not None and snapshot.holds(s.source, s.end)
    }
    for epoch, (place, offset) in ended.items():
        yield epoch, place, offset


def _read(
    connection: Connection, offsets: Mapping[PhysicalPartition, int], limit: Deadline
) -> dict[PhysicalPartition, Message]:
    try:
        return read_at(connection, offsets, limit)
    except (KpsplitError, KafkaException):  # what was judged is shown all the same
        return {}


def _time(message: Message | None, offset: int) -> int | None:
    if message is None or message.offset() != offset:
        return None
    kind, at = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else int(at)


MOST_FINDINGS = 200
MOST_PARTITIONS = 24
PAUSE_COLOUR, DRAIN_COLOUR = "#d9661f", "#2e8b57"

Gone = Mapping[PhysicalPartition, Mapping[int, str]]
"""Why nothing of a segment can be read any more: by logical partition and segment."""


def report_page(verdict: Verdict, times: Times) -> str:
    """Return the page: verdict, checks, lineage, records per segment, pauses, drain, findings."""
    split = [s for s in verdict.snapshot.states if len(s.lineage.segments) > 1]
    outcome = "found" if verdict.defects else "unproven" if verdict.unproven else "ok"
    gone = _gone(verdict)
    parts = [
        html.paragraph(_made(times)),
        html.outcome(outcome, result_line(verdict), _counts(verdict)),
        html.section("Checks", "What was proven or refuted.", _checks(verdict)),
        *_unjudged(verdict),
        *(_lineage(verdict, state, times, gone) for state in split[:MOST_PARTITIONS]),
        *_more("{:,} more partitions were split; they are not drawn.", len(split) - MOST_PARTITIONS),
        _segments(verdict, gone),
        *_pauses(verdict),
        *_drain(verdict),
        *_findings(verdict),
    ]
    return html.page(f"kpsplit verify: {verdict.topic}", parts)


def _made(times: Times) -> str:
    taken = datetime.fromtimestamp(times.taken_ms // 1000, UTC)
    return f"Made by kpsplit {__version__} at {taken:%Y-%m-%d %H:%M:%S} UTC from the cluster {times.cluster}."


def _gone(verdict: Verdict) -> Gone:
    found: dict[PhysicalPartition, dict[int, str]] = {}
    for lost in verdict.snapshot.lost():
        if lost.first == lost.segment.start and lost.behind == lost.segment.end:
            found.setdefault(lost.state.parent, {})[lost.segment.id] = lost.reason.phrase
    return found


def _checks(verdict: Verdict) -> html.Html:
    checks = verdict.checks.items()
    rows = [(verdict.outcome(name), name, text, str(len(verdict.of(name)))) for name, text in checks]
    return html.table(("outcome", "check", "meaning", "rows"), rows)


def _counts(verdict: Verdict) -> html.Html:
    names = sorted({name for counts in verdict.counts.values() for name in counts})
    rows = [
        (parent, *(f"{counts.get(name, 0):,}" for name in names)) for parent, counts in verdict.counts.items()
    ]
    return html.table(("partition", *(name.replace("_", " ") for name in names)), rows)


def _unjudged(verdict: Verdict) -> Iterator[html.Html]:
    if verdict.unjudged:
        rows = [(why,) for why in verdict.unjudged]
        yield html.section("Not judged", "What kept the checks from judging.", html.table(("why",), rows))


def _lineage(verdict: Verdict, state: PartitionState, times: Times, gone: Gone) -> html.Html:
    explained = (
        "Time from left to right, key ranges from top to bottom in their order, overflows below them. "
        "Dashed: what cannot be read any more."
    )
    drawn = lineage_picture(
        state.lineage,
        {s.segment: s.data for s in verdict.segments if s.parent == state.parent},
        gone=gone.get(state.parent),
        times=times.epochs.get(state.parent),
        taken_ms=times.taken_ms,
    )
    return html.section(f"Lineage of {state.parent}", explained, drawn)


def _more(words: str, more: int) -> list[html.Html]:
    return [html.paragraph(words.format(more))] if more > 0 else []


def _segments(verdict: Verdict, gone: Gone) -> html.Html:
    places = {(state.parent, s.id): s for state in verdict.snapshot.states for s in state.lineage}
    most = max((total.data for total in verdict.segments), default=0)
    rows = []
    for total in verdict.segments:
        segment = places[total.parent, total.segment]
        state = gone.get(total.parent, {}).get(segment.id, "open" if segment.is_open else "closed")
        bar = html.bar(total.data, most, PARENT_COLOUR)
        counts = f"{total.data:,}", bar, f"{total.strays:,}"
        rows.append((str(total.parent), f"{segment.id} {segment.kind}", str(segment.source), *counts, state))
    columns = ("partition", "segment", "place", "records", f"0 to {most:,} records", "strays", "state")
    explained = "Delivered records; strays are skipped."
    return html.section("Records per segment", explained, html.table(columns, rows))


def _pauses(verdict: Verdict) -> Iterator[html.Html]:
    wanted = {str(state.parent) for state in verdict.snapshot.states}
    found = [
        (record, parent, pause)
        for record in verdict.snapshot.producers
        for parent, pause in sorted(record.pauses.items())
        if parent in wanted
    ]
    if not found:
        return
    most = max(pause.pause_ms for _, _, pause in found)
    rows = [
        (
            *(record.client_id, instance_name(record.instance), parent, f"{pause.pause_ms:,}"),
            *(html.bar(pause.pause_ms, most, PAUSE_COLOUR), f"{pause.held:,}"),
        )
        for record, parent, pause in found
    ]
    columns = ("client id", "producer", "partition", "pause ms", f"0 to {most:,} ms", "records held")
    explained = "What the latest operation on each partition cost each producer."
    yield html.section("Pauses", explained, html.table(columns, rows))


def _drain(verdict: Verdict) -> Iterator[html.Html]:
    rows = [
        (d.group, str(d.parent), f"{d.share:.0%}", html.bar(d.share, 1, DRAIN_COLOUR), f"{d.left:,}")
        for d in drained(verdict.snapshot)
        if d.group in verdict.groups
    ]
    explained = "How much of the key space has finished everything that splits and merges closed."
    if rows:
        columns = ("group", "partition", "drained", "0 to 100% of the key space", "offsets left")
        yield html.section("Drain of the groups", explained, html.table(columns, rows))


def _findings(verdict: Verdict) -> Iterator[html.Html]:
    found = by_weight(verdict.findings)
    if not found:
        return
    clients = {instance_name(r.instance): r.client_id for r in verdict.snapshot.producers}
    rows = [
        (
            *(f.severity, f.check, str(f.parent), f.message, _cell(f.segment)),
            *(clients.get(f.producer or "", ""), _cell(f.producer), _cell(f.group)),
            *(_cell(f.first), _cell(f.last), f"{f.count:,}"),
        )
        for f in found[:MOST_FINDINGS]
    ]
    rest = _more("{:,} more.", len(found) - MOST_FINDINGS)
    columns = (
        *("severity", "check", "partition", "what", "segment", "client id", "producer", "group"),
        *("first", "last", "count"),
    )
    yield html.section("Findings", "Notes are no defects.", html.table(columns, rows), *rest)


def _cell(cell: object) -> str:
    return "" if cell is None else str(cell)
