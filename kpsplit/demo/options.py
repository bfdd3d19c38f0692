"""What the user asked the demo for, and what each process is to do: lines of JSON on stdin and stdout."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kpsplit.demo.traffic import Line, owner_of
from kpsplit.kafka.connection import Connection


@dataclass(frozen=True, slots=True)
class JsonLine:
    """What is sent through a pipe, as one line."""

    def encode(self) -> str:
        """Return the line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read such a line."""
        return cls(**json.loads(line))


# -- orders and news of a writer -------------------------------------------------------------------


class WriterCommand(StrEnum):
    """One line on a writer's stdin, after the line with its orders. End of input: end at once."""

    SUSPEND = "suspend"
    """Stop by SIGSTOP in the middle of a burst, with records in flight."""
    FINISH = "finish"
    """Stop writing (a file: send the rest of it), wait for all reports, and end."""


class WriterKind(StrEnum):
    """Which client a writer uses."""

    KPSPLIT = "kpsplit"
    PLAIN = "plain"
    """``confluent_kafka.Producer``, which knows nothing of kpsplit."""


@dataclass(frozen=True, slots=True)
class WriterOrders(JsonLine):
    """What one writer is to do. Sent through a pipe: ``properties`` may hold secrets.

    ``input`` and ``expression``: the file and what finds its keys; None: records with skewed keys.
    ``writers``: the names of all writers, among which lines are divided. ``stock``: how many lines are this
    writer's; its rate falls with what is left of them.
    """

    name: str
    kind: WriterKind
    properties: dict[str, Any]
    topic: str
    partitions: int
    rate: float
    seed: int
    journal: str
    writers: tuple[str, ...]
    input: str | None = None
    expression: str | None = None
    stock: int | None = None

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read such a line."""
        fields = json.loads(line)
        return cls(**{**fields, "kind": WriterKind(fields["kind"]), "writers": tuple(fields["writers"])})


class WriterStage(StrEnum):
    """Where a writer stands."""

    STARTING = "starting"
    WRITING = "writing"
    STOPPING = "stopping"
    """About to stop itself by SIGSTOP."""
    DRAINING = "draining"
    """Waiting for the last reports."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class WriterNews(JsonLine):
    """What a writer reports, several times a second.

    ``waiting``: accepted and not reported yet. ``held``, ``strays``, ``pauses_ms``: what
    ``Producer.layout_stats()`` tells; ``held_in``: records held, per logical partition.
    """

    stage: WriterStage = WriterStage.STARTING
    sent: int = 0
    ok: int = 0
    failed: int = 0
    waiting: int = 0
    held: int = 0
    strays: int = 0
    pauses_ms: tuple[int, ...] = ()
    held_in: dict[str, int] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read such a line."""
        fields = json.loads(line)
        return cls(
            **{**fields, "stage": WriterStage(fields["stage"]), "pauses_ms": tuple(fields["pauses_ms"])}
        )


# -- orders and news of a member of the group ------------------------------------------------------


FINISH = "finish\n"
"""Leave the group: commit, and end."""


@dataclass(frozen=True, slots=True)
class MemberOrders(JsonLine):
    """What one member is to do. Sent through a pipe: ``properties`` may hold secrets."""

    name: str
    properties: dict[str, Any]
    group: str
    topic: str
    journal: str
    session_ms: int


@dataclass(frozen=True, slots=True)
class MemberNews(JsonLine):
    """What a member reports, several times a second.

    ``slots``: how many it owns; ``lost_at``: when slots were first taken from it that it had not given up.
    """

    worked_on: int = 0
    slots: int = 0
    lost_at: float | None = None
    done: bool = False
    error: str | None = None


PARTITIONS = 6
SPLIT_INTO = 4
SPLIT_AGAIN_INTO = 2
KPSPLIT_WRITERS = ("writer-1", "writer-2", "writer-3", "writer-4")
PLAIN_WRITER = "plain"
WRITERS = (*KPSPLIT_WRITERS, PLAIN_WRITER)
SUSPENDED = KPSPLIT_WRITERS[-1]
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
        """Seconds between two operations."""
        return self.duration / STRETCHES

    def topic_name(self) -> str:
        """Return the topic's name: the given one, or one that no topic has."""
        return self.topic or f"kpsplit-demo-{random.SystemRandom().getrandbits(32):08x}"


def orders_for(
    options: Options, lines: list[Line] | None, connection: Connection, topic: str, journals: Path
) -> list[WriterOrders]:
    """Return what each writer is to do."""
    stocks = stocks_of(lines)
    rates = rates_of(options, stocks)
    return [
        WriterOrders(
            name=name,
            kind=WriterKind.PLAIN if name == PLAIN_WRITER else WriterKind.KPSPLIT,
            properties=connection.properties,
            topic=topic,
            partitions=PARTITIONS,
            rate=rates[name],
            seed=options.seed,
            journal=str(journals / f"{name}.journal"),
            writers=WRITERS,
            input=str(options.input.resolve()) if options.input is not None else None,
            expression=options.expression,
            stock=None if stocks is None else stocks[name],
        )
        for name in WRITERS
    ]


def stocks_of(lines: list[Line] | None) -> dict[str, int] | None:
    """Return how many lines of a file are each writer's."""
    if lines is None:
        return None
    owned = dict.fromkeys(WRITERS, 0)
    for line in lines:
        owned[owner_of(line, WRITERS)] += 1
    return owned


def rates_of(options: Options, stocks: dict[str, int] | None) -> dict[str, float]:
    """Return each writer's first rate: equal ones, or such that lines are left to all for the whole demo."""
    if stocks is None:
        return dict.fromkeys(WRITERS, options.rate / len(WRITERS))
    lines = sum(stocks.values())
    total = min(options.rate, lines / (options.duration + OPERATIONS_SECONDS))
    return {name: max(0.1, total * number / lines) for name, number in stocks.items()}
