"""What a checker of histories can find, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_EXAMPLES = 10


class Anomaly(StrEnum):
    """What must not be."""

    LOST = "lost"
    """Reported as delivered, and not there."""
    UNSEEN = "unseen"
    """Reported as delivered behind the place where the reading of an open segment ended."""
    DUPLICATE = "duplicate"
    """Delivered more than once."""
    OUT_OF_ORDER = "out of order"
    """Delivered after a later record of the same producer and key."""
    NEVER_SENT = "never sent"
    """Delivered, and nobody sent it."""
    WRONG_PLACE = "wrong place"
    """Not where its report says, or not where its logical offset says, or in another logical partition."""
    WRONG_SEGMENT = "wrong segment"
    """In a segment that does not take its key, or that its producer must not write to."""
    WRONG_KEY = "wrong key"
    """Read back with another key than it was sent with."""
    OFFSET_REUSED = "logical offset used twice"
    """Two records of a logical partition have one logical offset."""
    OFFSET_NOT_RISING = "logical offset not rising"
    """Not above every logical offset before it in its segment and in the segments that this one follows."""
    ABORTED_READ = "aborted read"
    """Delivered although its transaction was aborted."""
    NEVER_WRITTEN = "never written"
    """A reader was given it, and the log has something else at that place, or nothing."""
    LATE_STRAY = "late stray"
    """A reader was given a stray: a copy that its producer sends again, or has sent again."""
    SKIPPED = "skipped"
    """A reader was given what comes behind it in the segment, and never it itself."""
    NOT_MONOTONIC = "not monotonic"
    """A reader was given it behind later ones of its segment, or again, without having begun anew."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How often an anomaly was found, and the first examples in words."""

    anomaly: Anomaly
    count: int
    examples: tuple[str, ...]


@dataclass(slots=True)
class Findings:
    """Counts per anomaly, with the first ``examples`` of each."""

    examples: int
    _counts: dict[Anomaly, int] = field(default_factory=dict)
    _texts: dict[Anomaly, list[str]] = field(default_factory=dict)

    def note(self, anomaly: Anomaly, text: str) -> None:
        """Count an anomaly."""
        self._counts[anomaly] = self._counts.get(anomaly, 0) + 1
        texts = self._texts.setdefault(anomaly, [])
        if len(texts) < self.examples:
            texts.append(text)

    def copy(self) -> Findings:
        """Return findings of their own, with what these have so far."""
        return Findings(self.examples, dict(self._counts), {a: list(t) for a, t in self._texts.items()})

    def all(self) -> list[Finding]:
        """Return what was found, in the order of ``Anomaly``."""
        return [Finding(a, self._counts[a], tuple(self._texts[a])) for a in Anomaly if a in self._counts]


def told(findings: Iterable[Finding]) -> str:
    """Return findings for people, one line each with its first examples."""
    return "\n".join(f"{f.anomaly}: {f.count}, e.g. {'; '.join(f.examples)}" for f in findings)
