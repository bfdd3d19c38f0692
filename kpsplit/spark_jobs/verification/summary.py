"""A verdict as people read it in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kpsplit.spark_jobs.verification.findings import MEANINGS, Check, Finding, Severity, Verdict
from kpsplit.splitter.words import many

_SIGNS = {"ok": "ok", "found": "FOUND", "unproven": "?"}
_WIDTH = max(len(check) for check in Check)
_EXAMPLES = 5
_ORDER = (Severity.FINDING, Severity.UNPROVEN, Severity.NOTE)


def summary_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the lines: what was looked at, every check with its first findings, and the result."""
    yield from _looked_at(verdict)
    yield ""
    for check in Check:
        yield f"{_SIGNS[verdict.outcome(check)]:<6}{check:<{_WIDTH}}  {MEANINGS[check]}"
        found = sorted(verdict.of(check), key=lambda f: _ORDER.index(f.severity))
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
        parts.append(f"{many(len(verdict.defects), 'finding')} in {_checks(verdict, Severity.FINDING)}")
    if verdict.unproven:
        parts.append(
            f"{many(len(verdict.unproven), 'thing')} could not be judged, first: {verdict.unproven[0]}"
        )
    return f"{verdict.topic}: {'; '.join(parts)}"


def _looked_at(verdict: Verdict) -> Iterator[str]:
    for name, counts in sorted(verdict.counts.items(), key=lambda item: int(item[0].rpartition("/")[2])):
        data = counts.get("data", 0)
        others = (
            (counts.get("stray", 0), "stray"),
            (counts.get("marker", 0) + counts.get("orphan_marker", 0), "marker"),
        )
        told = "".join(f", {many(number, what)}" for number, what in others if number)
        unstamped = counts.get("unstamped", 0)
        plain = f", {unstamped:,} of them not written with kpsplit" if unstamped else ""
        segments = sum(1 for s in verdict.segments if str(s.parent) == name)
        yield f"{name}: {many(data, 'record')} in {many(segments, 'segment')}{plain}{told}"
    if verdict.judged_since_ms:
        told = many(verdict.records, "record")
        yield f"judged: what was written since {_time(verdict.judged_since_ms)}, {told}; nothing before it"
    if verdict.groups:
        yield f"groups with range commits: {', '.join(verdict.groups)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")


def _line(finding: Finding) -> str:
    weight = "" if finding.severity is Severity.FINDING else f"{finding.severity}: "
    return f"{weight}{finding.parent}: {finding.message}"


def _checks(verdict: Verdict, severity: Severity) -> str:
    return ", ".join(c for c in Check if verdict.of(c, severity))
