"""A member whose copies of state are warm before it joins its group."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kpsplit import JSON, TEXT, SlotId, StateStore
from kpsplit.admin import Admin
from kpsplit.consumer.state.store import WARM_LAG
from kpsplit.splitter.key_range import key_hash, slot_index
from kpsplit.splitter.records.control import Partitioner
from tests.broker.producing import eventually
from tests.broker.running import KEYS
from tests.broker.state_counting import Member, count
from tests.broker.state_member import changelog_ends
from tests.conftest import MakeTopic

pytestmark = [pytest.mark.broker]
LONG = 180.0
WARM_SECONDS = 600.0
"""How long a newcomer may follow before it joins all the same: longer than anything is waited for."""
SLOTS = 4
FILLS, VALUES, VALUE_BYTES = 60, 1000, 1024
"""Records that fill the state, and what a handler writes for each: some 60 MB together."""
OWNER, NEWCOMER = "owner", "newcomer"


@pytest.fixture
def topic(operations: Admin, make_topic: MakeTopic) -> str:
    """An enrolled topic."""
    name = make_topic()
    operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
    return name


class Writing(threading.Thread):
    """Writes records of every slot until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        self._topic, self._over = topic, threading.Event()

    def fill(self) -> None:
        """Write records whose handlers write much state."""
        for number in range(FILLS):
            self._producer.produce(self._topic, b"fill", b"fill-%d" % number)
        assert self._producer.flush(LONG) == 0

    def run(self) -> None:
        while not self._over.wait(0.02):
            for key in KEYS[:8]:
                self._producer.produce(self._topic, b"%s:%d" % (key, self.written), key)
                self.written += 1
            self._producer.poll(0)

    def stop(self) -> None:
        self._over.set()
        self.join(LONG)
        assert self._producer.flush(LONG) == 0


class Events:
    """What happened, in its order: who was handed a record of which slot, and when slots were taken away."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []
        self.filled = 0
        self.first_with: dict[int, int] = {}
        """By slot: how many records the newcomer had restored of it when it handed out the first."""
        self.followed: int | None = None
        """How much the newcomer's copies had followed when slots were first taken from the owner."""

    def handler(self, who: str, store: Callable[[], StateStore]) -> Callable[[Any], None]:
        def handle(record: Any) -> None:
            slot = slot_index(key_hash(record.key()), SLOTS)
            if who == NEWCOMER and slot not in self.first_with:
                name = str(SlotId(record.topic(), record.partition(), slot, SLOTS))
                self.first_with[slot] = store().stats()["slots"][name]["restored"]
            self.all.append((who, slot))
            if record.value() != b"fill":
                count(store(), record)
                return
            state = store().for_record(record)
            for number in range(VALUES):
                state.put(b"%s-%d" % (record.key(), number), os.urandom(VALUE_BYTES))
            self.filled += 1

        return handle

    def handed_out(self, who: str, first: int = 0) -> set[int]:
        return {slot for by, slot in self.all[first:] if by == who}


@pytest.mark.slow
def test_the_owner_goes_on_with_every_slot_until_the_newcomers_copies_are_warm_and_nothing_is_restored_then(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    group, events, writing = f"g-{topic}", Events(), Writing(bootstrap, topic)
    members: dict[str, Member] = {}

    def revoke(*_: object) -> None:
        if NEWCOMER in members and events.followed is None:
            events.followed = members[NEWCOMER].store.stats()["counts"]["followed"]
            events.all.append(("revoked", -1))

    def join(who: str, **more: Any) -> Member:
        handler = events.handler(who, lambda: members[who].store)
        members[who] = Member(bootstrap, group, topic, tmp_path / who, handler=handler, **more)
        return members[who]

    owner = join(OWNER, callbacks={"on_revoke": revoke}, workers=1)
    writing.fill()
    writing.start()
    eventually(lambda: events.filled == FILLS, "the state", LONG)
    eventually(lambda: len(events.handed_out(OWNER)) == SLOTS, "the owner to have every slot", LONG)
    began = len(events.all)
    newcomer = join(NEWCOMER, warm_seconds=WARM_SECONDS)
    eventually(lambda: len(newcomer.slots()) == SLOTS // 2, "the newcomer to have its slots", LONG)
    moved = {SlotId(topic, 0, index, SLOTS) for index in range(SLOTS)} - set(owner.store.slots())
    eventually(lambda: len(events.first_with) == len(moved), "a record of each slot that moved", LONG)
    revoked = events.all.index(("revoked", -1))
    assert events.handed_out(NEWCOMER, began) == {slot.index for slot in moved}
    assert {slot for by, slot in events.all[began:revoked] if by == OWNER} == set(range(SLOTS))
    assert NEWCOMER not in {by for by, _ in events.all[:revoked]}
    # A copy counts as warm while it lacks no more than that.
    assert events.followed is not None and events.followed >= FILLS * VALUES - SLOTS * WARM_LAG
    assert max(events.first_with.values()) <= WARM_LAG < FILLS * VALUES / SLOTS / 4
    eventually(
        lambda: not newcomer.store.stats()["standbys"], "it to leave what it does not stand by for", LONG
    )
    writing.stop()
    newcomer.stop()
    eventually(lambda: counted(owner, topic) == writing.written, "every record, once", LONG)
    owner.stop()


def counted(member: Member, topic: str) -> int:
    """How many records the state counts of the member say."""
    views = [member.store.slot(slot).typed(TEXT, JSON) for slot in member.store.slots()]
    return sum((view.get(key.decode()) or [0])[0] for view in views for key in KEYS[:8])


def test_a_static_member_that_is_started_again_has_its_slots_and_copies_as_before(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The coordinator keeps its slots for it: nobody goes on with them, so it waits for nothing."""
    group, writing = f"g-{topic}", Writing(bootstrap, topic)

    def member(name: str) -> Member:
        extra = {"group_instance_id": name}
        path = tmp_path / name
        return Member(bootstrap, group, topic, path, standbys=1, warm_seconds=WARM_SECONDS, extra=extra)

    writing.start()
    one, two = member("one"), member("two")
    eventually(lambda: len(one.slots()) == len(two.slots()) == SLOTS // 2, "both", LONG)
    eventually(lambda: len(two.store.stats()["standbys"]) == SLOTS // 2, "its copies", LONG)
    writing.stop()
    eventually(lambda: counted(one, topic) + counted(two, topic) == writing.written, "every record", LONG)
    eventually(lambda: not one.store.stats()["pending_bytes"], "the last commit", LONG)
    ends = changelog_ends(bootstrap, f"g-{topic}", one.store.slots())

    def whole() -> bool:
        at = two.store.stats()["standbys"]
        return at.keys() == ends.keys() and all(at[slot] >= end for slot, end in ends.items())

    eventually(whole, "the copies to be whole", LONG)
    slots, rebalances = two.slots(), one.consumer.stats()["rebalances"]
    two.stop()
    again = member("two")
    eventually(lambda: len(again.slots()) == SLOTS // 2, "its slots", LONG)
    eventually(lambda: len(again.store.stats()["standbys"]) == SLOTS // 2, "its copies", LONG)
    assert again.slots().keys() == slots.keys()
    assert one.consumer.stats()["rebalances"] == rebalances
    counts = again.store.stats()["counts"]
    assert counts.get("restored", 0) == counts.get("followed", 0) == 0
    assert not [name for name in counts if name.startswith("wiped")]
    again.stop()
    one.stop()
