"""What happened when: the operations, their steps and fences, the suspension."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpsplit.control.status import Report
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition

FENCE_ON, FENCE_OFF = "Fence", "Commit"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds of the monotonic clock that all processes of the machine share."""

    label: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended - self.began

    def overlaps(self, began: float, ended: float) -> bool:
        """Tell whether another stretch of time has a moment in common with this one."""
        return began <= self.ended and self.began <= ended


@dataclass(slots=True)
class OperationLog:
    """One operation as the demo saw it. ``steps``: when each ended, and what it was."""

    label: str
    detail: str = ""
    steps: list[tuple[float, StepDone]] = field(default_factory=list)
    report: Report | None = None

    @property
    def fence(self) -> Span | None:
        """From when the fence was being recorded until the commit was; None if there was none."""
        on = next((at - step.seconds for at, step in self.steps if step.name == FENCE_ON), None)
        off = next((at for at, step in self.steps if step.name == FENCE_OFF), None)
        return None if on is None or off is None else Span(self.label, on, off)


@dataclass(slots=True)
class Chronicle:
    """All that the demo noted. ``began``: when all writers wrote, ``ended``: when all had ended."""

    began: float
    topic: str
    ended: float = 0.0
    hot: PhysicalPartition | None = None
    operations: list[OperationLog] = field(default_factory=list)
    suspension: Span | None = None

    @property
    def fences(self) -> list[Span]:
        """The fences of all operations, in their order."""
        return [fence for operation in self.operations if (fence := operation.fence) is not None]
