"""What happens in a run, in order: all work, faults with rests between them, peace, the judgement."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import IsolationLevel

from kpsplit.demo.group.worked import read_worked
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.group_progress import PartitionProgress
from kpsplit.kafka.operations import Operations
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import OWN_TOPICS
from tests.fault.chaos.crew import Crew
from tests.fault.chaos.faults import MIXES, Kind, Mix, Schedule
from tests.fault.chaos.inflict import Inflictor
from tests.fault.chaos.readback import read_back
from tests.fault.chaos.verdict import Verdict, judge_group

START_SECONDS = 300.0
END_SECONDS = 600.0
REST_SECONDS = 10.0
LOOK_SECONDS = 1.0
FOREVER = 1e6


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


class Play:
    """See the module."""

    def __init__(self, options: Options, connection: Connection, crew: Crew, inflictor: Inflictor) -> None:
        self._options = options
        self._connection = connection
        self._crew = crew
        self._inflictor = inflictor

    def run(self) -> Verdict:
        """Play and judge.

        Raises:
            KpsplitError: the cluster did not recover, or could not be read back.
        """
        crew = self._crew
        crew.start(self._options.writers, self._options.members)
        crew.wait("all to work", self._all_work, START_SECONDS)
        crew.start_operator()
        self._rest()
        deadline = Deadline((self._options.minutes or FOREVER) * 60)
        for mix in self._mixes():
            say(f"mix: {mix.name}")
            self._inflict(mix, deadline)
            self._rest()
            if deadline.expired():
                break
        self._peace()
        return self._judge()

    def _all_work(self) -> bool:
        self._crew.check()
        written = all(writer.news.ok for writer in self._crew.writers)
        return written and all(member.news.worked_on for member in self._crew.members)

    def _mixes(self) -> Iterator[Mix]:
        options = self._options
        schedule = Schedule(options.seed, options.longest)
        if options.minutes is None:
            return iter([schedule.each_once(options.kinds)])
        return schedule.mixes(options.mixes)

    def _inflict(self, mix: Mix, deadline: Deadline) -> None:
        for fault in mix.faults:
            if deadline.expired():
                return
            step = f" behind {fault.step}" if fault.step else ""
            say(f"  {fault.kind}{step}, {fault.hold:.1f} s")
            self._inflictor.do(fault)
            time.sleep(fault.rest)

    def _rest(self) -> None:
        """Do nothing until an operation has gone through."""
        before = self._gone_through()
        time.sleep(min(REST_SECONDS, self._options.longest))

        def went_on() -> bool:
            self._crew.mend()
            return self._gone_through() > before

        self._crew.wait("an operation to go through in peace", went_on, END_SECONDS)

    def _gone_through(self) -> int:
        return sum(operation.finished for operation in self._crew.operations)

    def _peace(self) -> None:
        """Let all finish: operations, reports, and what the group has to read."""
        say("peace: operations, reports and the group come to their ends")
        crew = self._crew
        crew.mend()
        crew.finish_operator(END_SECONDS)
        crew.finish_writers(END_SECONDS)
        try:
            self._await_drained(Deadline(self._options.patience))
            crew.finish_members(self._options.patience)
        except DeadlineExceededError as error:
            crew.troubles.append(error.message)
            for told in (*crew.standing(), *self._held_up()):
                say(told)

    def _await_drained(self, deadline: Deadline) -> None:
        while left := self._left():
            self._crew.mend_members()
            deadline.check(f"the group to read everything; it lags in {', '.join(left)}")
            deadline.pause(LOOK_SECONDS)

    def _left(self) -> list[str]:
        """Return where the group has still something to read and commit."""
        job = self._crew.job
        try:
            with Operations(self._connection) as operations:
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
        crew = self._crew
        states = self._states()
        back = read_back(self._connection, crew.job.topic, states, crew.journals)
        worked = {name: list(read_worked(path)) for name, path in crew.worked.items()}
        hurts = [*self._inflictor.hurts, *crew.losses()]
        group = judge_group(worked, back.offsets, [s.lineage for s in states], hurts)
        for line in (*str(back.history).splitlines(), *group.examples, *back.gaps, *crew.troubles):
            say(f"  {line}")
        return Verdict(
            back.history, group, back.strays, tuple(back.gaps), tuple(crew.troubles), crew.library_aborts
        )

    def _states(self) -> list[PartitionState]:
        job = self._crew.job
        with Operations(self._connection) as operations:
            view = operations.view()
        found = [view.state(PhysicalPartition(job.topic, number)) for number in range(job.partitions)]
        return [state for state in found if state is not None]


def _lag(progress: PartitionProgress) -> str:
    return f"{progress.state.parent} by {progress.lag}"


def say(text: str) -> None:
    """Tell people what happens."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
