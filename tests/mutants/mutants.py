"""Small mistakes in code that decides, each with the tests that notice it.

``python -m tests.mutants.mutants NAME`` runs these tests with the mistake made.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """In a module, one text instead of another; ``noticed_by``: a file of tests/unit or tests/property."""

    name: str
    module: str
    before: str
    after: str
    noticed_by: str

    @property
    def file(self) -> Path:
        """The file that is changed."""
        return ROOT / "kpsplit" / f"{self.module.replace('.', '/')}.py"

    @property
    def tests(self) -> Path:
        """The file of the tests that notice it."""
        return ROOT / "tests" / self.noticed_by


SEND_STATE, SEND_TESTS = "producer.send_state", "unit/test_producer_send_state.py"
ASSIGNED, MOVES = "consumer.slots.assigned", "unit/test_consumer_moves.py"
WRITES, COMMITS = "consumer.commit.writes", "unit/test_consumer_engine_committing.py"
FETCHES = "unit/test_consumer_tracks.py"

MUTANTS = [
    Mutant(
        "acknowledge a fence while a closed segment has records in flight",
        SEND_STATE,
        "for w in (*fenced, *self.closing))",
        "for w in fenced)",
        SEND_TESTS,
    ),
    Mutant(
        "write to a segment while its predecessor has unresolved records",
        SEND_STATE,
        "return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)",
        "return False",
        SEND_TESTS,
    ),
    Mutant(
        "open a segment while records wait for it",
        SEND_STATE,
        "writer.open = not self.backlog.waits_for(writer.segment.id) and not self._blocked(writer)",
        "writer.open = not self._blocked(writer)",
        SEND_TESTS,
    ),
    Mutant(
        "send what is fenced",
        SEND_STATE,
        "if self.suspended or writer.fenced:",
        "if self.suspended:",
        SEND_TESTS,
    ),
    Mutant(
        "take back what a piece of a slot has processed",
        ASSIGNED,
        "positions[segment.id] = max(left_a[segment.id], left_b[segment.id])",
        "positions[segment.id] = min(left_a[segment.id], left_b[segment.id])",
        MOVES,
    ),
    Mutant(
        "commit a record that was not handed out",
        ASSIGNED,
        "handed_out = min(next_, read.pending(lineage).get(segment_id, next_))",
        "handed_out = next_",
        COMMITS,
    ),
    Mutant(
        "hand out again what a piece has processed",
        ASSIGNED,
        "return any(offset < end and hash_ in range_ for range_, end in ends)",
        "return False",
        COMMITS,
    ),
    Mutant(
        "write a position again that a seek has moved away from",
        ASSIGNED,
        "return here and not self.by_hand and not self.moved and bool(self.committed)",
        "return here and not self.by_hand and bool(self.committed)",
        "unit/test_consumer_engine_righting.py",
    ),
    Mutant(
        "take what was committed before a seek back for processed",
        ASSIGNED,
        "committed = () if self.sought > self.moves_committed else self.committed",
        "committed = self.committed",
        MOVES,
    ),
    Mutant(
        "hand out a whole partition of a topic that was enrolled meanwhile",
        "consumer.slots.assigned_slots",
        "return self.metadata.subscribed(assigned.parent.topic).mode is not assigned.mode",
        "return False",
        "unit/test_consumer_withholding.py",
    ),
    Mutant(
        "give a slot records from before its start",
        "consumer.fetch.record_filter",
        "return offset >= self._start_offsets[bisect_right(self._lows, hash_) - 1]",
        "return True",
        FETCHES,
    ),
    Mutant(
        "read a segment before its slots have everything that comes before it",
        "consumer.fetch.fetch_state",
        "return fetch.ready and not held_up",
        "return not held_up",
        FETCHES,
    ),
    Mutant(
        "read on after a gap that was not reported",
        "consumer.fetch.fetch_state",
        "not held_up and source not in self._untold and",
        "not held_up and",
        FETCHES,
    ),
    Mutant(
        "write ordinary offsets without the ranges of other members",
        WRITES,
        "known = [*p.cursors, *p.unchanged, *_of_others(p, member.group, fold)]",
        "known = [*p.cursors, *p.unchanged]",
        COMMITS,
    ),
    Mutant(
        "commit ranges without anything that checks the generation",
        WRITES,
        "offsets |= _ordinary(p.state, known, gone) or {p.token: 0}",
        "offsets |= _ordinary(p.state, known, gone)",
        COMMITS,
    ),
    Mutant(
        "start a whole slot where its furthest piece was",
        WRITES,
        "positions[segment.id] = min(waiting, default=end)",
        "positions[segment.id] = max(waiting, default=end)",
        "unit/test_consumer_ledger_starts.py",
    ),
]


def make(mutant: Mutant) -> None:
    """Have every later import of the module find the mistake."""
    real = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if fullname != f"kpsplit.{mutant.module}":
            return real(self, fullname)
        source = mutant.file.read_text("utf-8").replace(mutant.before, mutant.after)
        return compile(source, str(mutant.file), "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def main(name: str) -> int:
    """Run the tests with the mistake made; return pytest's exit code."""
    mutant = next(m for m in MUTANTS if m.name == name)
    make(mutant)
    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(mutant.tests)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
