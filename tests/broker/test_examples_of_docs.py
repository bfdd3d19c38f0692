"""The programs on the pages run: each is started as it stands there, but for brokers, topics and folders."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_tail import read_slice
from kpsplit.splitter.lineage import PhysicalPartition
from tests.conftest import MakeTopic

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 60.0

pytestmark = [pytest.mark.broker]


def programs(page: str) -> list[str]:
    """The blocks of Python on a page that are whole programs."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".run(" in block]


PROGRAMS = [(page, n) for page in ("consumer.md", "state.md") for n in range(len(programs(page)))]


@pytest.mark.parametrize(("page", "number"), PROGRAMS, ids=[f"{page}-{n}" for page, n in PROGRAMS])
def test_a_program_on_a_page_works_on_every_record(
    page: str, number: int, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, failed = make_topic(2), make_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"no number", b"bad", 1)
    for i in range(20):
        producer.produce(topic, b"%d" % i, b"key-%d" % (i % 5))
    assert producer.flush(SECONDS) == 0
    program = programs(page)[number]
    quickly = '"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100'
    for there, here in (
        ("b1:9092", bootstrap),
        ('"group.id": "billing"', f'"group.id": "{topic}", {quickly}'),
        ("invoices.failed", failed),
        ("invoices", topic),
        ("/var/lib/billing/state", str(tmp_path / "state")),
    ):
        program = program.replace(there, here)
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        await_processed(bootstrap, topic, 21, running)
        running.send_signal(signal.SIGTERM)
        told, _ = running.communicate(timeout=SECONDS)
    finally:
        running.kill()
    assert running.returncode == 0
    if failed in program:
        assert "RunStats(processed=20, failures=3, skipped=0, dead_letters=1" in told
        connection = Connection({"bootstrap.servers": bootstrap})
        (letter,) = read_slice(connection, PhysicalPartition(failed, 0), 0, 1, Deadline(SECONDS))
        assert (letter.key(), letter.value()) == (b"bad", b"no number")
        headers = {name: value for name, value in letter.headers() if name.startswith("kpsplit.failed.")}
        assert headers == {
            "kpsplit.failed.error": b"ValueError",
            "kpsplit.failed.topic": topic.encode(),
            "kpsplit.failed.partition": b"1",
            "kpsplit.failed.offset": b"0",
        }
        assert all(f"`{name}`" in (DOCS / page).read_text(encoding="utf-8") for name in headers)


@pytest.mark.usefixtures("operations")
def test_the_program_that_operates_splits_and_merges(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    text = (DOCS / "admin.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = program.replace("b1:9092", bootstrap).replace("invoices", topic)
    ran = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=4 * SECONDS
    )
    assert ran.returncode == 0
    split, *ranges, end = ran.stdout.splitlines()
    assert split.startswith("split in ")
    bounds = ("00000000", "40000000", "80000000", "c0000000", "100000000")
    assert [line.split()[0] for line in ranges] == [f"{lo}:{hi}" for lo, hi in pairwise(bounds)]
    assert end.startswith("deleted: ['" + topic + ".split-0-1']")


def await_processed(bootstrap: str, group: str, records: int, running: subprocess.Popen[str]) -> None:
    """Wait until the group has committed all records of the topic that has its name."""
    places = [TopicPartition(group, 0), TopicPartition(group, 1)]
    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    limit = Deadline(SECONDS)
    try:
        while sum(max(0, found.offset) for found in asking.committed(places, SECONDS)) < records:
            assert running.poll() is None, "it ended by itself"
            limit.check("the group's commits")
            time.sleep(0.1)
    finally:
        asking.close()
