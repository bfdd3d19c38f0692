"""The processes of a run: writers, members of a group, an operator. Whoever is killed has a successor."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.demo.options import FINISH, MemberNews, MemberOrders
from kpsplit.demo.processes import ChildDiedError, ChildProcess
from kpsplit.kafka.clock import Deadline
from tests.fault.chaos.member import beside, gaps_of, losses_of
from tests.fault.chaos.operating import OperatorOrders
from tests.fault.chaos.table import Operation
from tests.fault.chaos.verdict import Hurt
from tests.fault.chaos.writer import WriterNews, WriterOrders

POLL_SECONDS = 0.1
WRITERS_PER_TRANSACTIONAL = 3
"""Of so many writers one writes in transactions; its successor takes its transactional id."""
END_SECONDS = 5.0
LAST_WORDS_SECONDS = 2.0
DOOMED_SESSION_MS = 10_000
"""After so long without a heartbeat the slots of a member that is killed or suspended go to others."""


class WriterProcess(ChildProcess):
    """One writer."""

    def __init__(self, orders: WriterOrders) -> None:
        self.orders = orders
        self.news = WriterNews()
        super().__init__("writer", orders.name, "tests.fault.chaos.writer", orders.encode())

    @property
    def error(self) -> str | None:
        return None

    @property
    def done(self) -> bool:
        return self.news.done

    def heard(self, line: str) -> None:
        self.news = WriterNews(**json.loads(line))


class MemberProcess(ChildProcess):
    """One member of the group."""

    def __init__(self, orders: MemberOrders) -> None:
        self.orders = orders
        self.news = MemberNews()
        super().__init__("group member", orders.name, "tests.fault.chaos.member", orders.encode())

    @property
    def error(self) -> str | None:
        return self.news.error

    @property
    def done(self) -> bool:
        return self.news.done

    def heard(self, line: str) -> None:
        self.news = MemberNews.decode(line)

    def show_itself(self) -> None:
        """Make it put the stacks of its threads, and what it tells of itself, into files."""
        for wanted in (signal.SIGUSR1, signal.SIGUSR2):
            if self.alive:
                self._process.send_signal(wanted)


class OperatorProcess(ChildProcess):
    """The operator; ``operations`` collects what it does, over all that ever were."""

    def __init__(self, name: str, orders: OperatorOrders, operations: list[Operation]) -> None:
        self.found = False
        self.notes: list[str] = []
        self._at_rest = False
        self._operations = operations
        self._mine: Operation | None = None
        super().__init__("operator", name, "tests.fault.chaos.operating", orders.encode())

    @property
    def error(self) -> str | None:
        return None

    @property
    def done(self) -> bool:
        return self._at_rest

    @property
    def current(self) -> Operation | None:
        """The operation under way."""
        return self._mine

    def stopped_or_ended(self) -> bool:
        """Tell whether it has stopped itself by a signal, or is gone."""
        return not self.alive or psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED

    def wake(self) -> None:
        """Let it go on if it has stopped itself later than it was told to."""
        if self.alive and self.stopped_or_ended():
            self.suspended = True
            self.resume()

    def heard(self, line: str) -> None:
        news: dict[str, Any] = json.loads(line)
        match news["event"]:
            case "found":
                self._close_all(news["epochs"])
                self.found = True
            case "begin":
                self._mine = Operation(news["verb"], news["partition"], news["epoch"])
                self._operations.append(self._mine)
            case "step" if self._mine is not None:
                self._mine.last_step = news["name"]
            case "end" if self._mine is not None:
                self._mine.finished = news["how"] == "done"
                self._mine.after = news["epoch"]
                if not self._mine.finished:
                    self.notes.append(f"{self._mine.verb}: {news['how']}")
                self._mine = None
            case "note":
                self.notes.append(news["text"])
            case "at rest":
                self._at_rest = True

    def _close_all(self, epochs: dict[str, int]) -> None:
        """See how the operations ended whose operator is gone."""
        for operation in self._operations:
            if operation.after is None:
                operation.after = epochs[str(operation.partition)]


@dataclass(frozen=True, slots=True)
class Job:
    """What the crew works on. ``direct``, ``proxied``: the brokers, and the proxies before them."""

    direct: str
    proxied: str
    topic: str
    partitions: int
    group: str
    folder: Path
    seed: int
    rate: float

    def properties(self, number: int) -> dict[str, Any]:
        """Return how a process reaches the brokers: every second one through the proxies."""
        return {"bootstrap.servers": self.proxied if _behind_proxies(number) else self.direct}


def _behind_proxies(number: int) -> bool:
    return number % 2 == 1


@dataclass(slots=True)
class Crew:
    """All processes; a context manager that leaves none behind. For one thread."""

    job: Job
    writers: list[WriterProcess] = field(default_factory=list)
    members: list[MemberProcess] = field(default_factory=list)
    operator: OperatorProcess | None = None
    operations: list[Operation] = field(default_factory=list)
    journals: dict[str, Path] = field(default_factory=dict)
    worked: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    _started: int = 0
    _acknowledged: int = 0
    """Records of writers that are gone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = Deadline(END_SECONDS)
        for process in self.all():
            process.end(deadline)

    def all(self) -> Iterable[ChildProcess]:
        """Return all that live or lived last."""
        return [*self.writers, *self.members, *([self.operator] if self.operator else [])]

    def start(self, writers: int, members: int) -> None:
        """Start writers and members."""
        self.writers = [self._writer(number) for number in range(writers)]
        self.members = [self._member(number) for number in range(members)]

    def start_operator(self) -> None:
        """Start an operator."""
        self._started += 1
        orders = OperatorOrders(
            self.job.properties(self._started),
            self.job.topic,
            self.job.partitions,
            self.job.seed + self._started,
        )
        if self.operator is not None:
            self.notes += self.operator.notes
        self.operator = OperatorProcess(f"operator-{self._started}", orders, self.operations)

    def grow(self, partitions: int) -> None:
        """The topic has so many partitions now: whoever is started from now on knows them."""
        self.job = replace(self.job, partitions=partitions)

    def mend(self) -> None:
        """Start successors of those that are gone; who went by itself is a trouble."""
        for number, writer in enumerate(self.writers):
            if not writer.alive:
                if not writer.killed:
                    self._gone(writer)
                self._acknowledged += writer.news.ok
                self.writers[number] = self._writer(number)
        self.mend_members()
        if self.operator is None or not self.operator.alive:
            if self.operator is not None and not self.operator.killed:
                self._gone(self.operator)
            self.start_operator()
        else:
            self.operator.wake()

    def mend_members(self) -> None:
        """Start successors of members that are gone."""
        for number, member in enumerate(self.members):
            if not member.alive:
                if not member.killed:
                    self._gone(member)
                self.members[number] = self._member(number)

    def members_behind_proxies(self) -> list[str]:
        """Return the names of the members that every disturbance of the network hurts."""
        return [member.name for number, member in enumerate(self.members) if _behind_proxies(number)]

    def wait(self, what: str, until: Callable[[], bool], seconds: float) -> None:
        """Return when something holds.

        Raises:
            DeadlineExceededError: not in time.
        """
        deadline = Deadline(seconds)
        while not until():
            deadline.check(what)
            deadline.pause(POLL_SECONDS)

    def check(self) -> None:
        """Do nothing while all is well.

        Raises:
            ChildDiedError: a process ended that nobody killed.
        """
        for process in self.all():
            process.check()

    def finish_writers(self, seconds: float) -> None:
        """Make the writers wait for their last reports; return when they have ended."""
        for writer in self.writers:
            writer.tell(FINISH)
        self.wait("the writers to finish", lambda: not any(w.alive for w in self.writers), seconds)
        for writer in self.writers:
            self._gone(writer)

    def finish_operator(self, seconds: float) -> None:
        """Make the operator bring everything to rest; return when it has ended."""
        if self.operator is None:
            return
        operator = self.operator
        operator.tell(FINISH)
        self.wait("the operator to finish", lambda: not operator.alive, seconds)
        self._gone(operator)
        self.notes += operator.notes

    def finish_members(self, seconds: float) -> None:
        """Make the members leave."""
        for member in self.members:
            member.tell(FINISH)
        self.wait("the members to leave", lambda: not any(m.alive for m in self.members), seconds)
        for member in self.members:
            self._gone(member)

    def standing(self) -> list[str]:
        """Return how every member stands, to find out why one does not go on."""
        for member in self.members:
            member.show_itself()
        Deadline(LAST_WORDS_SECONDS).pause(LAST_WORDS_SECONDS)
        paths = [beside(self.worked[m.name], what) for m in self.members for what in ("stacks", "stats")]
        return [f"{path.name}:\n{path.read_text()}" for path in paths if path.exists()]

    def losses(self) -> list[Hurt]:
        """Return when members lost slots: what they did within their session may not be committed."""
        session = DOOMED_SESSION_MS / 1000
        return [
            Hurt(name, "slots lost", at - session, at)
            for name, journal in self.worked.items()
            for at in losses_of(journal)
        ]

    def acknowledged(self) -> int:
        """Return how many records were reported as delivered, as far as the writers have told."""
        return self._acknowledged + sum(writer.news.ok for writer in self.writers)

    def told_gaps(self) -> list[Gap]:
        """Return what members were told that is gone."""
        return [gap for journal in self.worked.values() for gap in gaps_of(journal)]

    def _gone(self, process: ChildProcess) -> None:
        """Note it if a process ended that nobody killed; its last words may still be on their way."""
        deadline = Deadline(LAST_WORDS_SECONDS)
        while not process.done and process.error is None and not deadline.expired():
            deadline.pause(POLL_SECONDS)
        try:
            process.check()
        except ChildDiedError as error:
            self.troubles.append(str(error))

    def _writer(self, number: int) -> WriterProcess:
        name = self._name(f"writer-{number}")
        self.journals[name] = self.job.folder / name
        return WriterProcess(
            WriterOrders(
                name,
                self.job.properties(number),
                self.job.topic,
                self.job.partitions,
                self.job.rate,
                self.job.seed,
                str(self.journals[name]),
                f"{self.job.topic}-{number}" if number % WRITERS_PER_TRANSACTIONAL == 2 else None,
            )
        )

    def _member(self, number: int) -> MemberProcess:
        name = self._name(f"member-{number}")
        self.worked[name] = self.job.folder / name
        return MemberProcess(
            MemberOrders(
                name,
                self.job.properties(number),
                self.job.group,
                self.job.topic,
                str(self.worked[name]),
                DOOMED_SESSION_MS,
            )
        )

    def _name(self, role: str) -> str:
        """Return a name that no other process of the run has: each life is a producer of its own."""
        self._started += 1
        return f"{role}-{self._started}"
