"""Records that another program copied with all their headers, as MirrorMaker or a dead-letter re-drive does.

One topic is split, merged and copied: into another topic that is split, and back into itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Message
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import NewTopic

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.admin_cli.main import cli
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.data import STAMP_HEADER
from tests.broker.consuming import consumer, drain, shared
from tests.broker.operating import merge, records, split, state_of
from tests.broker.producing import eventually

pytestmark = [pytest.mark.broker]

BEFORE, SPLIT, MERGED = 500, 1000, 500
"""How many records the copied topic got in each period of its life."""
EVERY = BEFORE + SPLIT + MERGED


@dataclass(frozen=True)
class Lived:
    """A partition that was split and merged, and its data records as a program sees them in the real logs."""

    parent: PhysicalPartition
    raw: list[Message]


def written(bootstrap: str, topic: str, values: Iterable[int], prefix: str = "") -> None:
    """Write through kpsplit; every third record has headers of its own."""
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for n in values:
            own = {"trace": b"%d" % n} if n % 3 == 0 else None
            producer.produce(topic, f"{prefix}{n}", f"key-{n % 13}", headers=own)
        assert producer.flush(60) == 0


def copied(bootstrap: str, messages: Iterable[Message], topic: str) -> None:
    """Write records again, past kpsplit, headers included."""
    plain = PlainProducer({"bootstrap.servers": bootstrap, "acks": "all"})
    errors: list[Any] = []
    for m in messages:
        plain.produce(
            topic, m.value(), m.key(), 0, headers=m.headers(), on_delivery=lambda e, _: errors.append(e)
        )
    assert plain.flush(60) == 0
    assert set(errors) == {None}


def made(admin: Any, operations: Admin, name: str) -> PhysicalPartition:
    topic = f"{name}-{time.time_ns()}"
    admin.create_topics([NewTopic(topic, 1, 3)], operation_timeout=30)[topic].result(30)
    return shared(operations, topic, slots=4)


@pytest.fixture(scope="module")
def lived(operations: Admin, bootstrap: str, admin: Any) -> Lived:
    parent = made(admin, operations, "copied")
    written(bootstrap, parent.topic, range(BEFORE))
    split(operations, parent, 4)
    written(bootstrap, parent.topic, range(BEFORE, BEFORE + SPLIT))
    merge(operations, parent)
    written(bootstrap, parent.topic, range(BEFORE + SPLIT, EVERY))
    sources = state_of(operations, parent).lineage.sources()
    raw = [
        m
        for source in sources
        for m in records(bootstrap, source)
        if dict(m.headers() or ()).get(STAMP_HEADER)
    ]
    assert sorted(int(m.value() or b"") for m in raw) == list(range(EVERY))
    return Lived(parent, raw)


def read(bootstrap: str, parent: PhysicalPartition) -> tuple[Counter[str], list[dict[str, Any]], str]:
    """What ``kpsplit read`` prints: how often each value, the records, and what it says besides."""
    ran = CliRunner().invoke(cli, ["-b", bootstrap, "-o", "json", "read", str(parent)])
    assert ran.exit_code == 0, ran.output
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return Counter(r["value"] for r in found), found, ran.stderr


def test_copies_come_out_of_another_split_topic_and_bring_no_stamp_along(
    lived: Lived, operations: Admin, bootstrap: str, admin: Any
) -> None:
    target = made(admin, operations, "target")
    written(bootstrap, target.topic, range(100), "own-")
    split(operations, target, 4)
    copied(bootstrap, lived.raw, target.topic)
    written(bootstrap, target.topic, range(100, 200), "own-")
    merge(operations, target)
    copied(bootstrap, lived.raw, target.topic)

    wanted = Counter({str(n): 2 for n in range(EVERY)} | {f"own-{n}": 1 for n in range(200)})
    values, found, said = read(bootstrap, target)
    assert values == wanted
    assert "stray" not in said
    assert {r["stamp"] is None for r in found if not r["value"].startswith("own-")} == {True}
    with consumer(bootstrap, f"g-{time.time_ns()}") as member:
        member.subscribe([target.topic])
        messages = drain(member, wanted.total())
        assert Counter((m.value() or b"").decode() for m in messages) == wanted
        assert member.stats()["strays"] == 0
    own = {(m.value() or b"").decode().removeprefix("own-"): m.headers() for m in messages}
    assert all(own[str(n)] == ([("trace", b"%d" % n)] if n % 3 == 0 else None) for n in range(EVERY))


def test_what_is_written_back_to_its_own_topic_is_delivered_or_counted_as_a_stray(
    lived: Lived, operations: Admin, bootstrap: str
) -> None:
    """Only what comes from the same log, before its end, cannot be told from a stray."""
    copied(bootstrap, lived.raw, lived.parent.topic)
    wanted = Counter({str(n): 1 if n < BEFORE else 2 for n in range(EVERY)})
    values, _, said = read(bootstrap, lived.parent)
    assert values == wanted
    assert f"{BEFORE} strays" in said
    with consumer(bootstrap, f"g-{time.time_ns()}") as member:
        member.subscribe([lived.parent.topic])
        messages = drain(member, wanted.total())
        assert Counter((m.value() or b"").decode() for m in messages) == wanted
        eventually(lambda: member.stats()["strays"] == BEFORE, "all strays to be counted")
