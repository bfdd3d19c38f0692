"""Guards of the protocol, each left out by patching the product's own code.

The exhaustive exploration and the simulation leave them out in turn; both must notice.
"""

from __future__ import annotations

from typing import Any

import pytest

from kpsplit.producer import finality
from kpsplit.producer.backlog import Backlog
from kpsplit.producer.context import Context
from kpsplit.producer.fence import PartitionSendState
from kpsplit.splitter import reading, writers
from kpsplit.splitter.lineage import SegmentKind


def report_under_a_fence(patch: pytest.MonkeyPatch) -> None:
    def refresh(self: Any, fence: Any) -> None:
        for writer in fence.writers:
            writer.good_until = self.lease_until
            writer.stamp_as(fence.state, self.instance)

    real = finality.while_open

    def final(writer: Any, *, lease_valid: bool) -> Any:
        fenced, writer.fenced = writer.fenced, False
        try:
            return real(writer, lease_valid=lease_valid)
        finally:
            writer.fenced = fenced

    patch.setattr(Context, "refresh", refresh)
    patch.setattr(finality, "while_open", final)


def do_not_look_at_offsets(patch: pytest.MonkeyPatch) -> None:
    real = finality.by_end
    patch.setattr(finality, "by_end", lambda writer, _, abandoned: real(writer, 1 << 62, abandoned))


def do_not_wait_for_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writers, "not_acknowledged", lambda *_: ())


def do_not_wait_for_readiness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writers, "not_ready", lambda *_: ())


def acknowledge_with_records_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionSendState, "quiescent", lambda self: True)


def remove_registrations_whatever_became_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    def ended(self: Any, silent: Any, state: Any, attempt_id: str) -> Any:
        return tuple(r for r in silent if r.key in self._first)

    patch.setattr(writers.Silence, "ended", ended)


def remove_registrations_that_are_younger_than_the_wait(patch: pytest.MonkeyPatch) -> None:
    real = writers.Silence.ended

    def ended(self: Any, silent: Any, state: Any, attempt_id: str) -> Any:
        self._first = frozenset(r.key for r in silent)
        return real(self, silent, state, attempt_id)

    patch.setattr(writers.Silence, "ended", ended)


def open_new_segments_at_once(patch: pytest.MonkeyPatch) -> None:
    def blocked(self: Any, writer: Any) -> bool:
        return bool(self.suspended or writer.fenced)

    patch.setattr(PartitionSendState, "_blocked", blocked)


def send_what_was_held_before_the_strays(patch: pytest.MonkeyPatch) -> None:
    """A stray then waits behind what was held before it was known to be one."""
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


def take_any_attempts_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        writers,
        "not_acknowledged",
        lambda live, partition, _: tuple(
            r for r in live if partition in r.ready and partition not in r.acknowledged
        ),
    )


def take_any_attempts_readiness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        writers, "not_ready", lambda live, partition, _: tuple(r for r in live if partition not in r.ready)
    )


def read_strays_of_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_stray", lambda segment, _: segment.kind is SegmentKind.OVERFLOW)


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
