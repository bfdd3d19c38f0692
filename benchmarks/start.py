"""What kpsplit costs at the start: its import, a Producer's first report, a Consumer's first record.

python -m benchmarks.start [--quick] [--only start.import] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka

import kpsplit
from benchmarks.consumer import await_first, config, maker
from benchmarks.harness import KEYS, VALUE, Bench, Run, Stopwatch, create_topics, enrol, fill, run_script

NOT_WANTED = ("pyspark", "click", "rich")
"""Packages that an application does not need to produce and to read."""
IMPORTING = """
import sys, time
began = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - began[0], time.process_time() - began[1])
print(*(name for name in {unwanted!r} if name in sys.modules))
"""


def importing(compiled: str, statement: str) -> tuple[Run, list[str]]:
    """Import something in a new interpreter; return the time, and what is loaded in vain.

    ``compiled``: a folder for byte code. An installed package has it; here the environment may forbid it.
    """
    code = IMPORTING.format(statement=statement, unwanted=NOT_WANTED)
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    times, loaded = done.stdout.splitlines()
    wall, cpu = map(float, times.split())
    return Run(wall, cpu), loaded.split()


def imports(bench: Bench) -> None:
    """Note the milliseconds of an import, and what it loads too much."""
    clients = "from {} import Consumer, Producer".format
    statements = clients("kpsplit"), clients("confluent_kafka"), "import kpsplit"
    with TemporaryDirectory() as compiled:
        _, *found = [
            tuple(importing(compiled, statement) for statement in statements)
            for _ in range(1 + bench.size(15, 3))  # the first writes the byte code
        ]
    loaded = sorted({name for (_, names), *_ in found for name in names})
    plain, alone = (1000 * median(imports[side][0].wall for imports in found) for side in (1, 2))
    ours = [run for (run, _), *_ in found]
    note = f"of that confluent-kafka's own {plain:.0f} ms; `import kpsplit` alone {alone:.0f} ms"
    bench.note("start.import", [1000 * r.wall for r in ours], [1000 * r.cpu for r in ours], note)
    bench.note("start.loaded", [len(loaded)], note=", ".join(loaded))


def first_report(make: Any, bootstrap: str, topic: str) -> Run:
    """Start a producer, up to the report of its first record."""
    failed: list[Any] = []
    watch = Stopwatch()
    producer = make({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    producer.produce(topic, VALUE, KEYS[0], on_delivery=lambda error, _: error and failed.append(error))
    left = producer.flush(60)
    run = watch.stop()
    if left or failed:
        raise SystemExit(f"the first record was not delivered: {failed or 'no report'}")
    if isinstance(producer, kpsplit.Producer):
        producer.close()
    return run


def first_record(ours: bool, bootstrap: str, topic: str) -> Run:
    """Start a consumer, up to its first record."""
    watch = Stopwatch()
    consumer = maker(ours)(config(bootstrap, f"bench-start-{time.time_ns()}"))
    consumer.subscribe([topic])
    try:
        await_first(consumer)
        return watch.stop()
    finally:
        consumer.close()


def measure(bench: Bench) -> None:
    """Measure all rows of the start."""
    topic = f"bench-start-{time.time_ns()}"
    create_topics(bench.bootstrap, [topic])
    enrol(bench.bootstrap, [topic])
    fill(bench.bootstrap, topic, 1000)
    pairs = bench.size(11, 2)
    if bench.wants("start.import", "start.loaded"):
        imports(bench)
    producing = partial(first_report, bootstrap=bench.bootstrap, topic=topic)
    reading = partial(first_record, bootstrap=bench.bootstrap, topic=topic)
    bench.compare(
        "start.producer",
        partial(producing, kpsplit.Producer),
        partial(producing, confluent_kafka.Producer),
        pairs,
    )
    bench.compare("start.consumer", partial(reading, True), partial(reading, False), pairs)


if __name__ == "__main__":
    run_script(__doc__, measure)
