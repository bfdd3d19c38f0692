"""The rows of writers' pauses with many rounds: a p99 of a few operations says little of the rare ones.

    python -m benchmarks.pause_rounds [--rounds 200] [--only pause.10] [--bootstrap-server HOST:PORT]

A round is a split and a merge. Printed as ``benchmarks/pauses.py`` does, for each number of producers.
"""

from __future__ import annotations

from math import inf

from benchmarks.harness import Bench, brokers, parser_of
from benchmarks.pauses import measure


def main() -> None:
    """Measure, and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--bootstrap-server")
    given = parser.parse_args()
    with brokers(given.bootstrap_server) as bootstrap:
        measure(Bench(bootstrap, given.quick, given.only), 2 * given.rounds, inf)


if __name__ == "__main__":
    main()
