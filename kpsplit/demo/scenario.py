"""The demo's scenario: write, split the hottest partition, split its hottest range, merge all, stop.

The operations are the ones of the command line, run in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from kpsplit.admin import Admin
from kpsplit.control.plans import Plan
from kpsplit.demo.display import Board, Display, MemberLine, PlaceLine, WriterLine, show_step
from kpsplit.demo.group import GroupActions
from kpsplit.demo.options import (
    PARTITIONS,
    SPLIT_AGAIN_INTO,
    SPLIT_INTO,
    SUSPENDED,
    Options,
    WriterNews,
    WriterStage,
)
from kpsplit.demo.processes import PATIENCE_SECONDS, MemberProcess, WriterProcess, WriterProcesses
from kpsplit.demo.timeline import FENCE_OFF, OperationTimeline, Timeline, TimeSpan
from kpsplit.demo.watch import Watch
from kpsplit.errors import CheckFailedError, KpsplitError, UsageError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Partitioner

MAX_PAUSE_MS = 30_000
REPLICATION = 3
SLOTS = 4
"""Key ranges per partition that groups share; few: the brokers run beside the demo on one machine."""
RATE_SECONDS = 2.0
"""Rates on the board are those of the latest seconds."""
_WAIT = 0.1


def make_topic(connection: Connection, topic: str) -> None:
    """Create the demo's topic and wait until every broker serves it.

    Raises:
        UsageError: there is a topic of that name already.
    """
    admin = ClusterAdmin(connection)
    brokers = admin.brokers()
    replication = min(REPLICATION, len(brokers))
    config = {"unclean.leader.election.enable": "false"}
    if replication >= REPLICATION:
        config["min.insync.replicas"] = "2"
    if not admin.create(topic, config, partitions=PARTITIONS, replication=replication):
        raise UsageError(f"there is a topic {topic} already", hint="choose another --topic")
    await_served(connection, brokers, {topic: PARTITIONS}, Deadline(PATIENCE_SECONDS))


def enrol(operations: Admin, topic: str, say: Callable[[str], None]) -> None:
    """Make kpsplit's topics if they are missing, and enrol the demo's."""
    created = operations.initialise()
    if created:
        say(f"created {', '.join(created)}")
    say(f"enrolling {topic}: waits for one lease …")
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)


def hot_of(timeline: Timeline) -> PhysicalPartition:
    """Return the partition that was found to be the hottest.

    Raises:
        KpsplitError: the scenario did not come so far.
    """
    if timeline.hot is None:
        raise KpsplitError("no partition was split")
    return timeline.hot


class Scenario:
    """The scenario itself. ``phase`` and ``state`` are read by the thread that draws the board."""

    def __init__(
        self,
        options: Options,
        operations: Admin,
        children: WriterProcesses,
        group: GroupActions,
        timeline: Timeline,
        display: Display,
    ) -> None:
        self._options = options
        self._operations = operations
        self._children = children
        self._group = group
        self._timeline = timeline
        self._display = display
        self.phase = "starting writers"
        self.state: PartitionState | None = None
        self.parents = tuple(PhysicalPartition(timeline.topic, p) for p in range(PARTITIONS))
        self.watch: Watch | None = None
        self.news_before: dict[str, WriterNews] = {}
        self._stretch_began = 0.0

    def run(self, connection: Connection) -> None:
        """Run it.

        Raises:
            KpsplitError: an operation failed, or a writer or a member of the group is not well.
        """
        with Watch(connection, self.parents, self.show) as self.watch:
            self._children.wait("get delivery reports", _is_served, PATIENCE_SECONDS)
            self._group.begin()
            self._timeline.began = monotonic()
            self._stretch("writing")
            hot = self._hottest(self.parents)[0]
            self._timeline.hot = hot
            self.news_before = self.news()
            self._split(hot)
            self._group.kill_one()
            self._stretch(f"{hot} is split into {SPLIT_INTO}")
            self._split_again(hot)
            self._group.look(hot.partition)
            self._group.suspend_one()
            self._stretch("one range is split again")
            self._run("merge", f"of all ranges back into {hot}", self._operations.plan_merge(hot))
            self._group.resume_one()
            self._stretch("merged")
            self.phase = "writers finish"
            self._say("the writers finish: rest of the input, last delivery reports")
            self._children.finish(PATIENCE_SECONDS)
            self._timeline.ended = monotonic()
            self.phase = "the group reads the rest"
            self._group.read_all()
        self.phase = "all writers have ended; what they sent is read back and checked"
        self.show()

    def news(self) -> dict[str, WriterNews]:
        """Return the writers' latest news."""
        return {child.name: child.news for child in self._children.all}

    def show(self) -> None:
        """Draw the board."""
        if self.watch is None:
            return
        places = tuple(self._place(self.watch, place) for place in self.watch.places)
        writers = tuple(_writer_line(child) for child in self._children.all)
        members = tuple(_member_line(member) for member in self._group.members.all)
        self._display.show(Board(self.phase, places, writers, members))

    def _split(self, hot: PhysicalPartition) -> None:
        """Split the hottest partition; one writer is suspended from before PREPARE until after COMMIT."""
        child = next(c for c in self._children.all if c.name == SUSPENDED)
        plan = self._operations.plan_split(hot, SPLIT_INTO)
        child.suspend()
        began = monotonic()
        self._say(f"{child.name} is suspended (SIGSTOP) in the middle of a burst; its lease will run out")

        def wake(step: StepDone) -> None:
            if step.name == FENCE_OFF:
                child.resume()
                self._timeline.suspension = TimeSpan(f"{child.name} suspended", began, monotonic())
                self._say(f"{child.name} is resumed (SIGCONT): what it had queued lands after the cut")

        try:
            self._run(f"split into {SPLIT_INTO}", f"of {hot}", plan, wake)
        finally:
            child.resume()

    def _split_again(self, hot: PhysicalPartition) -> None:
        """Split the hottest phantom; if it is one single hot key, the next one."""
        phantoms = [s for s in self._lineage(hot).open_segments() if s.kind is SegmentKind.PHANTOM]
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
        shares = "" if plan.shares is None else ", predicted shares " + _percentages(plan.shares)
        self.phase = label
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
        self._follow(log.report.state)
        self._group.drains.closed(log.report.state, log.fence.ended if log.fence else monotonic())
        pauses = sorted(p.pause_ms for p in log.report.pauses.values())
        self._say(f"    done in {log.report.seconds:.1f} s; writers paused for {pauses} ms")

    def _follow(self, state: PartitionState) -> None:
        """Watch the places that the new layout has, and all older ones."""
        self.state = state
        if self.watch is not None:
            self.watch.places = tuple(dict.fromkeys((*self.parents, *state.lineage.sources())))

    def _stretch(self, phase: str) -> None:
        """Let the writers write."""
        self.phase = phase
        self._say(f"{phase}: {self._options.stretch:.0f} s of steady traffic")
        self._stretch_began = monotonic()
        end = Deadline(self._options.stretch)
        while end.left() > 0:
            self._check()
            time.sleep(min(_WAIT, end.left()))
        self._check()

    def _check(self) -> None:
        self._children.check()
        self._group.members.check()

    def _hottest(self, places: Collection[PhysicalPartition]) -> list[PhysicalPartition]:
        """Return places by their growth during the latest stretch, the hottest first."""
        if self.watch is None:
            raise KpsplitError("nothing is watched")
        samples, since, until = self.watch.samples, self._stretch_began, monotonic()
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

    def _lineage(self, parent: PhysicalPartition) -> Lineage:
        state = self._operations.view().state(parent)
        if state is None:
            raise KpsplitError(f"{parent} is not enrolled any more")
        return state.lineage

    def _place(self, watch: Watch, place: PhysicalPartition) -> PlaceLine:
        rate = watch.samples.rate(place, RATE_SECONDS)
        return PlaceLine(
            short(place), self._role(place), watch.samples.end(place), rate, place == self._timeline.hot
        )

    def _role(self, place: PhysicalPartition) -> str:
        if self.state is None or place not in self.state.lineage.sources():
            return "unsplit"
        found = [s for s in self.state.lineage if s.is_open and s.source == place]
        return _role_of(found[0]) if found else "sealed"

    def _say(self, text: str) -> None:
        self._display.say(text)


def short(place: PhysicalPartition) -> str:
    """Return a name for the board: ``orders/3``, or ``split-3-1/0`` for a phantom."""
    return f"{place.topic.rpartition('.')[2]}/{place.partition}"


def _role_of(segment: Segment) -> str:
    return segment.kind.value if segment.kind is SegmentKind.OVERFLOW else f"{segment.kind} {segment.range}"


def _is_served(child: WriterProcess) -> bool:
    return child.news.ok > child.news.waiting


def _writer_line(child: WriterProcess) -> WriterLine:
    news = child.news
    stage = "suspended" if child.suspended else news.stage.value
    if news.stage is WriterStage.STOPPING and not child.suspended:
        stage = WriterStage.WRITING.value
    return WriterLine(child.name, stage, news.sent, news.ok + news.failed, news.waiting, news.strays)


def _member_line(member: MemberProcess) -> MemberLine:
    stage = "killed" if member.killed else "suspended" if member.suspended else "working"
    return MemberLine(member.name, stage, member.news.worked_on, member.news.slots)


def _percentages(shares: Iterable[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)
