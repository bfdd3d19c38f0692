"""Range commits tell in which leader epoch the last processed record was written."""

from __future__ import annotations

import pytest

from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import consumer, drain, move_leader, shared
from tests.broker.operating import write

pytestmark = pytest.mark.broker


def test_a_range_commit_has_the_leader_epoch_of_the_record_before_its_position(
    bootstrap, operations, make_topic, admin
):
    topic = make_topic()
    group, parent = f"g-{topic}", PhysicalPartition(topic, 0)
    seen: list[int | None] = []
    with consumer(bootstrap, group, enable_auto_commit=False) as member:
        shared(operations, topic, 2)
        member.subscribe([topic])
        for _ in range(2):
            write(bootstrap, topic, 20)
            last = drain(member, 20)[-1].leader_epoch()
            member.commit(asynchronous=False)
            (shown,) = operations.offsets(group, topic, 0)
            commits = [r.commit for r in shown.ranges if r.commit is not None]
            assert {at.leader_epoch for c in commits for at in c.positions.values()} == {last}
            seen.append(last)
            move_leader(bootstrap, admin, parent)
    assert seen[0] is not None and seen[1] is not None
    assert seen[1] > seen[0]
