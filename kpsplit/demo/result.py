"""What the demo found out, as values: the summary, the page and the last line are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kpsplit.demo.chronicle import Chronicle
from kpsplit.demo.figures import Latencies, Series, Spread
from kpsplit.demo.group.outcome import GroupOutcome
from kpsplit.demo.orders import News
from kpsplit.demo.readback import ReadBack
from kpsplit.splitter.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class Verdict:
    """One question that was put to the result, and its answer."""

    question: str
    ok: bool
    answer: str


@dataclass(frozen=True, slots=True)
class PhantomStart:
    """One phantom's smallest logical offset beside the log end that it must be above.

    ``parent_end``: where the parent partition's log ended at the split; ``above``: the logical offset at
    which the segment that was split ended.
    """

    segment: int
    place: str
    first: int | None
    parent_end: int
    above: int

    @property
    def ok(self) -> bool:
        """Tell whether it is above both. A phantom that got no record cannot be wrong."""
        return self.first is None or self.first > max(self.parent_end, self.above - 1)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything.

    ``control``: the latencies of the plain writer, which no fence can hold: where it waits, brokers are slow.
    ``held_elsewhere``: records of other partitions that were held. ``catching_up``: seconds from the end of
    the suspension until all that the suspended writer had under way was reported.
    """

    chronicle: Chronicle
    news: Mapping[str, News]
    state: PartitionState
    back: ReadBack
    group: GroupOutcome
    pauses: Spread
    latencies: Latencies
    control: Latencies
    longest_waits: tuple[float, ...]
    held_elsewhere: int
    catching_up: float
    starts: tuple[PhantomStart, ...]
    throughput: tuple[Series, ...]
    slowness: tuple[Series, ...]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def passed(self) -> bool:
        """Tell whether every answer is yes."""
        return all(verdict.ok for verdict in self.verdicts)


def last_line(result: DemoResult) -> str:
    """Return the one line that programs read."""
    history, pauses = result.back.history, result.pauses
    figures = (
        f"sent={history.sent} delivered={history.delivered} lost={history.lost} "
        f"duplicated={history.duplicated} out_of_order={history.out_of_order} strays={result.back.strays} "
        f"pause_p50_ms={pauses.p50:.0f} pause_p99_ms={pauses.p99:.0f} pause_max_ms={pauses.most:.0f}"
    )
    if result.passed:
        return f"PASS {figures}"
    failed = next(verdict for verdict in result.verdicts if not verdict.ok)
    return f"FAIL {figures} reason={one_line(f'{failed.question}: {failed.answer}')}"


def failed_line(reason: str) -> str:
    """Return that line for a demo that did not come to its end."""
    return f"FAIL reason={one_line(reason)}"


def one_line(text: str) -> str:
    """Return a text without anything that breaks a line or a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
