"""Guards of the protocol, each left out by patching the product's own code.

The exhaustive exploration and the simulation leave them out in turn; both must notice.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest

from kpsplit.producer import finality
from kpsplit.producer.backlog import Backlog
from kpsplit.producer.context import Context
from kpsplit.producer.fence import PartitionFence
from kpsplit.splitter import reading, writers
from kpsplit.splitter.lineage import SegmentKind


def report_under_a_fence(patch: pytest.MonkeyPatch) -> None:
    def refresh(self: Any, fence: Any) -> None:
        for writer in fence.writers:
            writer.good_until = self.lease_until
            writer.use_epoch(fence.state.epoch, self.instance)

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
    patch.setattr(PartitionFence, "quiescent", lambda self: True)


def count_expiries(patch: pytest.MonkeyPatch) -> None:
    """Ask only those whose registration has not expired: then more rules are needed, which are kept."""
    everybody = writers.Registrations.to_ask

    def to_ask(self: Any, topic: str) -> Any:
        return tuple(r for r in everybody(self, topic) if not self.is_expired(r))

    patch.setattr(writers.Registrations, "to_ask", to_ask)


def open_new_segments_at_once(patch: pytest.MonkeyPatch) -> None:
    def blocked(self: Any, writer: Any) -> bool:
        return bool(self.suspended or writer.fenced)

    patch.setattr(PartitionFence, "_blocked", blocked)


def send_what_was_held_before_the_strays(patch: pytest.MonkeyPatch) -> None:
    def sendable(self: Any, limit: int | None = None) -> Any:
        found: list[Any] = []
        astray = self.backlog.strays_by_segment(self._segment_of)
        for writer in self.writers:
            if not self._blocked(writer):
                segment = writer.segment.id
                waiting = chain(self.backlog.held.get(segment, ()), astray.get(segment, ()))
                found += ((writer, record) for record in islice(waiting, limit))
        return found

    patch.setattr(PartitionFence, "sendable", sendable)


def send_strays_in_any_order(patch: pytest.MonkeyPatch) -> None:
    real = Backlog.strays_by_segment

    def backwards(self: Any, segment_of: Any) -> Any:
        return {segment: records[::-1] for segment, records in real(self, segment_of).items()}

    patch.setattr(Backlog, "strays_by_segment", backwards)


def send_again_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    real = PartitionFence.give_up_pending

    def give_up_pending(self: Any, keep: Any) -> Any:
        finals = real(self, keep)
        self.backlog.add_strays([final.record for final in finals])
        self._reopen()
        return finals

    patch.setattr(PartitionFence, "give_up_pending", give_up_pending)


def send_rejected_records_again_blindly(patch: pytest.MonkeyPatch) -> None:
    def rejected(self: Any, writer: Any, record: Any, *, lease_valid: bool) -> Any:
        return self.acknowledged(writer, record, 1 << 40, lease_valid=lease_valid)

    patch.setattr(PartitionFence, "rejected", rejected)


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


def read_the_overflow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_stray", lambda segment, stamp: stamp.epoch < segment.opened_epoch)


def read_past_the_marker_of_an_attempt_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_under_way", lambda *_: False)


def read_past_an_unknown_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_last", lambda *_: True)


def forget_what_is_astray(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionFence, "unclear", lambda self: [])


def send_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = PartitionFence._blocked

    def blocked(self: Any, writer: Any) -> bool:
        suspended, self.suspended = self.suspended, False
        try:
            return real(self, writer)
        finally:
            self.suspended = suspended

    patch.setattr(PartitionFence, "_blocked", blocked)
