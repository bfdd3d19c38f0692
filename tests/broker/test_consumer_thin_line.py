"""A group reads a hot partition while it is split, split again and merged."""

from __future__ import annotations

import pytest

from kpsplit import Producer
from tests.broker.consuming import Log, consumer, drain
from tests.broker.operating import enrolled, merge, split
from tests.broker.producing import Journal, Writer

pytestmark = pytest.mark.broker


@pytest.mark.nightly
def test_what_was_written_before_and_after_a_split_and_a_merge_is_handed_out_once_in_order(
    bootstrap, operations, make_topic
):
    topic = make_topic()
    journal = Journal()
    parent = enrolled(operations, topic)
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        member = consumer(bootstrap, f"g-{topic}")
        member.subscribe([topic])
        writer = Writer(producer, topic, journal, "w")
        writer.start()
        log = Log()
        read = drain(member, 200)
        split(operations, parent, 4)
        read += drain(member, 500)
        merge(operations, parent)
        read += drain(member, 500)
        writer.stop()
        producer.flush(30)
        read += drain(member, len(journal.values) - len(read))
        assert member.poll(1.0) is None
        for message in read:
            log.add(message, "m")
        log.check_order({k: v for (_, k), v in journal.sent.items()})
        assert log.duplicates() == 0
        member.close()
