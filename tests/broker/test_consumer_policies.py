"""A callback that does not let go of slots in time, on a real group: what each policy does then."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit import Producer
from tests.broker.consuming import Log, Member, consumer, shared, wait_for
from tests.broker.producing import Journal, Writer

pytestmark = pytest.mark.broker

SLOTS = 8
TIMEOUT_MS = 2000
WAITED = "a revocation takes longer"
PATIENCE = 180.0


class Slow(threading.Thread):
    """A member whose first ``on_revoke`` returns when it is allowed to."""

    def __init__(self, bootstrap: str, topic: str, log: Log, policy: str) -> None:
        super().__init__(daemon=True)
        more: dict[str, Any] = {
            "kpsplit.revocation.policy": policy,
            "kpsplit.revocation.timeout.ms": TIMEOUT_MS,
        }
        self.consumer = consumer(bootstrap, f"g-{topic}", **more)
        self.hangs, self.may_return, self.over = threading.Event(), threading.Event(), threading.Event()
        self.lost: list[Any] = []
        self.errors: list[int] = []
        self._topic, self._log = topic, log

    def _hang(self, *_: Any) -> None:
        self.hangs.set()
        assert self.may_return.wait(PATIENCE)

    def run(self) -> None:
        self.consumer.subscribe(
            [self._topic], on_revoke=self._hang, on_lost=lambda _, parts: self.lost.append(parts)
        )
        while not self.over.is_set():
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._log.add(message, "slow")
            else:
                self.errors.append(error.code())
        self.consumer.close()

    def stop(self) -> None:
        self.over.set()
        self.join(PATIENCE)
        assert not self.is_alive()

    def left_group(self) -> int:
        return int(self.consumer.stats().get("left_group", 0))


def reading(member: Any) -> int:
    """How many slots a member hands out."""
    return list(member.consumer.stats()["slots"].values()).count("reading")


def all_committed(member: Any) -> bool:
    """Whether nothing would be read again if it left now: a hand-over has no longer than its timeout."""
    slots = member.consumer.slots()
    return bool(slots) and all(s.committed == s.positions for s in slots)


@pytest.mark.parametrize(
    ("policy", "times_waited"),
    [
        pytest.param("leave", 0, marks=pytest.mark.nightly),
        ("retry-then-leave", 1),
        pytest.param("retry", None, marks=pytest.mark.nightly),
    ],
)
def test_a_callback_that_does_not_return_is_left_alone_or_waited_for_by_policy(
    bootstrap, operations, make_topic, caplog, policy, times_waited
):
    caplog.set_level(logging.WARNING, "kpsplit")
    topic, log, journal = make_topic(), Log(), Journal()

    def waited() -> int:
        return sum(WAITED in record.message for record in caplog.records)

    with Producer({"bootstrap.servers": bootstrap}) as producer:
        shared(operations, topic, SLOTS)
        writer = Writer(producer, topic, journal, "w")
        writer.start()
        slow = Slow(bootstrap, topic, log, policy)
        slow.start()
        wait_for(lambda: reading(slow) == SLOTS and log.count, "the first member")
        comes = Member(bootstrap, f"g-{topic}", [topic], log, "comes")
        comes.start()
        wait_for(slow.hangs.is_set, "the callback")
        if times_waited is None:
            wait_for(lambda: waited() >= 3, "the member to wait on and on")
            assert reading(comes) == slow.left_group() == 0
        else:
            wait_for(lambda: reading(comes) == SLOTS, "the other one to have everything")
            assert (slow.left_group(), waited()) == (1, times_waited)
        slow.may_return.set()
        wait_for(lambda: reading(slow) == reading(comes) == SLOTS // 2, "the slots to be shared")
        writer.stop()
        producer.flush(30)
        wait_for(lambda: log.distinct() == len(journal.values), "every record")
        stayed = times_waited is None
        assert slow.errors == ([] if stayed else [KafkaError._MAX_POLL_EXCEEDED])
        assert len(slow.lost) == (0 if stayed else 1)
        wait_for(lambda: all_committed(slow), "its last commit")
        slow.stop()
        comes.stop()
    log.check_order({key: found for (_, key), found in journal.sent.items()})
    assert log.duplicates() == 0
