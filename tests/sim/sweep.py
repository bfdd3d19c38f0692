"""Many seeds, in as many processes as there are processors; they give way to whatever else runs there."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tests.sim.run import STEPS, run_seed

CHUNK = 100
NICENESS = 10


@dataclass
class Swept:
    """What many runs came to: how many, what they counted together, and which failed and how."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Swept) -> None:
        """Take another result in."""
        self.runs += other.runs
        self.counts.update(other.counts)
        self.failed += other.failed


def run_range(steps: int, seeds: range) -> Swept:
    """Run some seeds in this process."""
    swept = Swept()
    for seed in seeds:
        result = run_seed(seed, steps)
        swept.runs += 1
        swept.counts.update(result.counts)
        swept.counts["events"] += len(result.events)
        if result.violation is not None:
            swept.failed.append((seed, result.violation))
    return swept


def sweep(first: int, behind: int, steps: int = STEPS, workers: int | None = None) -> Swept:
    """Run the seeds [first, behind)."""
    chunks = [range(at, min(at + CHUNK, behind)) for at in range(first, behind, CHUNK)]
    count = min(workers or os.cpu_count() or 1, len(chunks))
    swept = Swept()
    if count <= 1:
        for chunk in chunks:
            swept.add(run_range(steps, chunk))
        return swept
    with ProcessPoolExecutor(count, initializer=partial(os.nice, NICENESS)) as pool:
        for part in pool.map(partial(run_range, steps), chunks):
            swept.add(part)
    return swept
