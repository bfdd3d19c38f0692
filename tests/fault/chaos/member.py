"""One member of a run's group, a process: the demo's member, which goes on where records are gone.

Beside its journal it leaves when it lost slots (JOURNAL.lost), the gaps that were reported to it
(JOURNAL.reported) and the library's log (JOURNAL.log). SIGUSR1 writes the stacks of all its threads into
JOURNAL.stacks, SIGUSR2 its ``stats()`` into JOURNAL.stats.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from kpsplit.clock import monotonic
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.demo.endpoints import MemberOrders
from kpsplit.demo.member import MemberLoop, run_member
from tests.fault.chaos.retention import reported_gap


def beside(journal: Path, what: str) -> Path:
    """Return where something else of a member is: lost, log, stacks or stats."""
    return journal.with_name(f"{journal.name}.{what}")


def losses_of(journal: Path) -> list[float]:
    """Return when a member lost slots, in monotonic seconds."""
    path = beside(journal, "lost")
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def gaps_of(journal: Path) -> list[Gap]:
    """Return the gaps that were reported to a member."""
    path = beside(journal, "reported")
    lines = path.read_text().splitlines() if path.exists() else []
    return [gap for line in lines if (gap := reported_gap(line)) is not None]


class Member(MemberLoop):
    """A member that writes down when slots were taken from it that it had not given up."""

    def __init__(self, orders: MemberOrders, journal: BinaryIO, losses: TextIO, reported: TextIO) -> None:
        settings = {"kpsplit.gap.policy": "skip-and-report", "error_cb": self._reported}
        super().__init__(replace(orders, properties={**orders.properties, **settings}), journal)
        self._losses = losses
        self._gaps = reported
        self._wanted: Path | None = None

    def show_stats(self, path: Path) -> None:
        """Write soon what the consumer tells of itself; from a signal handler."""
        self._wanted = path

    def _report(self, consumer: Any) -> None:
        super()._report(consumer)
        if self._wanted is not None:
            path, self._wanted = self._wanted, None
            path.write_text(json.dumps(dict(consumer.stats()), default=str, indent=1))

    def _reported(self, error: object) -> None:
        self._gaps.write(f"{error}\n")
        self._gaps.flush()

    def _lost(self, *what: object) -> None:
        super()._lost(*what)
        self._losses.write(f"{monotonic()}\n")
        self._losses.flush()


def _make(orders: MemberOrders, journal: BinaryIO) -> Member:
    path = Path(orders.journal)
    logging.basicConfig(
        filename=beside(path, "log"), level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    lost, reported, stacks = (beside(path, what).open("w") for what in ("lost", "reported", "stacks"))
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    member = Member(orders, journal, lost, reported)
    signal.signal(signal.SIGUSR2, lambda *_: member.show_stats(beside(path, "stats")))
    return member


if __name__ == "__main__":
    sys.exit(run_member(_make))
