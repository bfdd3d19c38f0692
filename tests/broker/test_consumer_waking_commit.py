"""A member that was suspended until others had its slots commits when it wakes up."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from kpsplit.clock import Deadline
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.committing import tailing
from tests.broker.consuming import Log, Member, shared, wait_for
from tests.broker.group_config import set_group_config
from tests.broker.sleeping import COUNT, PATIENCE, REMOTE, SHORT_SESSION_MS, Sleeper, send
from tests.nights import protocols

pytestmark = pytest.mark.broker

FENCED = {"ILLEGAL_GENERATION", "_NO_OFFSET"}
"""Refused by the coordinator; or the member has heard of its loss before, and has nothing to commit."""


Committed = list[tuple[int, str, list[int]]]
"""Of each range its lower end, who committed it, and its positions."""


def committed(tail: OffsetTail, group: str, parent: PhysicalPartition) -> Committed:
    found = tail.read_all(Deadline(PATIENCE)).commits(group, parent)
    return [(r.lo, c.member, [at.next for at in c.positions.values()]) for r, c in found]


@pytest.mark.parametrize("protocol", protocols("classic"))
def test_a_commit_of_a_member_that_lost_its_slots_in_its_sleep_is_refused_and_overwrites_nothing(
    bootstrap, operations, make_topic, protocol
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    settings: dict[str, Any] = {"session_timeout_ms": SHORT_SESSION_MS}
    if protocol == "consumer":
        settings = REMOTE
        set_group_config(bootstrap, group, consumer_session_timeout_ms=SHORT_SESSION_MS)
    parent = shared(operations, topic, slots=2)
    send(bootstrap, topic, "first")
    with (
        Sleeper(bootstrap, group, topic, "poll", **settings) as sleeper,
        tailing(bootstrap, parent) as tail,
    ):
        sleeper.order("take 5")
        sleeper.order("commit")
        wait_for(lambda: sleeper.commits == ["done"], "its first commit", PATIENCE)
        sleeper.order("take 5")
        wait_for(lambda: len(sleeper.values) == 10, "records that are not committed", PATIENCE)
        sleeper.signal(signal.SIGSTOP)
        remote = REMOTE if protocol == "consumer" else {}
        stays = Member(bootstrap, group, [topic], log, "stays", **remote)
        stays.start()
        wait_for(lambda: log.distinct() == COUNT - 5, "the other to have all slots", PATIENCE)

        def all_of_it() -> bool:
            found = committed(tail, group, parent)
            return len(found) == 2 and all(positions == [COUNT] for _, _, positions in found)

        wait_for(all_of_it, "the new owner's commits", PATIENCE)
        before = committed(tail, group, parent)
        assert {who for _, who, _ in before} == {stays.consumer.memberid()}
        sleeper.order("commit")
        sleeper.signal(signal.SIGCONT)
        wait_for(lambda: len(sleeper.commits) == 2, "the answer", PATIENCE)
        assert sleeper.commits[1] in FENCED
        assert committed(tail, group, parent) == before
        sleeper.order("go")
        wait_for(lambda: sleeper.events == ["lost"], "it to hear of its loss", PATIENCE)
        later: set[str] = set()

        def works_again() -> bool:
            later.update(send(bootstrap, topic, f"later-{len(later)}"))
            return bool(later & set(sleeper.values))

        wait_for(works_again, "it to work again", PATIENCE)
        sleeper.end()
        stays.stop()
