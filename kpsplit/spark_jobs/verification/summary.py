"""A verdict as people read it in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kpsplit.spark_jobs.verification.findings import MEANINGS, Check, Finding, Severity, Verdict

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
        return f"{verdict.topic}: clean{since}"
    parts = []
    if verdict.defects:
        parts.append(f"{len(verdict.defects):,} findings in {_checks(verdict, Severity.FINDING)}")
    if verdict.unproven:
        parts.append(f"{len(verdict.unproven):,} things could not be judged, first: {verdict.unproven[0]}")
    return f"{verdict.topic}: {'; '.join(parts)}"


def _looked_at(verdict: Verdict) -> Iterator[str]:
    for name, counts in sorted(verdict.counts.items(), key=lambda item: int(item[0].rpartition("/")[2])):
        data = counts.get("data", 0)
        others = (
            (counts.get("unstamped", 0), "of them not written with kpsplit"),
            (counts.get("stray", 0), "strays"),
            (counts.get("marker", 0) + counts.get("orphan_marker", 0), "markers"),
        )
        told = "".join(f", {number:,} {what}" for number, what in others if number)
        segments = sum(1 for s in verdict.segments if str(s.parent) == name)
        yield f"{name}: {data:,} records in {segments} segments{told}"
    if verdict.judged_since_ms:
        told = f"{verdict.new_records:,} records"
        yield f"judged: what was written since {_time(verdict.judged_since_ms)}, {told}; nothing before it"
    if verdict.since_ms:
        yield f"read now: what came since {_time(verdict.since_ms)}, {verdict.new_records:,} records"
    if verdict.told_before:
        yield f"told by earlier runs, and not again: {verdict.told_before:,} findings"
    if verdict.groups:
        yield f"groups with range commits: {', '.join(verdict.groups)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")


def _line(finding: Finding) -> str:
    weight = "" if finding.severity is Severity.FINDING else f"{finding.severity}: "
    return f"{weight}{finding.parent}: {finding.message}"


def _checks(verdict: Verdict, severity: Severity) -> str:
    return ", ".join(c for c in Check if verdict.of(c, severity))
