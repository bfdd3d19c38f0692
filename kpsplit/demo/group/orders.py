"""What the demo tells a member of the group, and what the member tells the demo: lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

FINISH = "finish\n"
"""Leave the group: commit, and end."""


@dataclass(frozen=True, slots=True)
class MemberOrders:
    """What one member is to do. Sent through a pipe: ``properties`` may hold secrets."""

    name: str
    properties: dict[str, Any]
    group: str
    topic: str
    journal: str
    session_ms: int

    def encode(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> MemberOrders:
        """Read such a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class MemberNews:
    """What a member reports, several times a second.

    ``slots``: how many it owns; ``lost_at``: when slots were first taken from it that it had not given up.
    """

    worked_on: int = 0
    slots: int = 0
    lost_at: float | None = None
    done: bool = False
    error: str | None = None

    def encode(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def decode(cls, line: str) -> MemberNews:
        """Read such a line."""
        return cls(**json.loads(line))
