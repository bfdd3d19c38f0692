"""A partition of the offset log that is undecided holds up the slots whose commits it holds, no others."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kpsplit.admin import Admin
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import write
from tests.conftest import MakeTopic

pytestmark = pytest.mark.broker

RECORDS = 10
PARTITIONS = 16


def test_slots_start_although_the_commits_of_other_slots_cannot_be_read(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    """The open transaction is anybody's, a dead member's for example."""
    stuck = shared(operations, make_topic(), 2)
    at = offsets_partition(stuck, PARTITIONS)
    well = next(
        parent
        for parent in (PhysicalPartition(make_topic(), 0) for _ in range(10))
        if offsets_partition(parent, PARTITIONS) != at
    )
    shared(operations, well.topic, 2)
    for parent in (stuck, well):
        write(bootstrap, parent.topic, RECORDS, 0)
    open_ = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": stuck.topic, "transaction.timeout.ms": 600_000}
    )
    open_.init_transactions(30)
    open_.begin_transaction()
    open_.produce(OFFSETS_TOPIC, b"", b"of a member that died", at)
    assert open_.flush(30) == 0
    with consumer(bootstrap, f"g-{stuck.topic}") as member:
        member.subscribe([stuck.topic, well.topic])
        assert {m.topic() for m in drain(member, RECORDS)} == {well.topic}
        member.commit(asynchronous=False)
        assert {s for s, stage in member.stats()["slots"].items() if stage == "reading"} == {
            s for s in member.stats()["slots"] if s.startswith(well.topic)
        }
        open_.abort_transaction(30)
        assert {m.topic() for m in drain(member, RECORDS)} == {stuck.topic}
        wait_for(lambda: set(member.stats()["slots"].values()) == {"reading"}, "all slots")
