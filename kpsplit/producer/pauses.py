"""How long fences held records, per logical partition."""

from __future__ import annotations

from kpsplit.kafka.clock import monotonic
from kpsplit.producer.routes import Fence
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.producers import PauseReport


class PauseClock:
    """Measures from the moment when a fence is seen to the moment when nothing of it is held any more."""

    def __init__(self) -> None:
        self._began: dict[PhysicalPartition, tuple[str, float, int, int]] = {}
        self.pauses_ms: list[int] = []

    def observe(self, fence: Fence) -> None:
        """Note a new state of a fence."""
        parent, attempt = fence.state.parent, fence.state.attempt
        if attempt is not None and fence.state.fenced_segments() and parent not in self._began:
            counts = fence.statistics
            self._began[parent] = (attempt.id, monotonic(), counts.held, counts.strays)

    def over(self, fence: Fence) -> tuple[str, PauseReport] | None:
        """Return the report of a pause that has just ended, once."""
        parent = fence.state.parent
        began = self._began.get(parent)
        if began is None or fence.state.fenced_segments() or not all(w.open for w in fence.writers):
            return None
        del self._began[parent]
        attempt_id, since, held, strays = began
        pause_ms = round((monotonic() - since) * 1000)
        self.pauses_ms.append(pause_ms)
        counts = fence.statistics
        return str(parent), PauseReport(attempt_id, pause_ms, counts.held - held, counts.strays - strays)
