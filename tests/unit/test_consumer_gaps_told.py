"""Nothing behind a gap is read, let alone committed, before the application was told of the gap."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest

from kpsplit.consumer.engine import Engine
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.consumer.fetch.fetch_state import FetchState
from kpsplit.consumer.fetch.gaps import Found, Gap, GapPolicy, LogBounds, ReadingEvent
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.runner import Attached, attach, commit_now
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, Reader, World, record

LOW, END = 5, 8
"""The log's records were removed up to there; it ends there."""


class LogReader(Reader):
    """Real tracks over a log of which the first records were removed. ``turns``: how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine | None = None
        self.turns = 0
        numbers = count(1)
        state = PartitionState.unsplit(PARENT, "id")
        self.tracks = FetchState(state, lambda: next(numbers), self._report, GapPolicy.SKIP_AND_REPORT)

    def _report(self, event: ReadingEvent) -> None:
        assert self.engine is not None
        self.engine.reading.report(event)

    @property
    def wants_refresh(self) -> int:  # type: ignore[override]
        return self.tracks.request_id

    def refreshed(self, request_id: int) -> None:
        self.tracks.refreshed(request_id)

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        super().own(slot, cursor)
        self.tracks.own(slot, cursor)

    def disown(self, slots: list[OwnedSlot]) -> None:
        super().disown(slots)
        for one in slots:
            self.tracks.disown(one)

    def told(self, parent: PhysicalPartition, gap: Gap) -> list[Batch]:
        return self.tracks.told(gap)

    def step(self, seconds: float, room: int) -> list[Batch]:
        super().step(seconds, room)
        self.turns += 1
        position = self.tracks.wanted().get(PARENT)
        if position is None or position >= END:
            return []
        if position < LOW:
            return self.tracks.examine(PARENT, Found("id", LogBounds(LOW, END, END)))
        return self.tracks.take(PARENT, position, [record(n) for n in range(position, END)], True)


class Scene:
    """A member whose slot stands at a gap. ``heard``: what ``error_cb`` was told."""

    def __init__(self, world: World, reader: LogReader) -> None:
        self.world, self.reader = world, reader
        self.heard: list[str] = []

    def take_slot(self) -> None:
        """Get the slot, and read until the gap was met and all was done that can be."""
        self.world.coordinator.give(0)
        self.world.until(lambda: self.world.events, "on_assign")
        self.world.poll()
        self.world.fetches(lambda: self.world.count("gaps"), "the gap")
        self.turn()

    def run(self) -> WorkQueue:
        """Have records go to workers, as ``Consumer.run`` does; nobody works."""
        work_queue = WorkQueue(1, 1 << 20, Judge(Stop()))
        attached = Attached(work_queue, replace(self.world.settings, auto_commit=True), lambda: None)
        self.world.engine.ask(lambda: attach(self.world.engine, attached)).result(10)
        return work_queue

    def turn(self) -> None:
        """Let the engine do all that it can, again and again."""
        wanted = self.reader.turns + 30
        self.world.fetches(lambda: self.reader.turns > wanted, "the engine")

    def commit(self) -> list[int]:
        """Commit what is processed; return every position that was ever committed."""
        world = self.world
        asked = world.engine.ask(lambda: commit_now(world.engine)).result(10)
        assert asked.exception(10) is None or "NO_OFFSET" in str(asked.exception())
        return [position for commit in world.group_offsets.commits for position in commit.values()]


@contextmanager
def scene(**settings: object) -> Iterator[Scene]:
    reader = LogReader()
    with World(reader, **settings) as world:
        reader.engine = world.engine
        made = Scene(world, reader)
        world.events.error_cb = lambda error: made.heard.append(error.str())
        world.subscribe()
        yield made


def test_workers_do_not_commit_behind_a_gap_while_its_notice_waits() -> None:
    with scene() as gap:
        gap.run()
        gap.take_slot()
        assert gap.commit() == []
        gap.world.poll()
        assert len(gap.heard) == 1
        assert "offsets 0 to 4" in gap.heard[0]
        gap.world.until(lambda: max(gap.commit(), default=0) > LOW, "a commit behind the gap")


def test_who_polls_gets_what_is_behind_a_gap_once_it_was_told_of_the_gap() -> None:
    with scene() as gap:
        gap.take_slot()
        assert gap.commit() == []
        assert [m.offset() for m in gap.world.take(3)] == [5, 6, 7]
        assert len(gap.heard) == 1


def test_a_notice_that_raises_was_told() -> None:
    def fail(error: object) -> None:
        raise RuntimeError(str(error))

    with scene() as gap:
        gap.world.events.error_cb = fail
        gap.take_slot()
        gap.world.until(lambda: gap.world.events, "the notice")
        with pytest.raises(RuntimeError, match="offsets 0 to 4"):
            gap.world.poll()
        assert len(gap.world.take(3)) == 3


def test_an_application_without_error_cb_is_told_by_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kpsplit"), scene() as gap:
        gap.world.events.error_cb = None
        gap.take_slot()
        assert "offsets 0 to 4" in caplog.text
        assert len(gap.world.take(3)) == 3
        assert gap.world.count("gap_records") == 5


def test_a_slot_leaves_before_a_gap_that_nobody_was_told_of() -> None:
    """The next owner finds the gap by itself, from the position before it."""
    with scene(enable_auto_commit=True) as gap:
        gap.run()
        gap.take_slot()
        gap.world.engine.membership.callbacks.on_revoke = None
        gap.world.coordinator.take(0)
        gap.world.until(lambda: not gap.world.coordinator.held(), "the hand-over")
        assert gap.world.group_offsets.commits == []
        gap.world.polls(lambda: gap.heard, "the notice")
        gap.world.until(lambda: not gap.world.engine.reading.notices, "the engine")
        assert gap.world.group_offsets.commits == []


def test_close_waits_for_no_notice() -> None:
    with scene() as gap:
        gap.take_slot()
        gap.world.engine.close()
        gap.world.until(lambda: gap.world.events, "on_revoke")
        gap.world.close()
        assert gap.world.group_offsets.commits == []
        assert len(gap.heard) == 1
