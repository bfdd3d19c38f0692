"""Measure the whole table, and write docs/benchmarks.md and README's summary: ``make bench``.

Each script runs in a process of its own, with brokers of its own: none finds what another has left. A script
that fails leaves its rows empty, the page says why, and the exit code is 1.

    python -m benchmarks.table [--quick] [--only NAME] [--page FILE]
    python -m benchmarks.table --again [--only NAME]

``--quick`` and ``--only`` do not make the table: the page is printed then, unless ``--page`` is given.
``--again`` measures nothing: it makes the page of the record that the page holds, after a text has changed.
With ``--only`` it measures those rows and puts them into that record, for rows that are new.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

import kpsplit
from benchmarks.harness import parser_of
from benchmarks.page import (
    NOTHING,
    Record,
    Values,
    joined,
    recorded_in,
    render,
    rows,
    scripts,
    with_summary,
)
from kpsplit.compiled import in_use
from kpsplit.devcluster.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
GIB = 1024**3
LIBRDKAFKA = "%"
"""What its lines begin with: clients that outlive their brokers complain."""


def run_script(script: str, options: list[str]) -> tuple[dict[str, Values], str | None]:
    """Run one script; return what it found, and why it failed if it did."""
    with tempfile.TemporaryDirectory(prefix="kpsplit-bench-") as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, "-m", f"benchmarks.{script}", "--record", str(record), *options]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        found = json.loads(record.read_text("utf-8")) if record.exists() else {}
    sys.stderr.write(done.stderr)
    values = {name: Values(tuple(v["wall"]), tuple(v["cpu"]), v["note"]) for name, v in found.items()}
    return values, failure(done.returncode, done.stderr)


def failure(code: int, errors: str) -> str | None:
    """Return why a process failed: its exit code and the last line of its errors; None if it did not."""
    if code == 0:
        return None
    lines = [line.strip() for line in errors.splitlines() if line.strip() and line[0] != LIBRDKAFKA]
    return f"exit code {code}; {lines[-1] if lines else 'no message'}"


def versions() -> dict[str, str]:
    """Return the versions of all that takes part."""
    return {
        "kpsplit": f"{kpsplit.__version__}, producing and reading {in_use()}",
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "Kafka": f"{KAFKA_VERSION}, three embedded brokers",
        "Python": platform.python_version(),
        "PySpark": version("pyspark"),
    }


def machine() -> str:
    """Return what the table was measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores, {memory:.0f} GiB of memory, {platform.system()} on {platform.machine()}; "
        "clients and brokers share them"
    )


def measure(options: list[str], wanted: tuple[str, ...]) -> Record:
    """Run scripts one after the other."""
    began = time.monotonic()
    found: dict[str, Values] = {}
    failed: dict[str, str] = {}
    for script in wanted:
        print(f"# {script}, after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
        values, why = run_script(script, options)
        found |= values
        failed |= {script: why} if why else {}
    minutes = (time.monotonic() - began) / 60
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Record(date, round(minutes, 1), versions(), machine(), found, failed)


def write(record: Record) -> None:
    """Write the page and README's summary of a record."""
    PAGE.write_text(render(record), "utf-8")
    README.write_text(with_summary(README.read_text("utf-8"), record), "utf-8")


def scripts_of(rows_by_script: Mapping[str, list[str]], only: str) -> tuple[str, ...]:
    """Return the scripts that have a row whose name contains a text."""
    return tuple(s for s, names in rows_by_script.items() if any(only in name for name in names))


def main() -> int:
    """Measure, and write or print the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--page", type=Path, help="where the page is written")
    parser.add_argument(
        "--again", action="store_true", help="make the page of its own record; measure the rows of --only"
    )
    given = parser.parse_args()
    known = recorded_in(PAGE.read_text("utf-8")) if given.again and PAGE.exists() else NOTHING
    if given.again and not given.only:
        write(known)
        return 0
    by_script = {s: [row.name for section, row in rows() if section.script == s] for s in scripts()}
    wanted = scripts_of(by_script, given.only)
    if not wanted:
        parser.error(f"no row's name contains {given.only!r}")
    options = ["--quick"] * given.quick + (["--only", given.only] if given.only else [])
    record = measure(options, wanted)
    if given.page:
        given.page.write_text(render(record), "utf-8")
    elif given.again and not given.quick:
        write(joined(known, record))
    elif options:
        print(render(record))
    else:
        write(record)
    print(f"{len(record.rows)} rows in {record.minutes:.0f} minutes", file=sys.stderr)
    for script, why in record.failed.items():
        print(f"{script} failed: {why}", file=sys.stderr)
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
