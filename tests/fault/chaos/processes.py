"""The processes of a run: writers, members of a group, an operator. Each one that is killed is replaced."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.demo.endpoints import (
    FINISH,
    STOP_SECONDS,
    ChildDiedError,
    Endpoint,
    JsonLine,
    MemberNews,
    MemberOrders,
    WriterNews,
    WriterOrders,
)
from tests.fault.chaos.member import beside, gaps_of, losses_of
from tests.fault.chaos.operating import OperatorOrders
from tests.fault.chaos.verdict import Hurt, Operation

POLL_SECONDS = 0.1
WRITERS_PER_TRANSACTIONAL = 3
"""Of so many writers one writes in transactions; its successor takes its transactional id."""
FLUSH_SECONDS = 400.0
"""Longer than a message may take, so that every report comes."""
LAST_WORDS_SECONDS = 2.0
DOOMED_SESSION_MS = 10_000
"""After so long without a heartbeat the slots of a member that is killed or suspended go to others."""


@dataclass(frozen=True, slots=True)
class OperatorNews(JsonLine):
    """``done``: everything is at rest."""

    done: bool = False
    error: str | None = None


class OperatorEndpoint(Endpoint[OperatorNews]):
    """The operator; ``operations`` collects what it does, over all that ever were."""

    def __init__(self, orders: OperatorOrders, operations: list[Operation]) -> None:
        self.found = False
        self.notes: list[str] = []
        self._operations = operations
        self._mine: Operation | None = None
        super().__init__("operator", "tests.fault.chaos.operating", orders, OperatorNews())

    @property
    def current(self) -> Operation | None:
        """The operation under way."""
        return self._mine

    def stopped_or_ended(self) -> bool:
        """Tell whether it has stopped itself by a signal, or is gone."""
        return not self.alive or psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED

    def wake(self) -> None:
        """Let it go on if it stopped itself after the fault was over."""
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
                self.news = OperatorNews(done=True)

    def _close_all(self, epochs: dict[str, int]) -> None:
        """See how the operations ended whose operator is gone."""
        for operation in self._operations:
            if operation.after is None:
                operation.after = epochs[str(operation.partition)]


@dataclass(frozen=True, slots=True)
class Job:
    """What the processes work on. ``direct``, ``proxied``: the brokers, and the proxies before them."""

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
        return {"bootstrap.servers": self.proxied if _is_proxied(number) else self.direct}


def _is_proxied(number: int) -> bool:
    return number % 2 == 1


@dataclass(slots=True)
class Processes:
    """All processes; a context manager that leaves none behind. For one thread."""

    job: Job
    writers: list[Endpoint[WriterNews]] = field(default_factory=list)
    members: list[Endpoint[MemberNews]] = field(default_factory=list)
    operator: OperatorEndpoint | None = None
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
        deadline = Deadline(STOP_SECONDS)
        for process in self.all():
            process.end(deadline)

    def all(self) -> Iterable[Endpoint[Any]]:
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
            name=f"operator-{self._started}",
            properties=self.job.properties(self._started),
            topic=self.job.topic,
            partitions=self.job.partitions,
            seed=self.job.seed + self._started,
        )
        if self.operator is not None:
            self.notes += self.operator.notes
        self.operator = OperatorEndpoint(orders, self.operations)

    def grow(self, partitions: int) -> None:
        """Take the topic's new number of partitions: processes that start from now on know them."""
        self.job = replace(self.job, partitions=partitions)

    def mend(self) -> None:
        """Start successors of those that are gone. A process that ended by itself is a trouble."""
        for number, writer in enumerate(self.writers):
            if not writer.alive:
                self._gone(writer)
                self._acknowledged += writer.news.ok
                self.writers[number] = self._writer(number)
        self.mend_members()
        if self.operator is None or not self.operator.alive:
            if self.operator is not None:
                self._gone(self.operator)
            self.start_operator()
        else:
            self.operator.wake()

    def mend_members(self) -> None:
        """Start successors of members that are gone."""
        for number, member in enumerate(self.members):
            if not member.alive:
                self._gone(member)
                self.members[number] = self._member(number)

    def proxied_members(self) -> list[str]:
        """Return the names of the members that connect through the proxies."""
        return [member.name for number, member in enumerate(self.members) if _is_proxied(number)]

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
        self._finish(self.writers, "the writers to finish", seconds)

    def finish_operator(self, seconds: float) -> None:
        """Make the operator bring everything to rest; return when it has ended."""
        if self.operator is not None:
            self._finish([self.operator], "the operator to finish", seconds)
            self.notes += self.operator.notes

    def finish_members(self, seconds: float) -> None:
        """Make the members leave."""
        self._finish(self.members, "the members to leave", seconds)

    def _finish(self, processes: Sequence[Endpoint[Any]], what: str, seconds: float) -> None:
        for process in processes:
            process.tell(FINISH)
        self.wait(what, lambda: not any(process.alive for process in processes), seconds)
        for process in processes:
            self._gone(process)

    def standing(self) -> list[str]:
        """Return how every member stands, to find out why one does not go on."""
        for member in self.members:
            for wanted in (signal.SIGUSR1, signal.SIGUSR2):  # its stacks, its stats
                member.send_signal(wanted)
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
        """Return how many records were reported as delivered, as far as the writers have reported it."""
        return self._acknowledged + sum(writer.news.ok for writer in self.writers)

    def reported_gaps(self) -> list[Gap]:
        """Return the gaps that were reported to members."""
        return [gap for journal in self.worked.values() for gap in gaps_of(journal)]

    def _gone(self, process: Endpoint[Any]) -> None:
        """Note it if a process ended that nobody killed."""
        try:
            process.check()
        except ChildDiedError as error:
            self.troubles.append(str(error))

    def _writer(self, number: int) -> Endpoint[WriterNews]:
        job, name = self.job, self._name(f"writer-{number}")
        transactional = number % WRITERS_PER_TRANSACTIONAL == 2
        orders = WriterOrders(
            name=name,
            properties=job.properties(number),
            topic=job.topic,
            journal=str(job.folder / name),
            partitions=job.partitions,
            rate=job.rate,
            seed=job.seed,
            flush_seconds=FLUSH_SECONDS,
            transactional_id=f"{job.topic}-{number}" if transactional else None,
        )
        self.journals[name] = Path(orders.journal)
        return Endpoint("writer", "tests.fault.chaos.writer", orders, WriterNews())

    def _member(self, number: int) -> Endpoint[MemberNews]:
        job, name = self.job, self._name(f"member-{number}")
        orders = MemberOrders(
            name=name,
            properties=job.properties(number),
            topic=job.topic,
            journal=str(job.folder / name),
            group=job.group,
            session_ms=DOOMED_SESSION_MS,
        )
        self.worked[name] = Path(orders.journal)
        return Endpoint("group member", "tests.fault.chaos.member", orders, MemberNews())

    def _name(self, role: str) -> str:
        """Return a name that no other process of the run has: each life is a producer of its own."""
        self._started += 1
        return f"{role}-{self._started}"
