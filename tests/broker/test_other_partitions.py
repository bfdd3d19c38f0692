"""A fence holds one partition's records: the same producer's other partitions go on."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Message

from kpsplit import Producer
from kpsplit.demo.records import partition_of
from tests.broker.operating import PAUSE_MS, DiedError, dying_after, enrolled
from tests.broker.producing import eventually

pytestmark = [pytest.mark.broker]

KEYS = [b"key-%d" % i for i in range(40)]


def test_other_partitions_are_written_and_reported_while_one_is_fenced(
    operations, bootstrap, make_topic
) -> None:
    """For as long as the fence lasts: its operator died, and it ends only after the others are through."""
    topic = make_topic(partitions=2)
    parent = enrolled(operations, topic)
    reports: Counter[int] = Counter()

    def report(error: object, message: Message) -> None:
        assert error is None
        reports[message.partition()] += 1

    def send_all() -> Counter[int]:
        for key in KEYS:
            producer.produce(topic, b"v", key, on_delivery=report)
        return Counter(partition_of(key, 2) for key in KEYS)

    with Producer({"bootstrap.servers": bootstrap, "kpsplit.takeover.enable": False}) as producer:
        sent = send_all()
        assert producer.flush(30) == 0
        assert reports == sent and min(sent[0], sent[1]) > 10
        plan = operations.plan_split(parent, 2, even=True)
        with pytest.raises(DiedError):
            operations.run(plan, max_pause_ms=PAUSE_MS, observer=dying_after("Fence"), force=True)
        eventually(lambda: producer.layout_stats().partitions[f"{topic}/0"].fences, "the fence")
        reports.clear()
        send_all()
        eventually(lambda: (producer.poll(0), reports[1] == sent[1])[1], "reports of the other partition")
        assert reports == {1: sent[1]}, "the fenced one waits"
        assert producer.layout_stats().partitions[f"{topic}/0"].waiting == sent[0]
        operations.abort(parent, "the test goes on")
        assert producer.flush(30) == 0
        assert reports == sent
