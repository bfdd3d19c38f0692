"""What the demo tells its writers, and what they tell the demo: lines of JSON on stdin and stdout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Command(StrEnum):
    """One line on a writer's stdin, after the line with its orders. End of input: end at once."""

    SUSPEND = "suspend"
    """Stop by SIGSTOP in the middle of a burst, with records in flight."""
    FINISH = "finish"
    """Stop writing (a file: send the rest of it), wait for all reports, and end."""


class Kind(StrEnum):
    """Which client a writer uses."""

    KPSPLIT = "kpsplit"
    PLAIN = "plain"
    """``confluent_kafka.Producer``, which knows nothing of kpsplit."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What one writer is to do. Sent through a pipe: ``properties`` may hold secrets.

    ``input`` and ``expression``: the file and what finds its keys; None: records with skewed keys.
    ``writers``: the names of all writers, among which lines are divided. ``stock``: how many lines are this
    writer's; its rate falls with what is left of them.
    """

    name: str
    kind: Kind
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

    def encode(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> Orders:
        """Read such a line."""
        fields = json.loads(line)
        return cls(**{**fields, "kind": Kind(fields["kind"]), "writers": tuple(fields["writers"])})


class Stage(StrEnum):
    """Where a writer stands."""

    STARTING = "starting"
    WRITING = "writing"
    STOPPING = "stopping"
    """About to stop itself by SIGSTOP."""
    DRAINING = "draining"
    """Waiting for the last reports."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class News:
    """What a writer reports, several times a second.

    ``waiting``: accepted and not reported yet. ``held``, ``strays``, ``pauses_ms``: what
    ``Producer.layout_stats()`` tells; ``held_in``: records held, per logical partition.
    """

    stage: Stage = Stage.STARTING
    sent: int = 0
    ok: int = 0
    failed: int = 0
    waiting: int = 0
    held: int = 0
    strays: int = 0
    pauses_ms: tuple[int, ...] = ()
    held_in: dict[str, int] = field(default_factory=dict)
    error: str | None = None

    def encode(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> News:
        """Read such a line."""
        fields = json.loads(line)
        return cls(**{**fields, "stage": Stage(fields["stage"]), "pauses_ms": tuple(fields["pauses_ms"])})
