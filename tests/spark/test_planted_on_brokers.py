"""Faults in real topics, written past kpsplit with forged stamps: each is found where it is, nothing else.

Each forger is a producer of its own, with one fault and a certificate that says it delivered all it gave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from kpsplit import Producer as KpsplitProducer
from kpsplit.admin_cli.main import cli
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp, instance_name
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import Certificate, ProducerRegistration
from tests.broker.operating import enrolled, split

pytestmark = [pytest.mark.broker]

HOUR_MS = 3_600_000


@dataclass
class Forger:
    """Writes records as one producer of kpsplit would, but what the test says."""

    bootstrap: str
    instance: int
    state: PartitionState
    given: set[int] = field(default_factory=set)
    delivered: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plain = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})

    @property
    def name(self) -> str:
        return instance_name(self.instance)

    def write(self, segment: Segment, key: bytes, *numbers: int, epoch: int = 1, at_ms: int = 0) -> None:
        """Write numbers of one key into a segment's log; ``at_ms``: their timestamp, 0 for now."""
        for number in numbers:
            stamp = [(STAMP_HEADER, Stamp(epoch, self.instance, number).encode())]
            place = segment.source
            self._plain.produce(place.topic, b"v", key, place.partition, timestamp=at_ms, headers=stamp)
            self.given.add(number)
            if epoch >= segment.opened_epoch:
                name = str(segment.id)
                self.delivered[name] = self.delivered.get(name, 0) + 1
        assert self._plain.flush(30) == 0

    def close(self, next_sequence: int) -> None:
        """Leave a certificate that counts what was written."""
        certificates = {str(self.state.parent): Certificate(next_sequence, self.delivered, ())}
        record = ProducerRegistration(
            self.instance,
            1,
            "forger",
            topics=(self.state.parent.topic,),
            closed=True,
            certificates=certificates,
        )
        self._plain.produce(PRODUCERS_TOPIC, record.encode(), record.key, 0)
        assert self._plain.flush(30) == 0


@pytest.fixture
def state(operations, bootstrap, make_topic) -> PartitionState:
    """A partition that is split in two, with records of a true producer in both layouts."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    with KpsplitProducer({"bootstrap.servers": bootstrap}) as producer:
        write_all(producer, topic)
        made = split(operations, parent, 2)
        write_all(producer, topic)
    return made


@pytest.fixture
def forger(bootstrap: str) -> Callable[[int, PartitionState], Forger]:
    return lambda instance, state: Forger(bootstrap, instance, state)


def write_all(producer: KpsplitProducer, topic: str) -> None:
    for i in range(100):
        producer.produce(topic, b"v", b"key-%d" % (i % 9))
    assert producer.flush(30) == 0


def phantoms(state: PartitionState) -> tuple[Segment, Segment]:
    one, other = state.lineage.open_segments()
    return one, other


def key_of(segment: Segment) -> bytes:
    return next(k for k in (b"k%d" % i for i in range(100)) if key_hash(k) in segment.range)


def verify(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-b", bootstrap, "-o", "json", "verify", *arguments])


def defects(ran: Result) -> list[dict[str, Any]]:
    return [f for f in json.loads(ran.stdout)["findings"] if f["severity"] == "finding"]


def row(finding: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(finding.get(name) for name in names)


def test_each_fault_is_found_with_its_producer_segment_key_and_offsets(
    spark, bootstrap, state, forger
) -> None:
    one, other = phantoms(state)
    mine, theirs = key_of(one), key_of(other)
    loser, repeater, swapper, misplacer, strayer = (forger(n, state) for n in range(101, 106))
    loser.write(one, mine, 0, 1, 3)
    loser.close(5)
    repeater.write(one, mine, 0, 1, 1, 2)
    repeater.close(3)
    swapper.write(other, theirs, 0, 2, 1)
    swapper.close(3)
    misplacer.write(other, mine, 0)
    misplacer.close(1)
    strayer.write(one, mine, 0, epoch=0)
    strayer.close(1)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(other.source.topic, b"v", theirs, other.source.partition)
    assert plain.flush(30) == 0

    ran = verify(bootstrap, state.parent.topic)
    assert ran.exit_code == 3, ran.output
    found = {(f["check"], f.get("producer"), f["first"]): f for f in defects(ran)}
    assert {key[:2] for key in found} == {
        ("sequences_complete", loser.name),
        ("sequences_unique", repeater.name),
        ("keys_in_order", swapper.name),
        ("records_in_their_segments", misplacer.name),
        ("strays_sent_again", strayer.name),
        ("foreign_records", None),
    }
    lost = sorted(first for check, who, first in found if who == loser.name)
    assert lost == [2, 4]
    by_producer = {who: f for (_, who, _), f in found.items()}
    places = ("segment", "key_hash", "count")
    assert row(by_producer[repeater.name], *places) == (one.id, key_hash(mine), 1)
    assert row(by_producer[swapper.name], *places) == (other.id, key_hash(theirs), 1)
    assert row(by_producer[misplacer.name], *places) == (other.id, key_hash(mine), 1)
    assert by_producer[None]["segment"] == other.id


@pytest.mark.nightly
def test_since_a_time_finds_what_came_after_it_and_not_what_came_before(
    spark, operations, bootstrap, make_topic, forger
) -> None:
    """Nothing but forged records, whose timestamps say when they came."""
    topic = make_topic()
    state = split(operations, enrolled(operations, topic), 2)
    one, other = phantoms(state)
    now = time.time_ns() // 1_000_000
    loser, misplacer = forger(201, state), forger(202, state)
    for at, numbers in ((now - 2 * HOUR_MS, (0, 1, 3)), (now - HOUR_MS // 2, (4, 5, 7))):
        loser.write(one, key_of(one), *numbers, at_ms=at)
        misplacer.write(other, key_of(one), numbers[0] // 4, at_ms=at)
    loser.close(8)
    misplacer.close(2)

    whole, late = (
        verify(bootstrap, topic),
        verify(bootstrap, topic, "--since", "1h"),
    )
    assert (whole.exit_code, late.exit_code) == (3, 3), whole.output + late.output
    missing = [[f["first"] for f in defects(r) if f.get("producer") == loser.name] for r in (whole, late)]
    wrong = [[f["count"] for f in defects(r) if f.get("producer") == misplacer.name] for r in (whole, late)]
    assert missing == [[2, 6], [6]]
    assert wrong == [[2], [1]]
    told = json.loads(late.stdout)
    assert now - HOUR_MS <= told["judged_since_ms"] <= time.time_ns() // 1_000_000 - HOUR_MS


@pytest.mark.nightly
def test_since_a_time_between_a_true_producers_records_all_is_clean(
    spark, operations, bootstrap, make_topic
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    with KpsplitProducer({"bootstrap.servers": bootstrap}) as producer:
        write_all(producer, topic)
        split(operations, parent, 2)
        write_all(producer, topic)
        at = datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1000, UTC)
        write_all(producer, topic)
    ran = verify(bootstrap, topic, "--since", at.isoformat())
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert 100 <= told["records"] < 200
    table = CliRunner().invoke(cli, ["-b", bootstrap, "verify", topic, "--since", "1h"])
    assert "judged: what was written since" in table.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--since", "yesterday"], "is not a time"),
        (["--since", "2026-01-01"], "no time zone"),
    ],
)
def test_a_time_that_cannot_be_used_is_refused(bootstrap, arguments, reason) -> None:
    ran = verify(bootstrap, "nowhere", *arguments)
    assert ran.exit_code == 2, ran.output
    assert reason in ran.stderr


def test_a_time_in_the_future_is_refused(bootstrap, operations, make_topic) -> None:
    topic = make_topic()
    enrolled(operations, topic)
    ran = verify(bootstrap, topic, "--since", "2999-01-01T00:00:00Z")
    assert ran.exit_code == 2, ran.output
    assert "future" in ran.stderr
