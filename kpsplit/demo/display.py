"""Shows what happens, on stderr: lines with the seconds since the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from kpsplit.clock import monotonic
from kpsplit.splitter.driver import StepDone

LINE_SECONDS = 5.0
_STEP_TEXTS = {
    "CreateSubTopic": "sub-topic created",
    "CoLocateLeaders": "leaders moved together",
    "AwaitReady": "producers answered",
    "Fence": "FENCE: producers hold their records",
    "AwaitAcknowledged": "fence acknowledged",
    "AppendMarkers": "CUT",
    "Commit": "COMMIT: the new layout is in force",
    "SealSubTopics": "emptied sub-topics sealed",
    "Abort": "ROLLED BACK",
    "Keep": "kept",
}


class Display:
    """Where the demo shows what it does."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = monotonic()
        self._next = 0.0

    def say(self, text: str) -> None:
        self._stream.write(f"[{monotonic() - self._began:6.1f} s] {text}\n")
        self._stream.flush()

    def show(self, phase: str, sent: int, rates: Mapping[str, float]) -> None:
        """Show how things stand, every few seconds; another thread calls this.

        Args:
            phase: what the demo does.
            sent: how many records all writers have sent.
            rates: records per second by the names of partitions.
        """
        now = monotonic()
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        busy = "  ".join(f"{_last(name)}:{rate:.0f}" for name, rate in rates.items() if rate >= 1)
        self.say(f"  {phase}: {sent:,} sent; records/s by partition: {busy or 'none'}")


def _last(name: str) -> str:
    """Return the short form of a partition's name: its number, or a phantom's name."""
    return name if name.startswith("split-") else name.rpartition("/")[2]


def show_step(display: Display, step: StepDone) -> None:
    text = _STEP_TEXTS.get(step.name)
    if text is not None:
        detail = f"  ({step.detail})" if step.detail else ""
        display.say(f"    {text:<38}{step.seconds * 1000:7.0f} ms{detail}")
