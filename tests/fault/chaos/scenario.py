"""The scenario of a run: all work, faults with rests between them, peace, the verdict."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel

from kpsplit import PartitionProgress
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.demo.judge import ReadBack
from kpsplit.demo.records import Worked, read_worked
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import OWN_TOPICS
from tests.fault.chaos.faults import (
    MANY_SUSPENSIONS,
    MIXES,
    OVERTIME,
    Aims,
    Kind,
    Mix,
    Reached,
    Schedule,
    share,
    suspensions,
)
from tests.fault.chaos.inflict import Inflictor
from tests.fault.chaos.processes import Processes
from tests.fault.chaos.readback import plainly_read_back, read_back
from tests.fault.chaos.retention import Archive, excused, expected_gaps, untrue
from tests.fault.chaos.verdict import Verdict, judge_group

START_SECONDS = 300.0
END_SECONDS = 600.0
REST_SECONDS = 10.0
LOOK_SECONDS = 1.0
FOREVER = 1e6
MOST_NOTES = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of a run.

    ``minutes``: how long faults are done, by mixes; None: one fault of each of ``kinds``. ``longest``:
    seconds that a fault lasts at most. ``rate``: records per second and writer. ``mixes``: which ones.
    ``patience``: seconds in which the group has to have read everything when all is quiet.
    """

    seed: int
    minutes: float | None
    longest: float = 45.0
    rate: float = 150.0
    kinds: tuple[Kind, ...] = tuple(Kind)
    mixes: tuple[str, ...] = tuple(MIXES)
    patience: float = 300.0
    writers: int = 3
    members: int = 3


class Scenario:
    """One run, from the start of its processes to the verdict."""

    def __init__(
        self,
        options: Options,
        connection: Connection,
        processes: Processes,
        inflictor: Inflictor,
        archive: Archive,
    ) -> None:
        self._options = options
        self._connection = connection
        self._processes = processes
        self._inflictor = inflictor
        self._archive = archive
        self._aims = Aims.of(options.minutes, options.mixes)
        self._begun: list[str] = []
        """The mixes, in their order; one can come again."""

    def run(self) -> Verdict:
        """Run and judge.

        Raises:
            KpsplitError: the cluster did not recover, or could not be read back.
        """
        processes = self._processes
        processes.start(self._options.writers, self._options.members)
        processes.wait("all to work", self._all_work, START_SECONDS)
        processes.start_operator()
        self._rest()
        seconds = (self._options.minutes or FOREVER) * 60
        deadline, overtime = Deadline(seconds), Deadline(seconds * (1 + OVERTIME))
        for mix in self._mixes():
            say(f"mix: {mix.name}")
            self._inflict(mix, Deadline(self._share(mix, deadline)))
            self._rest()
            if deadline.expired() and (not self._missed() or overtime.expired()):
                break
        self._peace()
        return self._judge()

    def aims(self) -> str | None:
        """Return what a long run had to reach and what it reached; None for a short run."""
        return None if self._aims is None else self._aims.line(self._reached())

    def _missed(self) -> tuple[str, ...]:
        return () if self._aims is None else self._aims.missed(self._reached())

    def _reached(self) -> Reached:
        suspended = suspensions(strike.kind for strike in self._inflictor.strikes)
        return Reached(self._processes.acknowledged(), suspended, frozenset(self._begun))

    def _share(self, mix: Mix, deadline: Deadline) -> float:
        """Note that a mix begins; return the seconds that it may take: the first round has to get to all."""
        self._begun.append(mix.name)
        if self._aims is None:
            return deadline.left()
        return share(deadline.left(), mix.name, [n for n in self._aims.mixes if n not in self._begun])

    def _all_work(self) -> bool:
        self._processes.check()
        written = all(writer.news.ok for writer in self._processes.writers)
        return written and all(member.news.worked_on for member in self._processes.members)

    def _mixes(self) -> Iterator[Mix]:
        options = self._options
        schedule = Schedule(options.seed, options.longest)
        if options.minutes is None:
            return iter([schedule.each_once(options.kinds)])
        return schedule.mixes(options.mixes)

    def _inflict(self, mix: Mix, turn: Deadline) -> None:
        """Do the faults of a mix that begin in time, in a long run at least one."""
        whole = self._aims is not None and mix.name == MANY_SUSPENSIONS and bool(self._missed())
        for number, fault in enumerate(mix.faults):
            if turn.expired() and not whole and (number or self._aims is None):
                return
            step = f" after {fault.step}" if fault.step else ""
            say(f"  {fault.kind}{step}, {fault.hold:.1f} s")
            self._inflictor.do(fault)
            time.sleep(fault.rest)

    def _rest(self) -> None:
        """Do nothing until an operation has gone through."""
        before = self._gone_through()
        time.sleep(min(REST_SECONDS, self._options.longest))

        def went_on() -> bool:
            self._processes.mend()
            return self._gone_through() > before

        self._processes.wait("an operation to go through in peace", went_on, END_SECONDS)

    def _gone_through(self) -> int:
        return sum(operation.finished for operation in self._processes.operations)

    def _peace(self) -> None:
        """Let all finish: operations, reports, and what the group has to read."""
        say("peace: operations, reports and the group come to their ends")
        processes = self._processes
        processes.mend()
        processes.finish_operator(END_SECONDS)
        processes.finish_writers(END_SECONDS)
        try:
            self._await_drained(Deadline(self._options.patience))
            processes.finish_members(self._options.patience)
        except DeadlineExceededError as error:
            processes.troubles.append(error.message)
            for line in (*processes.standing(), *self._held_up()):
                say(line)

    def _await_drained(self, deadline: Deadline) -> None:
        while left := self._left():
            self._processes.mend_members()
            deadline.check(f"the group to read everything; it lags in {', '.join(left)}")
            deadline.pause(LOOK_SECONDS)

    def _left(self) -> list[str]:
        """Return where the group has still something to read and commit."""
        job = self._processes.job
        try:
            with Admin(self._connection) as operations:
                found = operations.offsets(job.group, job.topic)
        except KpsplitError as error:
            return [error.message]
        missing = job.partitions - len(found)
        return [_lag(progress) for progress in found if progress.lag != 0] + ["a partition"] * missing

    def _held_up(self) -> list[str]:
        """Return which partitions of kpsplit's topics have an open transaction."""
        try:
            return self._with_open_transactions()
        except KpsplitError as error:
            return [error.message]

    def _with_open_transactions(self) -> list[str]:
        admin = ClusterAdmin(self._connection)
        topics = admin.topics().items()
        places = [PhysicalPartition(t, n) for t, count in topics if t in OWN_TOPICS for n in range(count)]
        ends = admin.end_offsets(places)
        stable = admin.end_offsets(places, IsolationLevel.READ_COMMITTED)
        return [
            f"{place}: stable to {stable[place].offset} of {end.offset}"
            for place, end in ends.items()
            if stable[place].offset != end.offset
        ]

    def _judge(self) -> Verdict:
        say("reading everything back")
        processes = self._processes
        states = self._states()
        back = read_back(
            self._connection,
            processes.job.topic,
            states,
            processes.journals,
            self._archive,
            self._inflictor.foreign,
        )
        worked = {name: list(read_worked(path)) for name, path in processes.worked.items()}
        hurts = [*self._inflictor.hurts, *processes.losses()]
        seen = self._seen_by_group(back, states, worked)
        group = judge_group(worked, seen, [s.lineage for s in states], hurts)
        gaps = [str(gap) for tally in back.tallies.values() for gap in tally.gaps]
        gaps += self._wrong_gaps(states, back)
        gaps += [f"{back.altered} values differ from what was sent"] * bool(back.altered)
        for line in (*str(back.history).splitlines(), *group.examples, *gaps, *processes.troubles):
            say(f"  {line}")
        for note, times in Counter(processes.notes).most_common(MOST_NOTES):
            say(f"  operators, {times} times: {note}")
        return Verdict(
            back.history,
            group,
            back.strays,
            tuple(gaps),
            tuple(processes.troubles),
            removed=self._archive.count,
            told_gone=sum(len(o) for o in back.offsets.values()) - sum(len(o) for o in seen.values()),
            missed=self._missed(),
        )

    def _seen_by_group(
        self, back: ReadBack, states: list[PartitionState], worked: Mapping[str, list[Worked]]
    ) -> dict[int, set[int]]:
        """Return what the group had to work on: all records but those whose removal was reported to it."""
        reported = self._processes.reported_gaps()
        seen = {}
        for state in states:
            number = state.parent.partition
            mine = [gap for gap in reported if gap.source in state.lineage.sources()]
            done = {w.offset for journal in worked.values() for w in journal if w.partition == number}
            seen[number] = back.offsets[number] - excused(state.lineage, mine, self._archive.removals, done)
        return seen

    def _wrong_gaps(self, states: list[PartitionState], back: ReadBack) -> list[str]:
        """Return what is wrong with the gaps that members and a fresh reader reported."""
        starts = self._archive.starts
        wrong: list[str] = []
        for state in states:
            mine = [gap for gap in self._processes.reported_gaps() if gap.source in state.lineage.sources()]
            lies = untrue(state.lineage, mine, self._archive.removals)
            wrong += [f"reported to a member, and not true: {gap}" for gap in lies]
            expected = expected_gaps(state.lineage, starts)
            if not expected:
                continue
            gaps, offsets = plainly_read_back(self._connection, state)
            if gaps != expected:
                wrong.append(f"{state.parent}: a reader reported {gaps}, not {expected}")
            gone = {
                state.lineage.get(gap.segment).logical(offset)
                for gap in expected
                for offset in range(gap.start, gap.end)
            }
            if offsets != back.offsets[state.parent.partition] - gone:
                wrong.append(f"{state.parent}: a reader was not given exactly what retention left")
        return wrong

    def _states(self) -> list[PartitionState]:
        job = self._processes.job
        with Admin(self._connection) as operations:
            view = operations.view()
        found = [view.state(PhysicalPartition(job.topic, number)) for number in range(job.partitions)]
        return [state for state in found if state is not None]


def _lag(progress: PartitionProgress) -> str:
    return f"{progress.state.parent} by {progress.lag}"


def say(text: str) -> None:
    """Write a line about what happens to stderr."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
