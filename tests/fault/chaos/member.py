"""One member of a run's group, a process: ``python -m tests.fault.chaos.member``, orders on stdin.

It works as the demo's members do, and goes on where records are gone. Beside its journal it leaves when it
lost slots (JOURNAL.lost), what it was told of (JOURNAL.told) and what the library logs (JOURNAL.log); SIGUSR1
puts the stacks of all its threads into JOURNAL.stacks, SIGUSR2 what it tells of itself into JOURNAL.stats.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from confluent_kafka import KafkaException

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.demo.member import MemberLoop, tell
from kpsplit.demo.options import MemberNews, MemberOrders
from kpsplit.demo.processes import die_with_parent
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from tests.fault.chaos.removal import told_gap


def beside(journal: Path, what: str) -> Path:
    """Return where something else of a member is: lost, log, stacks or stats."""
    return journal.with_name(f"{journal.name}.{what}")


def losses_of(journal: Path) -> list[float]:
    """Return when a member lost slots, in monotonic seconds."""
    path = beside(journal, "lost")
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def gaps_of(journal: Path) -> list[Gap]:
    """Return the gaps that a member was told of."""
    path = beside(journal, "told")
    lines = path.read_text().splitlines() if path.exists() else []
    return [gap for line in lines if (gap := told_gap(line)) is not None]


class Member(MemberLoop):
    """A member that writes down when slots were taken from it that it had not given up."""

    def __init__(self, orders: MemberOrders, journal: BinaryIO, losses: TextIO, told: TextIO) -> None:
        settings = {"kpsplit.gap.policy": "skip-and-report", "error_cb": self._told}
        super().__init__(replace(orders, properties={**orders.properties, **settings}), journal)
        self._losses = losses
        self._told_of = told
        self._wanted: Path | None = None

    def show_stats(self, path: Path) -> None:
        """Write soon what the consumer tells of itself; from a signal handler."""
        self._wanted = path

    def _tell(self, consumer: Any) -> None:
        super()._tell(consumer)
        if self._wanted is not None:
            path, self._wanted = self._wanted, None
            path.write_text(json.dumps(dict(consumer.stats()), default=str, indent=1))

    def _told(self, error: object) -> None:
        self._told_of.write(f"{error}\n")
        self._told_of.flush()

    def _lost(self, *what: object) -> None:
        super()._lost(*what)
        self._losses.write(f"{monotonic()}\n")
        self._losses.flush()


def _listen(member: Member) -> None:
    sys.stdin.readline()
    member.end()


def main() -> int:
    """Work; return the exit code."""
    die_with_parent()
    orders = MemberOrders.decode(sys.stdin.readline())
    path = Path(orders.journal)
    logging.basicConfig(
        filename=beside(path, "log"), level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    with (
        beside(path, "stacks").open("w") as stacks,
        beside(path, "lost").open("w") as losses,
        beside(path, "told").open("w") as told,
        path.open("ab", buffering=0) as journal,
    ):
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        member = Member(orders, journal, losses, told)
        signal.signal(signal.SIGTERM, member.end)
        signal.signal(signal.SIGUSR2, lambda *_: member.show_stats(beside(path, "stats")))
        threading.Thread(target=_listen, args=(member,), daemon=True).start()
        try:
            tell(member.run())
        except (KpsplitError, KafkaException) as error:
            tell(MemberNews(error=str(error)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
