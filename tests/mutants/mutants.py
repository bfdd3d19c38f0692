"""Small mistakes in code that decides, each with the tests that notice it.

``python -m tests.mutants.mutants NAME`` runs these tests with the mistake made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NoReturn

import pytest

from tests.mutants.fixes import FIXES

ROOT = Path(__file__).parents[2]
LIBRARIES = [
    "pytest",
    "hypothesis.strategies",
    "xdist.plugin",
    "confluent_kafka.admin",
    "kafka.admin",
    "click",
    "tenacity",
]
"""What the tests import, and no mistake is made in."""


@dataclass(frozen=True)
class Mutant:
    """In a module, one text instead of another.

    ``noticed_by``: a file of tests/unit or tests/property, or one test of it (``file::test``).
    """

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
        return ROOT / "tests" / self.noticed_by.partition("::")[0]


SEND_STATE, SEND_TESTS = "producer.send_state", "unit/test_producer_send_state.py"
ASSIGNED, MOVES = "consumer.slots.assigned", "unit/test_consumer_moves.py"
WRITES, COMMITS = "consumer.commit.writes", "unit/test_consumer_engine_committing.py"
BOOKMARKS = "unit/test_consumer_bookmarks.py"
FETCHES = "unit/test_consumer_tracks.py"

MUTANTS = [
    Mutant(
        "let a fence be deferred for longer than the lease",
        SEND_STATE,
        "            self.transactions.no_fence()\n            self._fence_writers()\n        self.suspended",
        "            pass\n        self.suspended",
        f"{SEND_TESTS}::test_a_fence_is_deferred_no_longer_than_the_lease",
    ),
    Mutant(
        "let a lease that ran out unnoticed be renewed as if it had not",
        "producer.state",
        "        if not self.lease_valid():  # nor to see this",
        "        if False:  # nor to see this",
        "unit/test_producer_lease.py::test_a_lease_that_is_over_lapses_before_it_is_renewed",
    ),
    Mutant(
        "leave a segment open while a stray waits for it and its own segment is not resolved",
        SEND_STATE,
        "                self.statistics.strays += len(astray)\n                self._reopen()",
        "                self.statistics.strays += len(astray)",
        SEND_TESTS,
    ),
    Mutant(
        "forget which numbers the fast path has sent to a segment",
        SEND_STATE,
        "                writer.newest = self.next_sequence - 1",
        "                pass",
        SEND_TESTS,
    ),
    Mutant(
        "let a record pass through after the lease, by the short path",
        "producer.sending",
        "if topic in plain_topics and monotonic() < state.lease_until:",
        "if topic in plain_topics:",
        "unit/test_producer_state.py",
    ),
    Mutant(
        "run the callback of a topic that is not enrolled in the library's thread",
        "producer.sending",
        "            if state.collecting:\n                state.callbacks.put(callback",
        "            if False:\n                state.callbacks.put(callback",
        "unit/test_producer_state.py",
    ),
    Mutant(
        "certify while the library's thread writes",
        "producer.client",
        "        if background is not None and not background.is_alive():",
        "        if background is not None:",
        "unit/test_producer_closing.py",
    ),
    Mutant(
        "take what a signal handler raised for a lock that is taken",
        "producer.sending",
        "            if not is_locks_own(error):",
        "            if False:",
        "unit/test_producer_interrupts.py",
    ),
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
        "sure = not self.by_hand and not self.moved and not self.uncertain",
        "sure = not self.by_hand and not self.uncertain",
        "unit/test_consumer_engine_righting.py",
    ),
    Mutant(
        "begin at the first of several bookmarks of a key",
        ASSIGNED,
        "pieces.append(reduce(partial(further, lineage), own))",
        "pieces.append(own[0])",
        BOOKMARKS,
    ),
    Mutant(
        "have a partition by hand wait for an enrolment that nothing tells it of",
        "consumer.slots.initializer",
        "        assigned.mode = Mode.WHOLE\n",
        "        assigned.mode = slots.metadata.subscribed(assigned.parent.topic).mode\n",
        BOOKMARKS,
    ),
    Mutant(
        "begin a slot before it is known where its keys without a bookmark stand",
        ASSIGNED,
        "if union_of_adjacent(c.range for c in pieces) == self.slot.range:",
        "if pieces:",
        BOOKMARKS,
    ),
    Mutant(
        "ask a program that keeps bookmarks for the first slot of a partition only",
        "consumer.events",
        "parents - (self._announced - self.by_slot)",
        "parents - self._announced",
        BOOKMARKS,
    ),
    Mutant(
        "take bookmarks of a topic that was made again",
        "consumer.slots.assigned",
        "if meant.topic_id and meant.topic_id != now.topic_id:",
        "if False:",
        BOOKMARKS,
    ),
    Mutant(
        "commit what was assigned by hand as a member does",
        "consumer.commit.committer",
        "return None if all(assigned.by_hand for assigned in slots) else self._group.metadata()",
        "return self._group.metadata()",
        BOOKMARKS,
    ),
    Mutant(
        "take what was committed before a seek back for processed",
        "consumer.commit.committer",
        "known = [(assigned.moves_committed, assigned.committed),",
        "known = [(assigned.moves, assigned.committed),",
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
    *(Mutant(*row) for row in FIXES),
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


OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--assert=plain"]
PATIENCE = 2.0
"""So many seconds a test waits for what does not come because of the mistake."""


def main(name: str, options: Sequence[str] = OPTIONS[:-1], plugins: Sequence[object] = ()) -> int:
    """Run the tests with the mistake made; return pytest's exit code."""
    mutant = next(m for m in MUTANTS if m.name == name)
    make(mutant)
    from tests.unit import lane_samples  # after the mistake was made

    lane_samples.PATIENCE = PATIENCE  # what waits in vain has noticed it
    tests = f"{ROOT / 'tests'}/{mutant.noticed_by}"
    return pytest.main([*options, tests], plugins)


class EndsAtOnce:
    """Ends the process with the first failure: what waits because of the mistake is not waited for."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(pytest.ExitCode.TESTS_FAILED)


def main_of_fork(name: str, output: Path) -> NoReturn:
    """Be the whole life of a forked process. What it says goes to a file, assertions as they are written."""
    with output.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    code = main(name, OPTIONS, [EndsAtOnce()])
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
