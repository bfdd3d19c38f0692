"""Records whose header names are no text: brokers take them, the client library cannot read them.

Each case runs in a process of its own, because a second look at such a record ends the process.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer

from kpsplit import compiled
from kpsplit.admin import Admin
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Layout, PhysicalPartition
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER
from tests.broker.operating import enrolled, merge, split, state_of
from tests.broker.raw_names import RawName
from tests.conftest import CreateTopic

pytestmark = pytest.mark.broker

CHILD = Path(__file__).with_name("raw_headers_child.py")
NAMES = [
    b"\xff\xfe",
    b"\x80",
    b"",
    STAMP_HEADER.encode() + b"\xff",
    MARKER_HEADER.encode() + b"\xff",
    b"ok",
    b"\xc3\xbc",
]
VALUES = [b"", b"\x00", b"\xff" * 40, b"\x01" * 21, b"text"]
COUNT = 41


class Writer:
    """Writes records with headers made of a few awkward names and values, always the same ones."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        self._random = random.Random(7)
        self._count = 0
        self.sent: list[str] = []

    def write(self, place: Callable[[bytes | None], PhysicalPartition], count: int = COUNT) -> None:
        """Write records, every third without a key; the second and the third have a name that is no text."""
        for number in range(count):
            key = None if number % 3 == 0 else b"key-%d" % (number % 7)
            names = self._random.choices(NAMES, k=self._random.randint(0, 4))
            if number in (1, 2, 3):
                names.append(b"\xff\xfe")
            headers = [(RawName(name), self._random.choice(VALUES)) for name in names]
            at, value = place(key), f"{self._count}"
            self._count += 1
            self._producer.send(at.topic, value.encode(), key, headers, at.partition).get(30)
            self.sent.append(value)

    def close(self) -> None:
        self._producer.close()


@pytest.fixture(scope="module")
def lived(bootstrap: str, operations: Admin, create_topic: CreateTopic) -> tuple[str, list[str]]:
    """A topic with records in the parent, in phantoms, in the overflow and in the reopened parent."""
    parent = enrolled(operations, create_topic("raw-headers-lived"))
    with closing(Writer(bootstrap)) as writer:
        writer.write(lambda _: parent)
        layout = Layout.of(split(operations, parent, 2).lineage)
        writer.write(lambda key: layout.segment_for(key_hash(key or b"")).source)
        writer.write(lambda _: parent)  # the overflow
        merge(operations, parent)
        writer.write(lambda _: parent)
    assert state_of(operations, parent).epoch == 2
    return parent.topic, writer.sent


@pytest.fixture(scope="module")
def plain(bootstrap: str, create_topic: CreateTopic) -> tuple[str, list[str]]:
    """A topic that is not enrolled."""
    parent = PhysicalPartition(create_topic("raw-headers-plain"), 0)
    with closing(Writer(bootstrap)) as writer:
        writer.write(lambda _: parent)
    return parent.topic, writer.sent


def read(bootstrap: str, how: str, topic: str, count: int) -> list[str]:
    """Read a topic in a process of its own; return the values that came, in order."""
    how, _, in_python = how.partition(" in ")
    command = [sys.executable, str(CHILD), bootstrap, how, topic, str(count)]
    env = {**os.environ, **({compiled.VARIABLE: "0"} if in_python else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout.split()


@pytest.mark.parametrize(
    "how", ["poll", "poll in Python", "consume", "logical", "deserializing", "run", "process", "dead-letter"]
)
def test_records_with_header_names_that_are_no_text_are_handed_out(
    bootstrap: str, lived: tuple[str, list[str]], how: str
) -> None:
    """Wherever in the lineage they are; with and without a key."""
    topic, sent = lived
    found = read(bootstrap, how, topic, len(sent))
    assert sorted(found, key=int) == sorted(sent, key=int)


@pytest.mark.parametrize("how", ["poll", "consume", "logical", "run"])
def test_so_are_those_of_a_topic_that_is_not_enrolled(
    bootstrap: str, plain: tuple[str, list[str]], how: str
) -> None:
    topic, sent = plain
    found = read(bootstrap, how, topic, len(sent))
    assert found == sent if how != "run" else sorted(found, key=int) == sent
