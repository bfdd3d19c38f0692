"""Commits of topics that are not enrolled: state first, then the positions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.commit.committer import Committer
from kpsplit.consumer.commit.payload import CommitUnit
from kpsplit.consumer.slots.assigned import AssignedSlot, SlotStage
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.consumer.state.slots import SlotId
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.splitter.group_slots import Mode, OwnedSlot, subscribed
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.unit.state_fakes import Store, count

PARENT = PhysicalPartition("plain", 0)
SLOT = OwnedSlot(PARENT, 0, 1)
ENROLLED = OwnedSlot(PhysicalPartition("orders", 0), 0, 1)
CURSORS = {SLOT: (Cursor(WHOLE, {0: 7}),)}


class Member:
    """One slot of a plain topic, and what a commit of it does, in order."""

    def __init__(self) -> None:
        self.store = Store()
        self.did = self.store.told
        self.jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.assigned = AssignedSlot(SLOT, PARENT, Mode.PLAIN, SlotStage.READING)
        metadata: Any = SimpleNamespace(
            state=lambda parent, **_: PartitionState.unsplit(parent, "id"),
            subscribed=lambda topic: subscribed(topic, None),
        )
        reader: Any = SimpleNamespace(disown=lambda slots: None)
        sink: Any = SimpleNamespace(mark=lambda: 0, passed=lambda _: True, dropped=lambda slots: None)
        self.slots = AssignedSlots(metadata, reader, sink, StateBinding(self.store))
        self.slots.add([self.assigned])
        assert self.slots.restored(self.assigned)
        settings: Any = SimpleNamespace(auto_commit_interval=9e9, auto_commit=False, on_commit=None)
        self.group: Any = SimpleNamespace(commit=self._commit)
        self.executor: Any = SimpleNamespace(run=self._run)
        events: Any = None
        self.committer = Committer(settings, self.slots, self.group, self.executor, events)
        count(self.store.owned[SlotId.of(SLOT)], b"k")

    def _run(self, job: Callable[[], Any]) -> Future[Any]:
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def _commit(
        self, offsets: dict[PhysicalPartition, int], texts: dict[PhysicalPartition, str]
    ) -> Future[None]:
        self.did.append(offsets)
        self.texts = texts
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def send(self) -> CommitUnit:
        [unit] = self.committer._send(CURSORS, ())
        return unit

    def work(self) -> None:
        """Do what was given to the thread that may wait."""
        [(job, future)] = self.jobs
        try:
            future.set_result(job())
        except KpsplitError as error:
            future.set_exception(error)


def test_positions_are_committed_when_the_changelog_has_the_state() -> None:
    member = Member()
    unit = member.send()
    assert not unit.done()
    member.work()
    assert unit.done()
    assert member.did[-3:] == ["flush", "committed", {PARENT: 7}]
    assert member.store.saved() == {b"k": 1}


def test_positions_are_not_committed_when_the_changelog_does_not_have_the_state() -> None:
    member = Member()
    member.store.flush_error = UnreachableError("no brokers")
    unit = member.send()
    member.work()
    assert unit.done()
    assert isinstance(unit.future.exception(), UnreachableError)
    assert member.did[-2:] == ["flush", "aborted"]
    member.store.flush_error = None
    member.jobs.clear()
    again = member.send()
    member.work()
    assert again.done()
    assert member.store.saved() == {b"k": 1}


@pytest.mark.parametrize("comes_back", [True, False])
def test_positions_of_a_slot_that_was_lost_while_its_state_was_flushed_are_not_committed(
    comes_back: bool,
) -> None:
    member = Member()
    unit = member.send()
    member.slots.remove([member.assigned])
    if comes_back:
        member.slots.add([AssignedSlot(SLOT, PARENT, Mode.PLAIN)])
    member.work()
    assert unit.done()
    assert member.did[-2:] == ["flush", "committed"]


def test_a_slot_whose_local_state_could_not_follow_starts_anew_also_where_its_commit_fails_then() -> None:
    """Else the next commit would pass records whose writes are gone."""
    member = Member()
    refused: Future[None] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS)))
    member.group.commit = lambda *_: refused
    committer = member.committer
    asked: Future[Any] = Future()
    committer.ask(CURSORS, asked)
    committer.turn()
    member.store.disk.broken = True
    member.work()
    committer.turn()
    assert isinstance(asked.exception(0), KafkaException)
    assert member.assigned.stage is SlotStage.WANTED


@pytest.mark.parametrize("error", [MemoryError(), KpsplitError("closed")])
def test_state_that_could_not_even_be_flushed_waits_for_the_next_commit(error: Exception) -> None:
    """And whoever waits for the commit gets an answer."""
    member, asked = Member(), Future[Any]()
    given = member.executor.run
    member.executor.run = mock.Mock(side_effect=error)
    member.committer.ask(CURSORS, asked)
    with suppress(MemoryError):
        member.committer.turn()
    member.committer.turn()
    assert isinstance(asked.exception(0), KafkaException)
    member.executor.run = given
    again: Future[Any] = Future()
    member.committer.ask(CURSORS, again)
    member.committer.turn()
    member.work()
    member.committer.turn()
    assert again.exception(0) is None
    assert member.store.saved() == {b"k": 1}


def test_what_was_sent_before_the_rest_of_a_commit_failed_is_followed_and_the_call_is_refused() -> None:
    """A transaction for slots and an ordinary commit: the first is under way when the second raises."""
    member, asked = Member(), Future[Any]()
    enrolled = AssignedSlot(ENROLLED, ENROLLED.parent, Mode.SLOTS, SlotStage.READING)
    member.slots.add([enrolled])
    cursors = {**CURSORS, ENROLLED: (Cursor(WHOLE, {0: 3}),)}
    sent: Future[None] = Future()
    member.executor.ask = lambda _: sent
    member.executor.run = mock.Mock(side_effect=MemoryError)
    member.group.memberid = member.group.metadata = lambda: None
    member.committer.settings.group = "g"
    member.committer.ask(cursors, asked)
    with pytest.raises(MemoryError):
        member.committer.turn()
    member.committer.turn()
    assert not asked.done(), "the transaction is not over"
    sent.set_result(None)
    member.committer.turn()
    assert isinstance(asked.exception(0), KafkaException)
    assert enrolled.committed == cursors[ENROLLED]
    assert member.assigned.committed == ()


def test_a_text_goes_with_its_offset_until_the_slot_is_dropped() -> None:
    member = Member()
    member.committer.keep_metadata(PARENT, 7, "text")
    for assigned, texts in ((member.assigned, {PARENT: "text"}), (None, {})):
        unit = member.send()
        member.work()
        assert unit.done()
        assert member.texts == texts
        if assigned is not None:
            member.slots.drop([assigned])
            member.committer.forget([assigned])
            member.slots.add([AssignedSlot(SLOT, PARENT, Mode.PLAIN, SlotStage.READING)])
            member.jobs.clear()


def test_a_text_does_not_go_with_another_offset() -> None:
    member = Member()
    member.committer.keep_metadata(PARENT, 6, "text")
    unit = member.send()
    member.work()
    assert unit.done()
    assert member.texts == {}


def test_a_commit_that_cannot_even_be_sent_has_failed() -> None:
    flushed: Future[None] = Future()
    flushed.set_result(None)

    def refused() -> Future[None]:
        raise UnreachableError("no group any more")

    unit = CommitUnit((SLOT,), flushed, then=refused)
    assert unit.done()
    assert isinstance(unit.future.exception(), UnreachableError)
