"""The group's processes as the demo sees them: start, kill, suspend, resume, finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from kpsplit.demo.group.orders import FINISH, MemberNews, MemberOrders
from kpsplit.demo.process import ChildProcess
from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.clock import Deadline

STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Member(ChildProcess):
    """One member's process; it has loaded everything and waits until it is told to ``join``."""

    def __init__(self, orders: MemberOrders) -> None:
        self.orders = orders
        self.news = MemberNews()
        super().__init__("group member", orders.name, "kpsplit.demo.group.member", "")

    def join(self) -> None:
        """Have it join the group."""
        self.tell(self.orders.encode())

    @property
    def error(self) -> str | None:
        """What the member says went wrong."""
        return self.news.error

    @property
    def done(self) -> bool:
        """Tell whether it said that it has left."""
        return self.news.done

    def heard(self, line: str) -> None:
        """Take a line of its news."""
        self.news = MemberNews.decode(line)

    def check(self) -> None:
        """Do nothing while all is well, or if it was killed on purpose."""
        if not self.killed:
            super().check()


class Members:
    """All members that ever were; a context manager that leaves no process behind."""

    def __init__(self, orders_for: Callable[[str], MemberOrders]) -> None:
        self.all: list[Member] = []
        self._prepared: dict[str, Member] = {}
        self._orders_for = orders_for

    def __enter__(self) -> Self:
        """Return self; members come by ``join``."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End those that still run."""
        deadline = Deadline(STOP_SECONDS)
        for member in (*self.all, *self._prepared.values()):
            member.end(deadline)

    def __str__(self) -> str:
        """Tell what each has come to."""
        return ", ".join(f"{m.name} {_standing(m)}" for m in self.all)

    def prepare(self, names: Iterable[str]) -> None:
        """Start processes that join later: a start takes a core for a second, and brokers share it."""
        for name in names:
            self._prepared[name] = Member(self._orders_for(name))

    def join(self, names: Collection[str]) -> None:
        """Have members join, those that are not prepared as well."""
        self.prepare(name for name in names if name not in self._prepared)
        for name in names:
            self.all.append(self._prepared.pop(name))
            self.all[-1].join()

    def named(self, name: str) -> Member:
        """Return a member."""
        return next(member for member in self.all if member.name == name)

    def check(self) -> None:
        """Raise if one of them is not well."""
        for member in self.all:
            member.check()

    def journals(self) -> dict[str, Path]:
        """Return where each member wrote down what it worked on."""
        return {member.name: Path(member.orders.journal) for member in self.all}

    def wait(
        self, what: str, until: Callable[[], bool], seconds: float, between: float = _POLL_SECONDS
    ) -> None:
        """Return when a condition holds.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: a member is not well.
        """
        deadline = Deadline(seconds)
        while not until():
            self.check()
            if deadline.left() <= 0:
                raise DeadlineExceededError(f"waited {seconds:.0f} s for the group to {what}: {self}")
            time.sleep(between)

    def finish(self, seconds: float) -> None:
        """Make all that live leave the group; return when they have.

        Raises:
            DeadlineExceededError: not in time. ChildDiedError: a member is not well.
        """
        living = [member for member in self.all if not member.killed]
        for member in living:
            member.resume()
            member.tell(FINISH)
        self.wait("end", lambda: all(not m.alive and m.done for m in living), seconds)


def _standing(member: Member) -> str:
    if member.killed or member.suspended:
        return "was killed" if member.killed else "is suspended"
    return f"has {member.news.slots} slots and worked on {member.news.worked_on:,} records"
