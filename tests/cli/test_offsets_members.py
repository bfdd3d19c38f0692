"""`kpsplit offsets` and the group's ordinary offsets tell the same true lag, whoever has committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Message
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer, Producer
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import consumer, wait_for
from tests.broker.operating import log_end
from tests.cli.conftest import Inline, WriteKeys

pytestmark = pytest.mark.broker

SLOTS = 8
KEYS = {f"key-{n}": 2 for n in range(40)}
COUNT = 80


def shared(members: list[Consumer]) -> bool:
    """Poll without a record; tell whether every slot has a member that reads it, and every member a slot."""
    for member in members:
        assert member.poll(0.05) is None
    reading = [list(m.stats()["slots"].values()).count("reading") for m in members]
    return sum(reading) == SLOTS and min(reading) > 0


def joined(stack: ExitStack, bootstrap: str, group: str, topic: str, count: int) -> list[Consumer]:
    """Members that commit when they are told to; all slots are shared among them."""
    members = [
        stack.enter_context(consumer(bootstrap, group, enable_auto_commit=False)) for _ in range(count)
    ]
    for member in members:
        member.subscribe([topic])
    wait_for(lambda: shared(members), "the slots to be shared")
    return members


def read(members: list[Consumer], count: int) -> None:
    """Have the members handed out so many records, all together."""
    found: list[Message] = []

    def all_of_it() -> bool:
        found.extend(m for member in members if (m := member.poll(0.02)) is not None)
        return len(found) >= count

    wait_for(all_of_it, "the records")
    assert {m.error() for m in found} == {None}
    assert len(found) == count


def write(bootstrap: str, topic: str) -> None:
    """Write each key's records along the layout."""
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for key, count in KEYS.items():
            for _ in range(count):
                producer.produce(topic, b"v", key)
        assert producer.flush(60) == 0


def committed(admin: AdminClient, group: str) -> dict[PhysicalPartition, int]:
    """The group's ordinary offsets, as any tool sees them."""
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {PhysicalPartition(p.topic, p.partition): p.offset for p in answer.result(60).topic_partitions}


def owner(range_: dict[str, Any]) -> str:
    return str(range_["owner"]["member"])


def lags(shown: dict[str, Any]) -> dict[PhysicalPartition, int]:
    """The lag of the slowest range in each physical partition, as `kpsplit offsets` shows it."""
    found: dict[PhysicalPartition, int] = {}
    for range_ in shown["ranges"]:
        for at in range_["positions"]:
            place = PhysicalPartition(at["topic"], at["partition"])
            found[place] = max(found.get(place, 0), at["lag"])
    return found


def test_the_lag_of_several_members_is_the_same_in_both_places(
    inline: Inline,
    new_topic: Callable[[str], str],
    write_keys: WriteKeys,
    admin: AdminClient,
    bootstrap: str,
) -> None:
    topic = new_topic("lags")
    group = f"g-{topic}"
    inline.ok("enroll", topic, "--slots", str(SLOTS))

    def ordinary(places: list[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        told = committed(admin, group)
        return {place: log_end(admin, place) - told[place] for place in places if place in told}

    def look() -> dict[str, Any]:
        (shown,) = inline.ok("offsets", "--group", group, topic, "-o", "json").json["partitions"]
        return dict(shown)

    with ExitStack() as stack:
        members = joined(stack, bootstrap, group, topic, 3)
        write_keys(topic, KEYS)
        read(members, COUNT)
        for member in members:
            member.commit(asynchronous=False)
        # Who commits last may not have seen the commits of the others, and puts that right afterwards.
        parent = PhysicalPartition(topic, 0)
        wait_for(lambda: ordinary([parent]) == {parent: 0}, "the ordinary offset to be the end")
        assert look()["lag"] == 0

        inline.ok("split", f"{topic}/0", "--ranges", "2", "--even", "--yes", "--force")
        write(bootstrap, topic)
        read(members, COUNT)
        late, *prompt = members
        for member in prompt:
            member.commit(asynchronous=False)
        shown = look()
        behind = {owner(r) for r in shown["ranges"] if r["lag"]}
        assert behind == {late.memberid()}
        assert {owner(r) for r in shown["ranges"]} == {m.memberid() for m in members}
        phantoms = [PhysicalPartition(f"{topic}.split-0-1", n) for n in range(2)]
        told = {place: lags(shown).get(place, 0) for place in phantoms}
        # One commit may not have seen another: that is put right behind it.
        wait_for(lambda: ordinary(phantoms) == told, f"the lags {told}")
        assert any(told.values())
        assert shown["lag"] == sum(lags(shown).values())

        late.commit(asynchronous=False)
        assert look()["lag"] == 0
        wait_for(lambda: ordinary(phantoms) == dict.fromkeys(phantoms, 0), "no lag in the ordinary offsets")


def test_members_that_commit_without_seeing_each_other_leave_a_true_lag_behind(
    inline: Inline,
    new_topic: Callable[[str], str],
    write_keys: WriteKeys,
    admin: AdminClient,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic("unseen")
    group, place = f"g-{topic}", PhysicalPartition(topic, 0)
    inline.ok("enroll", topic, "--slots", str(SLOTS))

    def lag() -> int:
        return log_end(admin, place) - committed(admin, group).get(place, 0)

    with ExitStack() as stack:
        members = joined(stack, bootstrap, group, topic, 2)
        for _ in range(2):
            write_keys(topic, KEYS)
            read(members, COUNT)
            with monkeypatch.context() as deaf:
                deaf.setattr(OffsetTail, "poll", lambda *_: False)
                for member in members:
                    member.commit(asynchronous=False)
            wait_for(lambda: lag() == 0, "the last one to put the ordinary offsets right")
        assert sum(member.stats().get("ordinary_offsets_righted", 0) for member in members) > 0
