"""A gap is told by some member of the group, although the one that met it first is killed before it told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit.admin import Admin
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import write

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    """The group's ordinary offsets by partition."""
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(20).topic_partitions
    return {part.partition: part.offset for part in found if part.topic == topic}


def child(bootstrap: str, group: str, topic: str) -> subprocess.Popen[bytes]:
    """Start a member that is told of a gap and never hears it out."""
    command = [sys.executable, "-m", "tests.broker.gap_child", bootstrap, group, topic]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE)


def test_a_gap_that_a_killed_member_had_not_told_is_told_by_the_next_owner(
    bootstrap: str, operations: Admin, make_topic: Callable[..., str], admin: AdminClient
) -> None:
    """The commits of other partitions, begun behind the gap, show that it would have been committed."""
    topic = make_topic(partitions=2)
    group = f"g-{topic}"
    shared(operations, topic, 2)
    write(bootstrap, topic, 30, partition=0)
    with consumer(bootstrap, group) as member:
        member.subscribe([topic])
        drain(member, 10)
    for deleted in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        deleted.result(20)
    killed = child(bootstrap, group, topic)
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"is being told\n"
        write(bootstrap, topic, 10, partition=1)
        wait_for(lambda: committed(admin, group, topic).get(1) == 10, "commits of the other partition")
        assert committed(admin, group, topic)[0] == 10
    finally:
        killed.kill()
        killed.wait(10)
    told: list[str] = []
    settings = {"kpsplit.gap.policy": "skip-and-report", "error_cb": lambda error: told.append(str(error))}
    with consumer(bootstrap, group, **settings) as member:
        member.subscribe([topic])
        assert [m.offset() for m in drain(member, 10)] == list(range(20, 30))
    assert any("offsets 10 to 19" in words for words in told), told
