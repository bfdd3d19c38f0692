"""What a verification says: findings, by check, and what they add up to. Plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from kpsplit.errors import EXIT_CHECK, EXIT_FAILED, EXIT_OK, many
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition


class Severity(StrEnum):
    """How much a finding weighs."""

    FINDING = "finding"
    """It must not be."""
    UNPROVEN = "unproven"
    """It could not be judged, and the message says why."""
    NOTE = "note"
    """Worth knowing, and all right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result row. ``producer``: 16 hexadecimal digits. ``first``, ``last``: both included.

    ``check``: the name of the check that yielded it, which the verifier fills in.
    """

    severity: Severity
    parent: PhysicalPartition
    message: str
    segment: int | None = None
    producer: str | None = None
    group: str | None = None
    key_hash: int | None = None
    first: int | None = None
    last: int | None = None
    count: int = 1
    check: str = ""

    def row(self) -> tuple[Any, ...]:
        """Return the row of ``job.findings_frame``."""
        return (
            *(self.check, str(self.severity), self.parent.topic, self.parent.partition, self.segment),
            *(self.producer, self.group, self.key_hash, self.first, self.last, self.count, self.message),
        )

    def json(self) -> dict[str, Any]:
        """Return it as JSON has it; what does not apply is left out."""
        names = ("segment", "producer", "group", "key_hash", "first", "last", "count", "message")
        given = {name: getattr(self, name) for name in names}
        head = {"check": self.check, "severity": str(self.severity), "partition": str(self.parent)}
        return head | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SegmentTotal:
    """How many records of each kind one segment holds."""

    parent: PhysicalPartition
    segment: int
    data: int
    strays: int


@dataclass(frozen=True)
class Verdict:
    """What a verification came to.

    ``snapshot``: what was judged, but for the data. ``unjudged``: why something could not be judged at all.
    ``segments``: records per segment. ``groups``: the consumer groups that were looked at. ``counts``:
    records by logical partition and fate (``regions.Fate``, in lower case), and how many of the data are
    ``unstamped``. ``judged_since_ms``: only what was written since then was judged, in ms since 1970; 0:
    everything that the logs have. ``checks``: the meaning of each check, by its name.
    """

    topic: str
    partitions: tuple[int, ...]
    snapshot: Snapshot
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...] = ()
    segments: tuple[SegmentTotal, ...] = ()
    groups: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    judged_since_ms: int = 0
    checks: Mapping[str, str] = field(default_factory=dict)

    def of(self, check: str, severity: Severity | None = None) -> tuple[Finding, ...]:
        """Return the findings of a check."""
        return tuple(f for f in self.findings if f.check == check and severity in (None, f.severity))

    @property
    def records(self) -> int:
        """How many data were judged."""
        return sum(counts.get("data", 0) for counts in self.counts.values())

    @property
    def removed(self) -> int:
        """How many stretches of segments were not judged, because retention or ``retire`` removed them."""
        return len(self.of("stretches_complete", Severity.NOTE))

    def of_partition(self, number: int) -> Verdict:
        """Return what concerns one logical partition; what concerns none stays."""
        parent = PhysicalPartition(self.topic, number)
        others = tuple(f"{self.topic}/{n}: " for n in self.partitions if n != number)
        return replace(
            self,
            partitions=(number,),
            findings=tuple(f for f in self.findings if f.parent == parent),
            unjudged=tuple(why for why in self.unjudged if not why.startswith(others)),
            segments=tuple(s for s in self.segments if s.parent == parent),
            counts={name: counts for name, counts in self.counts.items() if name == str(parent)},
        )

    @property
    def defects(self) -> tuple[Finding, ...]:
        """The findings of what must not be."""
        return tuple(f for f in self.findings if f.severity is Severity.FINDING)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Everything that could not be judged, in words."""
        found = (f for f in self.findings if f.severity is Severity.UNPROVEN)
        return (*self.unjudged, *(f"{f.parent}: {f.message}" for f in found))

    @property
    def clean(self) -> bool:
        """Return whether everything was judged and nothing found."""
        return not self.defects and not self.unproven

    @property
    def exit_code(self) -> int:
        """0 clean, 3 findings, 1 could not judge."""
        if self.defects:
            return EXIT_CHECK
        return EXIT_FAILED if self.unproven else EXIT_OK

    def outcome(self, check: str) -> str:
        """Return how a check ended: ``ok``, ``found`` or ``unproven``."""
        weights = {f.severity for f in self.of(check)}
        if Severity.FINDING in weights:
            return "found"
        return "unproven" if Severity.UNPROVEN in weights else "ok"

    def json(self) -> dict[str, Any]:
        """Return the whole verdict as JSON has it."""
        return {
            "topic": self.topic,
            "partitions": list(self.partitions),
            "clean": self.clean,
            "checks": [
                {"name": n, "meaning": text, "outcome": self.outcome(n), "findings": len(self.of(n))}
                for n, text in self.checks.items()
            ],
            "findings": [f.json() for f in self.findings],
            "could_not_judge": list(self.unproven),
            "counts": {name: dict(counts) for name, counts in self.counts.items()},
            "groups": list(self.groups),
            "judged_since_ms": self.judged_since_ms,
            "records": self.records,
            "removed": self.removed,
        }


MOST = 1000
"""So many findings of one check are listed; the last one says how many more there are."""
COUNTED = 10 * MOST
"""So many rows of one kind are fetched from Spark to be counted; of more, it is said that they are more."""


def limited(findings: Iterable[Finding]) -> list[Finding]:
    """Return at most ``MOST`` findings of each check and severity; the last counts the rest."""
    kinds: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.check, finding.severity), []).append(finding)
    found: list[Finding] = []
    for (check, severity), mine in kinds.items():
        found += mine[:MOST]
        if (more := len(mine) - MOST) > 0:
            least = "at least " if len(mine) >= COUNTED and severity is Severity.FINDING else ""
            message = f"{least}{more:,} more findings"
            found.append(Finding(severity, mine[MOST - 1].parent, message, count=more, check=check))
    return found


_SIGNS = {"ok": "ok", "found": "FOUND", "unproven": "?"}
_EXAMPLES = 5


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with those first that weigh most."""
    order = list(Severity)
    return sorted(findings, key=lambda f: order.index(f.severity))


def summary_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the lines: what was looked at, every check with its first findings, and the result."""
    yield from _looked_at(verdict)
    yield ""
    width = max(map(len, verdict.checks), default=0)
    for check, meaning in verdict.checks.items():
        yield f"{_SIGNS[verdict.outcome(check)]:<6}{check:<{width}}  {meaning}"
        found = by_weight(verdict.of(check))
        for finding in found[:_EXAMPLES]:
            yield f"      {_line(finding)}"
        if len(found) > _EXAMPLES:
            yield f"      and {len(found) - _EXAMPLES:,} more"
    for why in verdict.unjudged:
        yield f"?     could not be judged: {why}"
    yield ""
    yield result_line(verdict)


def result_line(verdict: Verdict) -> str:
    """Return what it comes to, in one line."""
    if verdict.clean:
        since = f" since {_time(verdict.judged_since_ms)}" if verdict.judged_since_ms else ""
        removed = "; what retention or retire removed was not judged" if verdict.removed else ""
        return f"{verdict.topic}: clean{since}{removed}"
    parts = []
    if verdict.defects:
        checks = ", ".join(c for c in verdict.checks if verdict.of(c, Severity.FINDING))
        parts.append(f"{many(len(verdict.defects), 'finding')} in {checks}")
    if unproven := verdict.unproven:
        parts.append(f"{many(len(unproven), 'thing')} could not be judged, first: {unproven[0]}")
    return f"{verdict.topic}: {'; '.join(parts)}"


def _looked_at(verdict: Verdict) -> Iterator[str]:
    for name, counts in sorted(verdict.counts.items(), key=lambda item: int(item[0].rpartition("/")[2])):
        data = counts.get("data", 0)
        markers = counts.get("marker", 0) + counts.get("orphan_marker", 0)
        others = (counts.get("stray", 0), "stray"), (markers, "marker")
        rest = "".join(f", {many(number, what)}" for number, what in others if number)
        unstamped = counts.get("unstamped", 0)
        plain = f", {unstamped:,} of them not written with kpsplit" if unstamped else ""
        segments = sum(1 for s in verdict.segments if str(s.parent) == name)
        yield f"{name}: {many(data, 'record')} in {many(segments, 'segment')}{plain}{rest}"
    if verdict.judged_since_ms:
        records = many(verdict.records, "record")
        yield f"judged: what was written since {_time(verdict.judged_since_ms)}, {records}; nothing before it"
    if verdict.groups:
        yield f"groups with range commits: {', '.join(verdict.groups)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")


def _line(finding: Finding) -> str:
    weight = "" if finding.severity is Severity.FINDING else f"{finding.severity}: "
    return f"{weight}{finding.parent}: {finding.message}"
