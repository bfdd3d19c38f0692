"""``python -m tests.fault.chaos --minutes 20 --seed 7``: exit code 0 if all is well, 3 if not.

4: nothing is wrong, but a run of twenty minutes or more has missed one of its aims.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from kpsplit.errors import KpsplitError
from tests.fault.chaos.faults import MIXES, OF_PROCESSES, Kind
from tests.fault.chaos.run import run
from tests.fault.chaos.scenario import Options

PASSED, FAILED, BROKEN, MISSED = 0, 3, 1, 4


def main() -> int:
    """Run, and print the table, the verdict and the seed."""
    given = _parser().parse_args()
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    print(f"seed={seed}", flush=True)
    options = Options(
        seed,
        given.minutes,
        longest=given.longest,
        rate=given.rate,
        kinds=OF_PROCESSES if given.processes_only else tuple(Kind),
        mixes=tuple(given.mix or MIXES),
        patience=given.patience,
    )
    try:
        outcome = run(options)
    except KpsplitError as error:
        print(f"FAIL seed={seed} reason={error}")
        return BROKEN
    print(f"{outcome.report()} seed={seed} seconds={outcome.seconds:.0f}")
    if outcome.verdict.harmed:
        return FAILED
    return PASSED if outcome.verdict.good else MISSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long faults are done; not given: one of each kind")
    parser.add_argument("--seed", type=int, help="of the schedule; not given: a new one, which is printed")
    parser.add_argument("--longest", type=float, default=45.0, help="seconds that a fault lasts at most")
    parser.add_argument("--rate", type=float, default=150.0, help="records per second and writer")
    parser.add_argument("--processes-only", action="store_true", help="of each kind: none to the network")
    parser.add_argument("--mix", choices=list(MIXES), action="append", help="only this one; can be repeated")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to read the rest in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
