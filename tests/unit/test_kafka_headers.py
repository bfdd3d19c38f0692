"""Nobody but one function asks a record that was read for its headers."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder

import kpsplit
from kpsplit.clock import Deadline
from kpsplit.kafka.logical_message import headers_of, obvious_until, relabelled, wrapped
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from tests.broker.raw_names import RawName

HOME = 5
STAMP = Stamp(0, 7, 1, HOME).encode()
PACKAGE = Path(kpsplit.__file__).parent


class Broken:
    """A message as the client library gives it: asked a second time it would end the process."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._headers: list[Any] | None = None
        self.asked = 0

    def topic(self) -> str:
        return "orders"

    def headers(self) -> list[Any] | None:
        if self._headers is None:
            self.asked += 1
            assert self.asked == 1, "a segmentation fault"
            raise self._error
        return self._headers

    def set_headers(self, headers: list[Any]) -> None:
        self._headers = headers


def test_headers_that_cannot_be_read_are_asked_for_once_and_are_an_empty_list() -> None:
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError("…")):
        message = Broken(error)
        assert headers_of(message) == []
        assert message.headers() == [], "what the application gets"
        assert headers_of(message) == []


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """Bootstrap servers of the client library's own cluster: a record, two with such names, and a record."""
    cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    batch = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for number, names in enumerate([[b"\xff", b"kps"], [b"\xff", b"ok", b"\x80"]]):
        batch.append(number, 0, b"k", b"v", [(RawName(name), b"") for name in names])
    records = bytes(batch.build())
    topic = struct.pack(">ih1siii", 1, 1, b"t", 1, 0, len(records)) + records
    request = struct.pack(">hhih1shhi", 0, 3, 1, 1, b"c", -1, 1, 5000) + topic  # Produce, version 3
    for own in (True, False, True):
        if own:
            cluster.produce("t", b"v", b"k", partition=0, headers={STAMP_HEADER: STAMP})
            assert cluster.flush(10) == 0
        else:
            with socket.create_connection((broker.host, broker.port), 10) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                assert connection.recv(1000)
    yield f"{broker.host}:{broker.port}"


def read(bootstrap: str) -> list[Message]:
    """Read the four records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[Message] = []
    deadline = Deadline(30)
    while len(found) < 4:
        deadline.check("four records to be read")
        found += consumer.consume(10, 0.1)
    consumer.close()
    return found


@pytest.mark.usefixtures("both_paths")
def test_lists_of_records_whose_headers_cannot_be_read_are_gone_through_as_if_they_had_none(
    mock: str,
) -> None:
    messages = read(mock)
    assert obvious_until(messages, 0, HOME, (0, 1)) == 4
    assert obvious_until(messages, 0, HOME, (1, 1)) == 0
    assert obvious_until(messages, 1, HOME, (1, 1)) == 3
    assert [headers_of(message) for message in messages] == [
        [(STAMP_HEADER, STAMP)],
        [],
        [],
        [(STAMP_HEADER, STAMP)],
    ]
    state = PartitionState.unsplit(PhysicalPartition("t", 0), "id")
    logical = wrapped(read(mock), relabelled(state.lineage.get(0), state.parent))
    for _ in range(2):
        assert [message.headers() for message in logical] == [None, [], [], None]


def test_one_function_is_the_only_caller() -> None:
    calls = re.compile(r"\.headers\(\)|methodcaller\(\"headers\"\)")
    callers = [p for p in PACKAGE.rglob("*.py") if any(calls.search(c) for c in code_of(p))]
    assert callers == [PACKAGE / "kafka" / "logical_message.py"]


def code_of(path: Path) -> list[str]:
    """The lines of a file without prose."""
    return [
        line
        for line in path.read_text().splitlines()
        if "``" not in line and not line.strip().startswith('"""')
    ]
