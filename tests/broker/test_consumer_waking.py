"""Members that are suspended with records in their buffers, and wake up: what they hand out then."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.broker.consuming import Log, Member, shared, wait_for
from tests.broker.group_config import set_group_config
from tests.broker.sleeping import COUNT, PATIENCE, REMOTE, SHORT_SESSION_MS, Sleeper, send
from tests.nights import protocols

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("how", "begin", "protocol"),
    [
        pytest.param("poll", 5, "consumer", marks=pytest.mark.nightly),
        ("run", 2, "classic"),
        pytest.param("poll", 5, "classic", marks=pytest.mark.nightly),
        pytest.param("run", 2, "consumer", marks=pytest.mark.nightly),
    ],
)
def test_a_member_suspended_until_another_has_its_slots_hands_out_nothing_of_them_when_it_wakes(
    bootstrap, operations, make_topic, how, begin, protocol
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    shared(operations, topic, slots=2)
    first = send(bootstrap, topic, "first")
    # Its session is short, because it is suspended for longer.
    settings: dict[str, Any] = {"session_timeout_ms": SHORT_SESSION_MS}
    if protocol == "consumer":
        settings = REMOTE
        set_group_config(bootstrap, group, consumer_session_timeout_ms=SHORT_SESSION_MS)
    with Sleeper(bootstrap, group, topic, how, **settings) as sleeper:
        sleeper.order(f"take {begin}") if how == "poll" else None
        wait_for(lambda: len(sleeper.values) == begin, "the first records", PATIENCE)
        before = sleeper.filled()
        sleeper.signal(signal.SIGSTOP)
        stays = Member(bootstrap, group, [topic], log, "stays", **(REMOTE if protocol == "consumer" else {}))
        stays.start()
        wait_for(lambda: log.distinct() == COUNT, "the other to have all slots", PATIENCE)
        sleeper.order("go")
        sleeper.signal(signal.SIGCONT)
        wait_for(lambda: sleeper.events, "the one that slept to hear of its loss", PATIENCE)
        later: set[str] = set()

        def works_again() -> bool:
            later.update(send(bootstrap, topic, f"later-{len(later)}"))
            return bool(later & set(sleeper.values))

        wait_for(works_again, "it to work again", PATIENCE)
        wait_for(lambda: later <= {*sleeper.values, *log.values()}, "all", PATIENCE)
        told = sleeper.end()
        stays.stop()
    assert before == begin
    assert not first & set(sleeper.values[before:])
    assert told["held_after_sleep"]
    assert sleeper.events == ["lost"]


@pytest.mark.parametrize("protocol", protocols("consumer"))
def test_a_member_suspended_for_less_than_its_session_goes_on_with_what_it_had(
    bootstrap, operations, make_topic, protocol
):
    topic = make_topic()
    shared(operations, topic, slots=2)
    values = send(bootstrap, topic, "first")
    settings = REMOTE if protocol == "consumer" else {}
    with Sleeper(bootstrap, f"g-{topic}", topic, "poll", **settings) as sleeper:
        sleeper.order("take 5")
        wait_for(lambda: len(sleeper.values) == 5, "the first records", PATIENCE)
        sleeper.filled()
        sleeper.signal(signal.SIGSTOP)
        time.sleep(3)  # so long it sleeps: more than what it may without asking, less than its session
        sleeper.order("go")
        sleeper.signal(signal.SIGCONT)
        wait_for(lambda: len(sleeper.values) == COUNT, "all records", PATIENCE)
        told = sleeper.end()
    assert set(sleeper.values) == values
    assert told["held_after_sleep"]
    assert not told["held"]
    assert sleeper.events == []
