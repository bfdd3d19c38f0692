"""What is closed has no admin client any more, with its threads and connections, even if it is kept."""

from __future__ import annotations

import gc

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.consumer.state.follower import Follower
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.following import FollowingProducer
from kpsplit.producer import lookup
from kpsplit.splitter.lineage import PhysicalPartition
from tests.unit.state_fakes import Disk

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def clients(kind: type = AdminClient) -> set[int]:
    gc.collect()
    return {id(found) for found in gc.get_objects() if isinstance(found, kind)}


def test_a_closed_producer_keeps_no_admin_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "TIMEOUT_SECONDS", 0.2)  # of a look at a cluster that does not answer
    before = clients()
    producer = Producer({**CONFIG, "message.timeout.ms": 1000})
    producer.produce("orders", b"value", key=b"key")
    while producer.layout_stats().last_error is None:
        producer.poll(0.05)
    assert clients() - before
    producer.close()
    assert not clients() - before


def test_a_closed_consumer_keeps_no_admin_client() -> None:
    before = clients()
    consumer = Consumer({**CONFIG, "group.id": "billing"})
    consumer.subscribe(["orders"])
    assert clients() - before
    consumer.close()
    assert not clients() - before


def test_a_closed_admin_keeps_no_client() -> None:
    admins, producers = clients(), clients(FollowingProducer)
    admin = Admin(CONFIG)
    admin._session.writer()
    assert clients() - admins and clients(FollowingProducer) - producers
    admin.close()
    assert not clients() - admins and not clients(FollowingProducer) - producers


def test_a_follower_that_has_ended_keeps_no_client() -> None:
    admins, producers = clients(), clients(FollowingProducer)
    follower = Follower(Disk(), Connection(CONFIG), "billing")  # type: ignore[arg-type]
    with pytest.raises(KpsplitError):
        follower._changelogs._written_ends("log", [PhysicalPartition("log", 0)], Deadline(0.01))
    assert clients() - admins and clients(FollowingProducer) - producers
    follower.close()
    assert not clients() - admins and not clients(FollowingProducer) - producers
