"""What the user asked the demo for, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from kpsplit.demo.orders import Kind, Orders
from kpsplit.demo.traffic import Line, owner_of
from kpsplit.kafka.connection import Connection

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
) -> list[Orders]:
    """Return what each writer is to do."""
    stocks = stocks_of(lines)
    rates = rates_of(options, stocks)
    return [
        Orders(
            name=name,
            kind=Kind.PLAIN if name == PLAIN_WRITER else Kind.KPSPLIT,
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
