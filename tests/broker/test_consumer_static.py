"""Members with a ``group.instance.id`` that come back within their session: the others notice nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kpsplit import Producer
from tests.broker.consuming import REMOTE, Log, Member, reading, shared, wait_for
from tests.broker.producing import Journal, Writer
from tests.nights import others_at_night

pytestmark = pytest.mark.broker

SLOTS = 8


@pytest.mark.parametrize(
    "settings", others_at_night([{}, REMOTE], lambda settings: not settings), ids=["classic", "consumer"]
)
def test_a_static_member_that_comes_back_finds_its_slots_and_the_other_keeps_its_own(
    bootstrap, operations, make_topic, settings
):
    topic, log, journal = make_topic(), Log(), Journal()

    def member(name: str, instance: str) -> Member:
        made = Member(bootstrap, f"g-{topic}", [topic], log, name, group_instance_id=instance, **settings)
        made.start()
        return made

    with Producer({"bootstrap.servers": bootstrap}) as producer:
        shared(operations, topic, SLOTS)
        one, stays = member("one", "first"), member("stays", "second")
        wait_for(lambda: len(reading(one)) == len(reading(stays)) == SLOTS // 2, "the slots to be shared")
        writer = Writer(producer, topic, journal, "w")
        writer.start()
        wait_for(lambda: {"one", "stays"} <= {w for m in log.members.values() for w in m}, "records")
        before, its_own, others = dict(stays.consumer.stats()), reading(one), reading(stays)
        one.stop()
        again = member("again", "first")
        wait_for(lambda: reading(again) == its_own, "its own slots")
        count = len(journal.values)
        wait_for(lambda: len(journal.values) > count + 100, "more records")
        writer.stop()
        producer.flush(30)
        wait_for(lambda: log.distinct() == len(journal.values), "every record")
        after: dict[str, Any] = dict(stays.consumer.stats())
        assert reading(stays) == others
        assert reading(again) == its_own
        for one_of in (again, stays):
            one_of.stop()
    assert after["rebalances"] == before["rebalances"], "the one that stayed went through a rebalance"
    assert after.get("slots_handed_over", 0) == before.get("slots_handed_over", 0)
    log.check_order({key: found for (_, key), found in journal.sent.items()})
    assert log.duplicates() == 0
