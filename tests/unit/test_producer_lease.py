"""When a reading of the control topic renews the lease."""

from __future__ import annotations

import pytest

from kpsplit.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.producer.config import split_config
from kpsplit.producer.lease import ControlFeed, LeaseTask, owes
from kpsplit.producer.messages import PlainProducer
from kpsplit.producer.state import PASS_THROUGH, ProducerState
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Prepare
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.unit.samples import PARENT, UNSPLIT, committed, fenced, split_attempt
from tests.unit.test_producer_state import SPLIT as ORDERS_SPLIT
from tests.unit.test_producer_state import UNSPLIT as ORDERS
from tests.unit.test_producer_state import Ground

SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
PREPARING, FENCED = apply(UNSPLIT, Prepare(SPLIT)), fenced(UNSPLIT, SPLIT)
ME, MINE = str(PARENT), SPLIT.id


def own(
    ready: str | None = None, acknowledged: str | None = None, transactional: str | None = None
) -> ProducerRegistration:
    return ProducerRegistration(
        instance=1,
        generation=1,
        client_id="c",
        topics=("orders",),
        transactional_id=transactional,
        ready={} if ready is None else {ME: ready},
        acknowledged={} if acknowledged is None else {ME: acknowledged},
    )


@pytest.mark.parametrize(
    ("state", "record", "expected"),
    [
        (UNSPLIT, own(), False),
        (PREPARING, own(), True),
        (PREPARING, own("older"), True),
        (PREPARING, own(MINE), False),
        (FENCED, own(), False),  # not asked in time: nobody waits for us
        (FENCED, own(MINE), False),  # it holds in any case
        (FENCED, own(MINE, MINE), False),
        (PREPARING, own(transactional="t"), True),
        (FENCED, own(MINE, transactional="t"), False),  # waited for to the end, lease or not
        (committed(UNSPLIT, SPLIT, {0: 3}), own(MINE), False),
    ],
)
def test_an_answer_is_owed_while_an_operator_waits_for_it(state, record, expected) -> None:
    assert owes([state], record) is expected


class Following:
    """A control topic that is read to offset 7, and the answer to every question for its end."""

    def __init__(self) -> None:
        self.asked, self.questions = monotonic(), 0
        self.view = ControlView()

    def ask_end(self) -> Following:
        self.questions += 1
        return self

    def done(self) -> bool:
        return True

    def result(self) -> dict[int, int]:
        return {0: 7}

    def reached(self, ends: dict[int, int]) -> bool:
        return ends == {0: 7}

    def progress(self) -> int:
        return 7


def lease_task() -> tuple[LeaseTask, ProducerState, ControlFeed, Following]:
    _, settings = split_config({"bootstrap.servers": "127.0.0.1:1"})
    state = ProducerState(settings, 7, PlainProducer(lambda *_: None, lambda _: 0, lambda: 0, lambda _: 0))
    feed, following = ControlFeed(Connection({"bootstrap.servers": "127.0.0.1:1"}), state), Following()
    feed.tail = following  # type: ignore[assignment]
    return LeaseTask(feed), state, feed, following


def test_a_view_that_was_read_and_not_applied_renews_nothing() -> None:
    """An error while states were applied would otherwise leave a fence that does not know of its end."""
    task, state, _, _ = lease_task()
    task.renew()
    assert not state.lease_valid()
    task.adopted = 7
    task.renew()
    assert state.lease_valid()


def test_a_lease_that_is_over_lapses_before_it_is_renewed() -> None:
    """A write that took long may end it between two looks at the time."""
    ground = Ground()
    ground.state.routes["plain"] = PASS_THROUGH
    ground.state.transaction(True)
    ground.observe(fenced(ORDERS, ORDERS_SPLIT))
    ground.state.renew(monotonic() + 1000)
    assert ground.fence.transactions.deferred and "plain" in ground.state.routes
    ground.state.lease_until = monotonic()
    ground.state.renew(monotonic() + 1000)
    assert not ground.fence.transactions.deferred, "what rested on the last lease"
    assert "plain" not in ground.state.routes
    assert ground.fence.writers[0].lease.until == 0.0 and not ground.fence.suspended


def test_what_a_producer_writes_counts_only_for_ends_that_are_asked_for_after_it() -> None:
    """Otherwise a view that ends before the answer could renew the lease."""
    task, state, feed, following = lease_task()
    task.renew()
    assert (following.questions, state.lease_valid()) == (1, False)
    feed.registration.writes += 1
    task.adopted = 7
    task.renew()
    assert (following.questions, state.lease_valid()) == (2, True)
    task.renew()
    assert following.questions == 2, "it is not time yet"
    feed.registration.writes += 1
    task.renew()
    assert following.questions == 3
