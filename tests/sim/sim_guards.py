"""Guards that only the simulation leaves out: of the driver, of readers, of commits, of brokers."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from kpsplit.consumer.fetch.fetch_state import PartitionTracks
from kpsplit.errors import UnknownOutcomeError
from kpsplit.producer import lease_duty
from kpsplit.producer.context import Context
from kpsplit.splitter import commits, writers
from kpsplit.splitter.claimed_log import ClaimedLog
from kpsplit.splitter.cursor import Cursor, _Walk
from kpsplit.splitter.driver import Driver
from kpsplit.splitter.machine import apply
from kpsplit.splitter.records.stamp import Stamp
from tests.sim import members, operations
from tests.sim.group import Coordinator, OffsetLog
from tests.sim.operators import Operator


def report_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = Context.refresh

    def refresh(self: Any, fence: Any) -> None:
        until, self.lease_until = self.lease_until, inf
        real(self, fence)
        self.lease_until = until

    patch.setattr(Context, "lease_valid", lambda self: True)
    patch.setattr(Context, "refresh", refresh)


def do_not_wait_for_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writers, "LEASE_MARGIN", 0.0)


def renew_the_lease_while_something_is_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease_duty, "owes", lambda *_: False)


def take_an_unknown_outcome_for_success(patch: pytest.MonkeyPatch) -> None:
    real = Driver._record

    def record(self: Any, state: Any, event: Any, deadline: Any) -> Any:
        try:
            return real(self, state, event, deadline)
        except UnknownOutcomeError:
            return apply(state, event)

    patch.setattr(Driver, "_record", record)


def work_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    def claim(self: Any) -> Any:
        self._holder = self.world.control.holder
        yield "looks, without a claim"

    patch.setattr(Operator, "_claim", claim)


def claim_up_to_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """A stranger's open transaction hides what earlier holders committed."""

    real = Operator._write_claim

    def write_claim(self: Any, claim: Any) -> Any:
        yield from real(self, claim)
        return self.world.control.stable()

    patch.setattr(Operator, "_write_claim", write_claim)


def ask_for_the_end_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    """The earlier holder may still write and commit behind that end."""

    def claim(self: Any, deadline: Any, fit: Any = None) -> Any:
        announced = self._await_turn(deadline, fit)
        if announced is not None:
            written = self._announce(announced, deadline)
            self._take(deadline)
            self._read_decided(written, deadline)
        return self._state()

    patch.setattr(ClaimedLog, "claim", claim)


def take_the_stamp_of_a_copy_at_its_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stamp, "is_at", lambda self, home: True)


def read_children_before_their_parents_are_drained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Walk, "ready", lambda self, segment: True)


def read_a_merged_child_when_one_parent_is_drained(patch: pytest.MonkeyPatch) -> None:
    def ready(self: Any, segment: Any) -> bool:
        parents = list(self.predecessors(segment))
        return not parents or any(p in self.complete for p in parents)

    patch.setattr(_Walk, "ready", ready)


def take_an_empty_segment_for_drained(patch: pytest.MonkeyPatch) -> None:
    def is_complete(self: Any, segment: Any) -> bool:
        if self.drained(segment):
            return True
        at_end = segment.end is not None and self.position(segment) >= segment.end
        return at_end and (segment.id in self.listed or self.ready(segment))

    patch.setattr(_Walk, "_is_complete", is_complete)


def read_with_an_older_view_than_the_cursors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cursor, "ahead_of", lambda self, lineage: False)


def go_on_behind_a_gap_that_is_not_told_yet(patch: pytest.MonkeyPatch) -> None:
    real = PartitionTracks._at_gap

    def at_gap(self: Any, track: Any, gap: Any) -> Any:
        batches = real(self, track, gap)
        return batches or self.told(gap)

    patch.setattr(PartitionTracks, "_at_gap", at_gap)


def commit_offsets_for_ranges_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "uncovered", lambda ranges: list(ranges)[:0])


def commit_in_any_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "admits", lambda self, generation: True)


def write_range_commits_behind_the_check_of_the_generation(patch: pytest.MonkeyPatch) -> None:
    begin, end = members.SimMember._begin_commit, members.SimMember._end_commit

    def begin_commit(self: Any) -> Any:
        told = begin(self)
        if told is not None:
            self.world.offsets.transactions.remove(self.job.transaction)
            self.job.admitted = self.world.coordinator.admits(self.generation)
        return told

    def end_commit(self: Any, fault: str) -> Any:
        log, transaction = self.world.offsets.transactions, self.job.transaction
        transaction.at = log[-1].at + len(log[-1].records) if log else 0
        log.append(transaction)
        return end(self, fault)

    patch.setattr(members.SimMember, "_begin_commit", begin_commit)
    patch.setattr(members.SimMember, "_end_commit", end_commit)


def start_without_waiting_for_earlier_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetLog, "end", lambda self: 0)


def delete_sub_topics_whoever_reads_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operations, "undrained", lambda *_: [])


def do_not_seal(patch: pytest.MonkeyPatch) -> None:
    def seal(self: Any, subtopics: Any) -> Any:
        yield "does not seal"

    patch.setattr(Operator, "_seal", seal)


def go_on_with_an_old_state_when_a_retirement_is_not_read_back(patch: pytest.MonkeyPatch) -> None:
    real = Driver._delete_quietly

    def delete_quietly(self: Any, state: Any, name: str) -> Any:
        claim = self._claim
        self._claim = lambda *_: state
        try:
            return real(self, state, name)
        finally:
            self._claim = claim

    patch.setattr(Driver, "_delete_quietly", delete_quietly)
