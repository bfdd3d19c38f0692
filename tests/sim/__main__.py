"""``python -m tests.sim --seeds 0:10000``, or ``--seed N`` for one run with its trace."""

from __future__ import annotations

import argparse
import logging
import sys
from time import monotonic

from tests.sim.run import STEPS, RunResult, run_seed, shrink, sweep


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return 0 if everything held in all of them."""
    options = _parser().parse_args(arguments)
    logging.getLogger("kpsplit").setLevel(logging.ERROR)
    if options.seed is not None:
        return _one(options.seed, options.steps, options.no_shrink)
    first, _, end = options.seeds.partition(":")
    started = monotonic()
    swept = sweep(int(first), int(end or int(first) + 1), options.steps, options.workers)
    _say(f"{swept.runs} seeds in {monotonic() - started:.1f} s")
    _say(", ".join(f"{name}: {count}" for name, count in sorted(swept.counts.items())))
    for seed, violation in swept.failed:
        _say(f"seed {seed}: {violation}")
    if not swept.failed:
        return 0
    return _one(swept.failed[0][0], options.steps, options.no_shrink)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--seeds", default="0:1000", metavar="A:B", help="run the seeds from A up to, not with, B"
    )
    parser.add_argument("--seed", type=int, help="run one seed and print its trace, shrunk if it fails")
    parser.add_argument("--steps", type=int, default=STEPS, help="events drawn per run (default %(default)s)")
    parser.add_argument("--workers", type=int, default=None, help="processes (default: one per processor)")
    parser.add_argument("--no-shrink", action="store_true", help="print a failing run as it was")
    return parser


def _one(seed: int, steps: int, as_it_was: bool) -> int:
    result = run_seed(seed, steps, trace=True)
    if result.violation is not None and not as_it_was:
        result = shrink(result)
    _say(f"seed {seed}, {len(result.events)} events:")
    _say(in_words(result))
    return 0 if result.violation is None else 1


def in_words(result: RunResult) -> str:
    """Return a run's trace and what it came to, in lines."""
    lines = [f"  {number:3}. {text}" for number, text in enumerate(result.trace, 1)]
    return "\n".join([*lines, result.violation or f"nothing wrong: {result.counts}"])


if __name__ == "__main__":
    sys.exit(main())
