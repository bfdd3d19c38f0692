"""The demo's scenario: write, split the hottest partition, split its hottest range, merge all, stop.

The operations are the ones of the command line, run in this process. Meanwhile a writer is suspended, and of
the group that reads one member is killed and one is suspended.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kpsplit.admin import Admin, PartitionProgress, PhysicalPartition, Plan, StepDone
from kpsplit.clock import Deadline, monotonic
from kpsplit.control.status import RangeProgress
from kpsplit.demo.display import Display, show_step
from kpsplit.demo.endpoints import PATIENCE_SECONDS, Endpoints, MemberNews, WriterNews
from kpsplit.demo.judge import Victim
from kpsplit.demo.records import Worked
from kpsplit.demo.timeline import FENCE_OFF, DrainWatch, OperationTimeline, Timeline, TimeSpan, Watch
from kpsplit.errors import CheckFailedError, DeadlineExceededError, UnreachableError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import SegmentKind

PARTITIONS = 6
SPLIT_INTO = 4
SPLIT_AGAIN_INTO = 2
KPSPLIT_WRITERS = ("writer-1", "writer-2", "writer-3", "writer-4")
PLAIN_WRITER = "plain"
WRITERS = (*KPSPLIT_WRITERS, PLAIN_WRITER)
SUSPENDED_WRITER = KPSPLIT_WRITERS[-1]
MEMBERS = ("reader-1", "reader-2", "reader-3", "reader-4")
KILLED_MEMBER, SUSPENDED_MEMBER, LATE_MEMBER = "reader-1", "reader-2", "reader-4"
STRETCHES = 4
"""The duration is divided among: before the split, after it, after the nested split, after the merge."""

OPERATIONS_SECONDS = 20.0
"""About how long the group's start and the operations take, which the duration does not count."""


@dataclass(frozen=True, slots=True)
class Options:
    """The demo's options. ``duration``: seconds of steady writing between operations, in all."""

    duration: float
    rate: float
    seed: int
    html: Path
    input: Path | None = None
    expression: str | None = None
    topic: str | None = None

    @property
    def stretch(self) -> float:
        return self.duration / STRETCHES

    def topic_name(self) -> str:
        """Return the topic's name: the given one, or one that no topic has."""
        return self.topic or f"kpsplit-demo-{random.SystemRandom().getrandbits(32):08x}"


MAX_PAUSE_MS = 30_000
RATE_SECONDS = 2.0
"""Rates that are shown are those of the latest seconds."""
LOOK_SECONDS = 0.5
"""Between looks at the group's progress, each of which reads a log from its start."""
_WAIT = 0.1


@dataclass(frozen=True, slots=True)
class Participants:
    """The writers, the members of a group, and the thread that follows what the group drains."""

    writers: Endpoints[WriterNews]
    members: Endpoints[MemberNews]
    group: str
    drains: DrainWatch


class Scenario:
    """The scenario itself. Its phase is shown by the thread that watches the partitions."""

    def __init__(
        self, options: Options, operations: Admin, parts: Participants, timeline: Timeline, display: Display
    ) -> None:
        self.parents = tuple(PhysicalPartition(timeline.topic, p) for p in range(PARTITIONS))
        self.news_before: dict[str, WriterNews] = {}
        """The writers' news before the first operation."""
        self.progress: PartitionProgress | None = None
        """The group's range commits in the affected partition, in the middle of the scenario."""
        self._options = options
        self._operations = operations
        self._parts = parts
        self._timeline = timeline
        self._display = display
        self._say = display.say
        self._phase = "starting writers"
        self._stretch_began = 0.0
        self._resumed_at = math.inf

    def run(self, connection: Connection) -> PhysicalPartition:
        """Run it; return the partition that was split."""
        self._watch = Watch(connection, self.parents, self._show)
        with self._watch:
            self._begin()
            self._stretch("writing")
            hot = self._hottest(self.parents)[0]
            self._timeline.hot = hot
            self.news_before = self.news()
            self._split(hot)
            self._kill_member()
            self._stretch(f"{hot} is split into {SPLIT_INTO}")
            self._split_again(hot)
            self._look(hot.partition)
            self._suspend_member()
            self._stretch("one range is split again")
            self._run("merge", f"of all ranges back into {hot}", self._operations.plan_merge(hot))
            self._resume_member()
            self._stretch("merged")
            self._finish()
        self._phase = "all writers have ended; what they sent is read back and checked"
        self._show()
        return hot

    def news(self) -> dict[str, WriterNews]:
        return {writer.name: writer.news for writer in self._parts.writers.all}

    def victims(self, journals: Mapping[str, Sequence[Worked]]) -> dict[str, Victim]:
        """Return what struck members. The coordinator may also have taken slots from others."""
        found = {
            member.name: Victim(f"{member.name} lost its slots", member.news.lost_at)
            for member in self._parts.members.all
            if member.news.lost_at is not None
        }
        back = [entry.at for entry in journals[SUSPENDED_MEMBER] if entry.at >= self._resumed_at]
        found[SUSPENDED_MEMBER] = Victim("the suspension", min(back, default=self._resumed_at))
        found[KILLED_MEMBER] = Victim("the kill", -math.inf)
        return found

    # -- the beginning and the end -----------------------------------------------------------------

    def _begin(self) -> None:
        writers, members = self._parts.writers, self._parts.members
        writers.wait(
            "delivery reports", lambda: all(w.news.ok > w.news.waiting for w in writers.all), PATIENCE_SECONDS
        )
        first = [member for member in members.all if member.name != LATE_MEMBER]
        for member in first:
            member.begin()
        members.wait("the group to begin", lambda: all(m.news.worked_on for m in first), PATIENCE_SECONDS)
        names = ", ".join(member.name for member in first)
        self._say(f"group {self._parts.group}: {names} share all partitions by key range")
        self._timeline.began = monotonic()

    def _finish(self) -> None:
        self._phase = "writers finish"
        self._say("the writers finish: rest of the input, last delivery reports")
        self._parts.writers.finish("the writers to finish", PATIENCE_SECONDS)
        self._timeline.ended = monotonic()
        self._phase = "the group reads the rest"
        members = self._parts.members
        members.wait("the group to read everything", self._at_the_end, PATIENCE_SECONDS, LOOK_SECONDS)
        members.finish("the group to leave", PATIENCE_SECONDS)

    def _at_the_end(self) -> bool:
        if self._parts.drains.waiting:
            return False
        with suppress(UnreachableError, DeadlineExceededError):  # slow brokers: the next look decides
            found = self._operations.offsets(self._parts.group, self._timeline.topic)
            return all(progress.lag == 0 for progress in found)
        return False

    # -- what happens to the group -----------------------------------------------------------------

    def _kill_member(self) -> None:
        self._parts.members[KILLED_MEMBER].kill()
        self._parts.members[LATE_MEMBER].begin()
        self._say(f"{KILLED_MEMBER} is killed (SIGKILL), {LATE_MEMBER} joins the group")

    def _suspend_member(self) -> None:
        self._parts.members[SUSPENDED_MEMBER].suspend()
        self._say(f"{SUSPENDED_MEMBER} is suspended (SIGSTOP): the group goes on without it")

    def _resume_member(self) -> None:
        self._resumed_at = monotonic()
        self._parts.members[SUSPENDED_MEMBER].resume()
        self._say(f"{SUSPENDED_MEMBER} is resumed (SIGCONT): what it has in hand is not its own any more")

    def _look(self, partition: int) -> None:
        """Show where the group stands in a partition, by its range commits."""
        (self.progress,) = self._operations.offsets(self._parts.group, self._timeline.topic, partition)
        for range_ in self.progress.ranges:
            self._say(f"    {_progress_line(range_)}")

    # -- operations --------------------------------------------------------------------------------

    def _split(self, hot: PhysicalPartition) -> None:
        """Split the hottest partition; one writer is suspended from before PREPARE until after COMMIT."""
        writer = self._parts.writers[SUSPENDED_WRITER]
        plan = self._operations.plan_split(hot, SPLIT_INTO)
        writer.suspend_in_burst()
        began = monotonic()
        self._say(f"{writer.name} is suspended (SIGSTOP) in the middle of a burst; its lease will run out")

        def wake(step: StepDone) -> None:
            if step.name == FENCE_OFF:
                writer.resume()
                self._timeline.suspension = TimeSpan(f"{writer.name} suspended", began, monotonic())
                self._say(f"{writer.name} is resumed (SIGCONT): what it had queued lands after the cut")

        try:
            self._run(f"split into {SPLIT_INTO}", f"of {hot}", plan, wake)
        finally:
            writer.resume()

    def _split_again(self, hot: PhysicalPartition) -> None:
        """Split the hottest phantom; if it is one single hot key, the next one."""
        phantoms = [s for s in self._operations.lineage(hot).open_segments() if s.kind is SegmentKind.PHANTOM]
        ranked = self._hottest([s.source for s in phantoms])
        ranges = [next(s.range for s in phantoms if s.source == place) for place in ranked]
        plans = [self._operations.plan_split(hot, SPLIT_AGAIN_INTO, of=ranges[0])]
        for range_ in ranges[1:]:
            if not plans[-1].problems():
                break
            self._say(f"    {plans[-1].problems()[0].message}; trying the next hottest range")
            plans.append(self._operations.plan_split(hot, SPLIT_AGAIN_INTO, of=range_))
        plan = plans[-1] if not plans[-1].problems() else plans[0]
        self._run(
            f"range split into {SPLIT_AGAIN_INTO}",
            f"{plan.ranges[0].lo:08x}:{plan.ranges[-1].hi:08x} of {hot}",
            plan,
        )

    def _run(
        self, label: str, detail: str, plan: Plan, also: Callable[[StepDone], None] = lambda _: None
    ) -> None:
        shares = (
            ""
            if plan.shares is None
            else ", predicted shares " + ", ".join(f"{share:.0%}" for share in plan.shares)
        )
        self._phase = label
        self._say(f"{label} {detail}{shares}")
        log = OperationTimeline(label, detail)
        self._timeline.operations.append(log)

        def observe(step: StepDone) -> None:
            log.steps.append((monotonic(), step))
            show_step(self._display, step)
            also(step)

        problems = plan.problems(force=True)
        if problems:
            raise CheckFailedError(
                f"check {problems[0].name}: {problems[0].message}", hint=problems[0].remedy
            )
        log.report = self._operations.run(plan, max_pause_ms=MAX_PAUSE_MS, observer=observe, force=True)
        state = log.report.state
        self._watch.places = tuple(dict.fromkeys((*self.parents, *state.lineage.sources())))
        self._parts.drains.closed(state, log.fence.ended if log.fence else monotonic())
        pauses = sorted(p.pause_ms for p in log.report.pauses.values())
        self._say(f"    done in {log.report.seconds:.1f} s; writers paused for {pauses} ms")

    def _stretch(self, phase: str) -> None:
        """Let the writers write."""
        self._phase = phase
        self._say(f"{phase}: {self._options.stretch:.0f} s of steady traffic")
        self._stretch_began = monotonic()
        end = Deadline(self._options.stretch)
        while end.left() > 0:
            self._check()
            time.sleep(min(_WAIT, end.left()))
        self._check()

    def _check(self) -> None:
        self._parts.writers.check()
        self._parts.members.check()

    def _hottest(self, places: Collection[PhysicalPartition]) -> list[PhysicalPartition]:
        """Return places by their growth during the latest stretch, the hottest first."""
        samples, since, until = self._watch.samples, self._stretch_began, monotonic()
        late = Deadline(PATIENCE_SECONDS)
        while not samples.reach(places, until):
            late.check("the ends of the partitions that are watched")
            self._check()
            time.sleep(_WAIT)
        found = samples.hottest(places, since)
        grown = [samples.grown(place, since) for place in found]
        total = sum(grown) or 1
        self._say(f"measured: {short(found[0])} is the hottest, {grown[0]:,} of {total:,} records "
                  f"({grown[0] / total:.0%})")  # fmt: skip
        return found

    def _show(self) -> None:
        watch = self._watch
        rates = {short(place): watch.samples.rate(place, RATE_SECONDS) for place in watch.places}
        sent = sum(writer.news.sent for writer in self._parts.writers.all)
        self._display.show(self._phase, sent, rates)


def short(place: PhysicalPartition) -> str:
    """Return a name that is shown: ``orders/3``, or ``split-3-1/0`` for a phantom."""
    return f"{place.topic.rpartition('.')[2]}/{place.partition}"


def _progress_line(range_: RangeProgress) -> str:
    owner = "no owner" if range_.owner is None else range_.owner.client_id
    places = ", ".join(
        f"segment {left.segment.id} at {left.next:,}{f' ({left.stage})' if left.stage else ''}"
        for left in range_.left
    )
    lag = "unknown" if range_.lag is None else f"{range_.lag:,}"
    return f"{range_.range} {owner}: {places or range_.basis}; lag {lag}"
