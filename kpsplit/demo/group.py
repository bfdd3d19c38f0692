"""The group's part in the demo: who joins, who is killed, who is suspended, and when all has been read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kpsplit.admin import Admin
from kpsplit.control.group_progress import PartitionProgress, RangeProgress
from kpsplit.demo.journal import Worked, read_worked
from kpsplit.demo.judging import CommitHistory, Committed, Excuses, GroupVerdict, Victim, judge
from kpsplit.demo.options import MemberOrders
from kpsplit.demo.processes import PATIENCE_SECONDS, MemberProcesses
from kpsplit.demo.readback import ReadBack
from kpsplit.demo.watch import DrainWatch, SegmentDrain
from kpsplit.errors import DeadlineExceededError, UnreachableError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import Lineage

FIRST_MEMBERS = ("reader-1", "reader-2", "reader-3")
KILLED, SUSPENDED, JOINS_LATE = "reader-1", "reader-2", "reader-4"
DOOMED_SESSION_MS = 10_000
"""After so long without a heartbeat the slots of a member that is killed or suspended are given to others."""
SESSION_MS = 60_000
"""The same for members that nobody hurts: a busy machine must not cost them their slots."""
LOOK_SECONDS = 0.5
"""Between looks at the group's progress, each of which reads a log from its start."""


class GroupActions:
    """What happens to the group's members."""

    def __init__(
        self,
        operations: Admin,
        topic: str,
        members: MemberProcesses,
        drains: DrainWatch,
        say: Callable[[str], None],
    ) -> None:
        self.members = members
        self.drains = drains
        self._resumed_at = math.inf
        self.progress: PartitionProgress | None = None
        self._operations = operations
        self._topic = topic
        self._say = say

    def begin(self) -> None:
        """Start the first members; return when each has worked on a record."""
        self.members.prepare([JOINS_LATE])
        self.members.join(FIRST_MEMBERS)
        self.members.wait("begin", lambda: all(m.news.worked_on for m in self.members.all), PATIENCE_SECONDS)
        names = ", ".join(FIRST_MEMBERS)
        self._say(f"group {group_of(self._topic)}: {names} share all partitions by key range")

    def kill_one(self) -> None:
        """Kill a member; another joins."""
        self.members.named(KILLED).kill()
        self.members.join([JOINS_LATE])
        self._say(f"{KILLED} is killed (SIGKILL), {JOINS_LATE} joins the group")

    def suspend_one(self) -> None:
        """Suspend a member."""
        self.members.named(SUSPENDED).suspend()
        self._say(f"{SUSPENDED} is suspended (SIGSTOP): the group goes on without it")

    def resume_one(self) -> None:
        """Let it go on."""
        self._resumed_at = monotonic()
        self.members.named(SUSPENDED).resume()
        self._say(f"{SUSPENDED} is resumed (SIGCONT): what it still has in hand is not its own any more")

    def look(self, partition: int) -> None:
        """Say where the group stands in a partition, by its range commits."""
        (self.progress,) = self._operations.offsets(group_of(self._topic), self._topic, partition)
        for range_ in self.progress.ranges:
            self._say(f"    {_line(range_)}")

    def read_all(self) -> None:
        """Return when the group has committed everything, and has left.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: a member is not well.
        """
        self.members.wait("read everything", self._at_the_end, PATIENCE_SECONDS, LOOK_SECONDS)
        self.members.finish(PATIENCE_SECONDS)

    def victims(self, journals: Mapping[str, Sequence[Worked]]) -> dict[str, Victim]:
        """Return what befell members: also what the coordinator took from those that nobody hurt."""
        found = {
            member.name: Victim(f"{member.name} lost its slots", member.news.lost_at)
            for member in self.members.all
            if member.news.lost_at is not None
        }
        back = [entry.at for entry in journals[SUSPENDED] if entry.at >= self._resumed_at]
        found[SUSPENDED] = Victim("the suspension", min(back, default=self._resumed_at))
        found[KILLED] = Victim("the kill", -math.inf)
        return found

    def _at_the_end(self) -> bool:
        if self.drains.waiting:
            return False
        with suppress(UnreachableError, DeadlineExceededError):  # slow brokers: the next look decides
            found = self._operations.offsets(group_of(self._topic), self._topic)
            return all(progress.lag == 0 for progress in found)
        return False


def group_of(topic: str) -> str:
    """Return the name of the group that works."""
    return f"{topic}-workers"


def orders_of(connection: Connection, topic: str, folder: Path) -> Callable[[str], MemberOrders]:
    """Return what makes a member's orders from its name."""
    return lambda name: MemberOrders(
        name=name,
        properties=connection.properties,
        group=group_of(topic),
        topic=topic,
        journal=str(folder / f"{name}.worked"),
        session_ms=DOOMED_SESSION_MS if name in (KILLED, SUSPENDED) else SESSION_MS,
    )


def _line(range_: RangeProgress) -> str:
    owner = "nobody" if range_.owner is None else range_.owner.client_id
    places = ", ".join(
        f"segment {left.segment.id} at {left.next:,}{'' if left.ready else ' (waits)'}"
        f"{' (drains)' if left.ready and left.draining else ''}"
        for left in range_.left
    )
    lag = "unknown" if range_.lag is None else f"{range_.lag:,}"
    return f"{range_.range} {owner}: {places or range_.basis}; lag {lag}"


# -- what the group did ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """``progress``: the group's range commits in the affected partition in the middle of the scenario."""

    verdict: GroupVerdict
    drains: tuple[SegmentDrain, ...]
    progress: PartitionProgress | None


def outcome_of(
    actions: GroupActions, back: ReadBack, lineages: Sequence[Lineage], commits: Iterable[Committed]
) -> GroupOutcome:
    """Judge what the members wrote down by what a fresh reader found, and by what was committed when."""
    journals = {name: list(read_worked(path)) for name, path in actions.members.journals().items()}
    excuses = Excuses(actions.victims(journals), CommitHistory(commits, lineages))
    verdict = judge(journals, back.offsets, lineages, excuses.excuse)
    return GroupOutcome(verdict, tuple(actions.drains.drains), actions.progress)
