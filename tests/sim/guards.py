"""Guards of the protocol, each left out by patching the product's own code.

The exhaustive exploration and the simulation leave them out in turn; both must notice.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from kpsplit.consumer.fetch.fetch_state import FetchState
from kpsplit.control import returning
from kpsplit.errors import UnknownOutcomeError
from kpsplit.producer import finality, lease
from kpsplit.producer.background import TopicTask
from kpsplit.producer.finality import SegmentWriter
from kpsplit.producer.send_state import Backlog, PartitionSendState
from kpsplit.producer.state import ProducerState, ReportLease
from kpsplit.splitter import commits, control_plane, reading
from kpsplit.splitter.claimed_log import ClaimedLog
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.driver import Driver
from kpsplit.splitter.lineage import SegmentKind
from kpsplit.splitter.machine import apply
from kpsplit.splitter.reading import Cursor, _Walk
from kpsplit.splitter.records import data
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.data import Stamp
from tests.sim import members, operators, producers
from tests.sim.members import Coordinator, OffsetLog
from tests.sim.operators import Operator


def report_under_a_fence(patch: pytest.MonkeyPatch) -> None:
    def refresh(self: Any, fence: Any) -> None:
        for writer in fence.writers:
            writer.lease = ReportLease()
            writer.lease.until = self.lease_until
            writer.stamp_as(fence.state, self.instance)

    real = finality.while_open

    def final(writer: Any, *, lease_valid: bool) -> Any:
        fenced, writer.fenced = writer.fenced, False
        try:
            return real(writer, lease_valid=lease_valid)
        finally:
            writer.fenced = fenced

    patch.setattr(ProducerState, "refresh", refresh)
    patch.setattr(finality, "while_open", final)


def do_not_look_at_offsets(patch: pytest.MonkeyPatch) -> None:
    real = finality.by_end
    patch.setattr(finality, "by_end", lambda writer, _, abandoned: real(writer, 1 << 62, abandoned))


def do_not_wait_for_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control_plane, "not_acknowledged", lambda *_: ())


def do_not_wait_for_readiness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control_plane, "not_ready", lambda *_: ())


def acknowledge_with_records_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionSendState, "quiescent", lambda self: True)


def remove_registrations_whatever_became_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    def ended(self: Any, silent: Any, state: Any, attempt_id: str) -> Any:
        return tuple(r for r in silent if r.key in self._first)

    patch.setattr(control_plane.Silence, "ended", ended)


def remove_registrations_that_are_younger_than_the_wait(patch: pytest.MonkeyPatch) -> None:
    real = control_plane.Silence.ended

    def ended(self: Any, silent: Any, state: Any, attempt_id: str) -> Any:
        self._first = frozenset(r.key for r in silent)
        return real(self, silent, state, attempt_id)

    patch.setattr(control_plane.Silence, "ended", ended)


def open_new_segments_at_once(patch: pytest.MonkeyPatch) -> None:
    def blocked(self: Any, writer: Any) -> bool:
        return bool(self.suspended or writer.fenced)

    patch.setattr(PartitionSendState, "_blocked", blocked)


def send_what_was_held_before_the_strays(patch: pytest.MonkeyPatch) -> None:
    """A stray then waits after what was held before it was known to be one."""
    patch.setattr(Backlog, "waiting_for", lambda self, segment: self.queues.get(segment, ()))


def send_strays_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def add_strays(self: Any, records: Any, segment_of: Any) -> None:
        for record in records:
            self.queue_of(segment_of(record)).appendleft(record)
        self.tally.count += len(records)

    patch.setattr(Backlog, "add_strays", add_strays)


def send_again_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    real = PartitionSendState.give_up_pending

    def give_up_pending(self: Any, keep: Any) -> Any:
        finals = real(self, keep)
        self.backlog.add_strays([final.record for final in finals], self._segment_of)
        self._reopen()
        return finals

    patch.setattr(PartitionSendState, "give_up_pending", give_up_pending)


def send_rejected_records_again_blindly(patch: pytest.MonkeyPatch) -> None:
    def unplaced(self: Any, writer: Any, record: Any, _: Any, *, lease_valid: bool) -> Any:
        return self.acknowledged(writer, record, 1 << 40, lease_valid=lease_valid)

    patch.setattr(PartitionSendState, "unplaced", unplaced)


def take_numbers_for_the_order_of_sending(patch: pytest.MonkeyPatch) -> None:
    """A stray without a key may be sent again to a segment that took higher numbers."""

    def note_sent(self: Any, _: int) -> None:
        self.sent += 1

    patch.setattr(SegmentWriter, "note_sent", note_sent)


def take_any_attempts_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        control_plane,
        "not_acknowledged",
        lambda live, partition, _: tuple(
            r for r in live if partition in r.ready and partition not in r.acknowledged
        ),
    )


def take_any_attempts_readiness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        control_plane,
        "not_ready",
        lambda live, partition, _: tuple(r for r in live if partition not in r.ready),
    )


def read_strays_of_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_stray", lambda segment, _: segment.kind is SegmentKind.OVERFLOW)


def take_a_stray_for_its_copy(patch: pytest.MonkeyPatch) -> None:
    """A search finds the stray, which readers skip, and looks no further."""

    def note_own(found: Any, offset: int, stamp: Any, home: int, _: int, instance: int, wanted: Any) -> None:
        data.note_own(found, offset, stamp, home, 0, instance, wanted)

    patch.setattr(producers, "note_own", note_own)


def read_past_the_marker_of_an_attempt_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_under_way", lambda *_: False)


def read_past_an_unknown_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_last", lambda *_: True)


def forget_what_is_astray(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionSendState, "unclear", lambda self: [])


def send_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = PartitionSendState._blocked

    def blocked(self: Any, writer: Any) -> bool:
        suspended, self.suspended = self.suspended, False
        try:
            return real(self, writer)
        finally:
            self.suspended = suspended

    patch.setattr(PartitionSendState, "_blocked", blocked)


# -- guards that only the simulation leaves out ----------------------------------------------------


def report_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = ProducerState.refresh

    def refresh(self: Any, fence: Any) -> None:
        real(self, fence)
        self.report_lease.until = inf

    patch.setattr(ProducerState, "lease_valid", lambda self: True)
    patch.setattr(ProducerState, "refresh", refresh)


def do_not_wait_for_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control_plane, "LEASE_MARGIN", 0.0)


def renew_the_lease_while_something_is_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "owes", lambda *_: False)


def take_an_unknown_outcome_for_success(patch: pytest.MonkeyPatch) -> None:
    real = Driver._record

    def record(self: Any, state: Any, event: Any, deadline: Any, **more: Any) -> Any:
        try:
            return real(self, state, event, deadline, **more)
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
    """The earlier holder may still write and commit after that end."""

    def claim(self: Any, deadline: Any, fit: Any = None) -> Any:
        announced = self._await_turn(deadline, fit)
        if announced is not None:
            written = self._announce(announced, deadline)
            self._take(deadline)
            self._read_decided(written, deadline)
        return self.seen()

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


def read_on_after_what_was_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchState, "_has_left_out", lambda *_: False)


def go_on_after_a_gap_that_is_not_reported_yet(patch: pytest.MonkeyPatch) -> None:
    real = FetchState._at_gap

    def at_gap(self: Any, track: Any, gap: Any) -> Any:
        batches = real(self, track, gap)
        return batches or self.told(gap)

    patch.setattr(FetchState, "_at_gap", at_gap)


def commit_offsets_for_ranges_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "uncovered", lambda ranges: list(ranges)[:0])


def commit_in_any_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "admits", lambda self, generation: True)


def write_range_commits_after_the_check_of_the_generation(patch: pytest.MonkeyPatch) -> None:
    begin, end = members.SimMember._begin_commit, members.SimMember._end_commit

    def begin_commit(self: Any) -> Any:
        step = begin(self)
        if step is not None:
            self.world.offsets.transactions.remove(self.job.transaction)
            self.job.admitted = self.world.coordinator.admits(self.generation)
        return step

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
    patch.setattr(operators, "undrained", lambda *_: [])


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


def answer_prepare_with_unstamped_records_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicTask, "_settled", lambda *_: True)


def pass_through_while_stamped_records_are_not_resolved(patch: pytest.MonkeyPatch) -> None:
    real = TopicTask.part

    def part(self: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PartitionSendState, "unresolved", lambda _: 0)
            real(self)

    patch.setattr(TopicTask, "part", part)


def split_as_soon_as_a_topic_is_enrolled_again(patch: pytest.MonkeyPatch) -> None:
    """A producer that has not seen the enrolment yet sends unstamped records."""
    obstacle = property(lambda self: self.change_text if self.returning else None)
    patch.setattr(Enrolment, "split_obstacle", obstacle)


def split_a_topic_that_returns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Enrolment, "split_obstacle", property(lambda self: None))


def return_a_topic_without_a_claim_of_its_partitions(patch: pytest.MonkeyPatch) -> None:
    """An operator that claimed before the return may still begin a split."""

    def next_step(recorded: Any, seen: Any) -> Any:
        return returning.next_step(recorded, replace(seen, claimed=True))

    patch.setattr("tests.sim.operators.next_step", next_step)


def apply_nothing_that_was_done_before_a_return(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlView, "latest_state", ControlView.state)
