"""What a process has loaded after a Producer and a Consumer have done their work in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kpsplit.splitter.records.control import Partitioner
from tests.broker.operating import write

pytestmark = pytest.mark.broker

SECONDS = 120

REPORT = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
CONSUMER = """
from kpsplit import Consumer
consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": TOPIC, "auto.offset.reset": "earliest"})
consumer.subscribe([TOPIC])
while (message := consumer.poll(1.0)) is None or message.error():
    pass
consumer.commit(message, asynchronous=False)
consumer.close()
"""
PRODUCER = """
from kpsplit import Producer
producer = Producer({"bootstrap.servers": BOOTSTRAP})
producer.produce(TOPIC, b"value", b"key")
assert not producer.flush(60)
producer.close()
"""


@pytest.mark.parametrize("program", [CONSUMER, PRODUCER], ids=["the-only-member-of-a-new-group", "producer"])
def test_a_client_loads_no_library_that_it_does_not_use(bootstrap, operations, make_topic, program) -> None:
    """kafka-python: 15,000 objects more that each garbage collection of the application goes through."""
    topic = make_topic(partitions=2)
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
    write(bootstrap, topic, 10)
    names = f"BOOTSTRAP, TOPIC = {bootstrap!r}, {topic!r}\n"
    code = names + program + REPORT
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert not set(ran.stdout.split()) & {"kafka", "pyspark", "click", "rich", "rocksdict"}
