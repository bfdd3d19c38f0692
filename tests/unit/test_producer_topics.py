"""How the library's thread looks at topics: what is wrong with one is no other one's affair."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit.clock import monotonic
from kpsplit.errors import AuthorizationError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.producer import background as module
from kpsplit.producer.background import BackgroundThread
from kpsplit.producer.lookup import PartitionCounts
from kpsplit.producer.state import PASS_THROUGH, TopicRoute
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Attempt, OperationKind, PartitionState, Prepare, Target
from kpsplit.splitter.records.control import Enrolment, Partitioner
from tests.unit.test_producer_state import Ground

pytestmark = pytest.mark.usefixtures("both_paths")


class Tail:
    """A control topic that enrols some topics, read to its end."""

    def __init__(self, *topics: str) -> None:
        self.view = ControlView()
        self.changed: set[Any] = set()
        for topic in topics:
            self.view.enrolments[topic] = Enrolment(topic, "id", Partitioner.CONSISTENT_RANDOM, True)

    def poll(self, seconds: float) -> None: ...

    def position(self) -> int:
        return -1


def library(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, counts: dict[str, Any], *topics: str
) -> BackgroundThread:
    """Return the library's thread, not started; ``counts``: of each topic's partitions, or the error."""

    def take(self: PartitionCounts, topic: str) -> int | None:
        del self._asked[topic]
        if isinstance(counts[topic], Exception):
            raise counts[topic]
        return int(counts[topic])

    def ask(self: PartitionCounts, _: object, topics: Iterable[str]) -> None:
        self._asked.update(dict.fromkeys(topics))

    monkeypatch.setattr(PartitionCounts, "take", take)
    monkeypatch.setattr(PartitionCounts, "ask", ask)
    monkeypatch.setattr(ControlView, "state", lambda _, parent: PartitionState.unsplit(parent, "id"))
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    ground.counts = counts
    background = BackgroundThread(connection, ground.state, ground.held, ground.plain)
    background._feed.tail = Tail(*topics)  # type: ignore[assignment]
    monkeypatch.setattr(background._feed.registration, "add_topic", lambda *_: None)
    monkeypatch.setattr(background._lease, "renew", lambda: None)
    return background


def test_a_right_that_is_missing_for_one_topic_fails_no_record_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    counts = {"secret": AuthorizationError("missing Describe on secret"), "slow": KpsplitError("no answer")}
    background = library(ground, monkeypatch, counts, "secret", "slow")
    ground.held.hold_unrouted("slow", ground.content(b"waits"), -1)
    ground.held.hold_unrouted("secret", ground.content(b"fails"), -1)
    background._turn()
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError.TOPIC_AUTHORIZATION_FAILED, b"fails")]
    assert list(ground.state.unrouted) == ["slow"]
    assert background.last_error is not None


def test_a_topic_that_is_gone_keeps_no_other_from_having_its_new_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    counts = {"orders": KpsplitError("there is no topic orders"), "grown": 2}
    background = library(ground, monkeypatch, counts, "orders", "grown")
    enrolment = Enrolment("grown", "id", Partitioner.CONSISTENT_RANDOM, True)
    grown = TopicRoute(enrolment, [background._topics._new_send_state(enrolment, 0, ControlView())])
    ground.state.add_route("grown", grown)
    ground.state.renew(monotonic() + 1000)
    background._turn()
    assert grown.count == 2


def test_a_partition_is_used_once_the_producer_itself_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka refuses every record of a partition beyond the count that it saw last."""
    ground = Ground()
    known = {"grown": 1}
    background = library(ground, monkeypatch, {"orders": 1, "grown": 3}, "orders", "grown")
    ground.counts = known
    enrolment = Enrolment("grown", "id", Partitioner.CONSISTENT_RANDOM, True)
    grown = TopicRoute(enrolment, [background._topics._new_send_state(enrolment, 0, ControlView())])
    ground.state.add_route("grown", grown)
    ground.state.renew(monotonic() + 1000)
    for number, count in ((1, 1), (0, 1), (2, 2), (3, 3)):
        known["grown"] = number
        background._topics._metadata_at = 0.0
        background._turn()
        assert grown.count == count
    assert background._topics._metadata_at > 0.0


def test_a_topic_is_created_at_the_first_look_and_not_again_after_a_lapse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the lapse of a lease would undo its deletion."""
    created: list[str] = []
    monkeypatch.setattr(module, "create_unless_there", lambda _, topic: created.append(topic))
    ground = Ground()
    background = library(ground, monkeypatch, {"orders": 1})
    for _ in range(2):
        ground.held.hold_unrouted("plain", ground.content(), -1)
        background._turn()
        assert ground.state.routes["plain"] is PASS_THROUGH and not ground.state.unrouted
        ground.state.lapse()
        assert "plain" not in ground.state.routes
        ground.state.renew(monotonic() + 1000)
    assert created == ["plain"]


class SearchedLog:
    """A log in which a producer's own records are looked for: found at once, or it may not be read."""

    def __init__(self, error: KpsplitError | None = None) -> None:
        self._error = error
        self.search = SimpleNamespace(found={7: 3}, complete=True)

    def done(self) -> bool:
        return True

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class UnclearPartition:
    """A partition with a closed segment in which one record is looked for."""

    def __init__(self, topic: str) -> None:
        self.state = PartitionState.unsplit(PhysicalPartition(topic, 0), "id")
        self.found: dict[int, int] = {}

    def busy(self) -> bool:
        return False

    def waiting(self) -> int:
        return 0

    def at_rest(self) -> bool:
        return False

    def quiescent(self) -> bool:
        return False

    def pending(self) -> int:
        return 0

    def unclear(self) -> list[Any]:
        return [] if self.found else [SimpleNamespace(segment=SimpleNamespace(id=0))]

    def looked_up(self, _: object, found: dict[int, int], *, complete: bool) -> list[Any]:
        self.found = found
        return []


def test_a_log_that_may_not_be_read_keeps_no_other_from_being_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    background = library(ground, monkeypatch, {"slow": KpsplitError("no answer"), "orders": 1}, "slow")
    secret, orders = UnclearPartition("secret"), UnclearPartition("orders")
    denied = AuthorizationError("could not read secret/0")
    searches: Any = {(secret.state.parent, 0): SearchedLog(denied), (orders.state.parent, 0): SearchedLog()}
    background._fences._lookups = searches
    monkeypatch.setattr(ground.state, "active", lambda: [secret, orders])
    ground.held.hold_unrouted("slow", ground.content(b"waits"), -1)
    background._turn()
    ground.state.callbacks.run()
    assert orders.found == {7: 3} and not secret.found
    assert ground.told == [] and list(ground.state.unrouted) == ["slow"]
    assert "could not read secret/0" in str(background.last_error)


class Unanswered(Future[Any]):
    """An answer that does not come: nobody may wait for it."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "the library's thread waits for a broker"
        return super().result(timeout)


class Brokers:
    """An admin client; it keeps what it was asked for, request by request."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Unanswered]] = []

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Unanswered]:
        self.asked.append({topic: Unanswered() for topic in topics.topic_names})
        return self.asked[-1]


def test_the_librarys_thread_waits_for_no_answer_about_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stands still would cost the producer the lease of all its topics."""
    ground, brokers = Ground(), Brokers()
    with monkeypatch.context() as patch:
        background = library(ground, patch, {}, "orders", "bills", "new")
    monkeypatch.setattr(ControlView, "state", lambda _, parent: PartitionState.unsplit(parent, "id"))
    renewed: list[None] = []
    monkeypatch.setattr(background._lease, "renew", lambda: renewed.append(None))
    monkeypatch.setattr(background._feed.registration, "add_topic", lambda *_: None)
    ground.counts = {"orders": 3, "bills": 3}
    background._feed.admin._client = brokers  # type: ignore[assignment]
    for topic in ("orders", "bills"):
        enrolment = Enrolment(topic, "id", Partitioner.CONSISTENT_RANDOM, True)
        fence = background._topics._new_send_state(enrolment, 0, ControlView())
        ground.state.add_route(topic, TopicRoute(enrolment, [fence]))
    ground.state.renew(monotonic() + 1000)
    ground.held.hold_unrouted("new", ground.content(b"waits"), -1)
    for _ in range(3):
        background._turn()
    assert len(renewed) == 3
    assert [set(request) for request in brokers.asked] == [{"new"}, {"orders", "bills"}]
    for request in brokers.asked:
        for answer in request.values():
            answer.set_result(SimpleNamespace(partitions=[0, 1, 2]))
    background._turn()
    routes = ground.state.routes
    assert [routes[t].count for t in ("new", "orders", "bills")] == [3, 3, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize("enrolled", [True, False])
def test_the_client_that_registers_connects_before_the_control_topic_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, enrolled: bool
) -> None:
    """It takes half a second until it may write. A producer whose topics are not enrolled makes none."""
    ground = Ground()
    background = library(ground, monkeypatch, {"new": 1}, "new" if enrolled else "bills")
    made: list[None] = []
    monkeypatch.setattr(background._feed.registration, "writer", lambda: made.append(None))
    ground.state.lapse()
    ground.held.hold_unrouted("new", ground.content(b"waits"), -1)
    background._turn()
    assert list(ground.state.unrouted) == ["new"], "without a lease it may be enrolled by now"
    assert len(made) == enrolled


def preparing(background: BackgroundThread, monkeypatch: pytest.MonkeyPatch, topic: str) -> list[str]:
    """Have an operator prepare a split of a topic's first partition; return what is answered to it."""
    state = PartitionState.unsplit(PhysicalPartition(topic, 0), "id")
    prepared = apply(state, Prepare(split_attempt_of(state)))
    background._feed.following().view.take_state(prepared)
    for send_state in background._producer.send_states():
        if send_state.state.parent == state.parent:
            send_state.observe(prepared, lease_valid=True)
    own = background._feed.registration
    own.record = replace(own.record, topics=(topic,))
    answered: list[str] = []
    monkeypatch.setattr(own, "answer_ready", lambda partition, *_: answered.append(partition))
    return answered


def split_attempt_of(state: PartitionState) -> Attempt:
    name = f"{state.parent.topic}.split-0-1"
    halves = WHOLE.split_evenly(2)
    return Attempt("a", OperationKind.SPLIT, "op", 1, (0,), halves, Target.PHANTOMS, name, 1000)


def test_unstamped_records_from_before_a_lapse_hold_up_the_answer_to_prepare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is enrolled while the producer has no lease; what it sent before is in librdkafka still."""
    ground = Ground()
    background = library(ground, monkeypatch, {"orders": 1})
    view = background._feed.following().view
    ground.held.hold_unrouted("bills", ground.content(b"unstamped"), -1)
    background._turn()
    assert ground.rdkafka.values == [b"unstamped"]
    ground.queued = 1
    ground.state.lapse()
    view.enrolments["bills"] = Enrolment("bills", "id", Partitioner.CONSISTENT_RANDOM, True)
    background._topics.adopt(view)
    ground.state.renew(monotonic() + 1000)
    answered = preparing(background, monkeypatch, "bills")
    background._topics.answer()
    assert not answered
    ground.queued = 0
    background._topics.answer()
    assert answered == ["bills/0"]


BILLS = Enrolment("bills", "id", Partitioner.CONSISTENT_RANDOM, True)


def with_one_on_its_way(monkeypatch: pytest.MonkeyPatch) -> tuple[Ground, BackgroundThread, Any]:
    """Return a producer that has sent one record to a topic that is not enrolled, its thread and its tail."""
    ground = Ground()
    background = library(ground, monkeypatch, {"bills": 1})
    tail: Any = background._feed.following()
    tail.progress = lambda: 0
    ground.held.hold_unrouted("bills", ground.content(b"unstamped"), -1)
    background._turn()
    ground.queued = 1
    return ground, background, tail


def test_prepare_is_answered_for_an_application_that_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers have what it wrote before the enrolment; librdkafka keeps the reports until somebody polls."""
    ground, background, tail = with_one_on_its_way(monkeypatch)

    def poll(_: float) -> int:
        ground.rdkafka.report(0, offset=0)
        ground.queued = 0
        return 1

    ground.poll = poll
    tail.view.enrolments["bills"] = BILLS
    background._topics.adopt(tail.view)
    answered = preparing(background, monkeypatch, "bills")
    background._turn()
    assert answered == ["bills/0"] and not ground.told, "its callbacks wait for its own poll"
    ground.state.callbacks.run()
    assert ground.told == [(None, b"unstamped")]


def test_a_topic_is_registered_for_what_is_on_its_way_since_before_its_last_enrolment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enrolled, left and enrolled again meanwhile: an operator that is not kept waiting would pass it."""
    ground, background, tail = with_one_on_its_way(monkeypatch)
    tail.view.enrolments["bills"] = BILLS
    background._topics.adopt(tail.view)
    background._turn()
    tail.view.left["bills"] = tail.view.enrolments.pop("bills")
    background._topics.adopt(tail.view)
    background._turn()
    assert "bills" not in ground.state.routes
    tail.view.enrolments["bills"] = tail.view.left.pop("bills")
    background._topics.adopt(tail.view)
    background._turn()
    assert isinstance(ground.state.routes["bills"], TopicRoute)
    answered = preparing(background, monkeypatch, "bills")
    background._turn()
    assert not answered
    ground.queued = 0
    background._turn()
    assert answered == ["bills/0"]


def test_a_route_that_parts_is_kept_by_the_next_enrolment_whatever_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it holds would never be sent, and its numbers would begin anew."""
    ground, background, tail = with_one_on_its_way(monkeypatch)
    produce = ground.producing(ground.held.produce, ground.callback)
    tail.view.enrolments["bills"] = BILLS
    background._topics.adopt(tail.view)
    background._turn()
    ground.state.renew(monotonic() + 1000)
    produce("bills", b"stamped", b"k")
    ground.queued = 2
    route = ground.state.routes["bills"]
    tail.view.left["bills"] = tail.view.enrolments.pop("bills")
    background._topics.adopt(tail.view)
    tail.view.enrolments["bills"] = tail.view.left.pop("bills")
    background._topics.adopt(tail.view)
    background._turn()
    assert ground.state.routes["bills"] is route
    answered = preparing(background, monkeypatch, "bills")
    background._turn()
    assert not answered, "the unstamped record is on its way"
    ground.queued = 1
    background._turn()
    assert answered == ["bills/0"]


def test_only_a_record_that_was_written_shows_that_unstamped_ones_before_it_are_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the application purged, or a broker refused, may have been sent after one that is in flight."""
    ground = Ground()
    background = library(ground, monkeypatch, {}, "orders")
    background._topics.transitions["orders"] = monotonic()
    ground.queued = 5
    answered = preparing(background, monkeypatch, "orders")
    ground.send(b"purged")
    ground.rdkafka.report(0, error=KafkaError(KafkaError._PURGE_QUEUE))
    background._topics.answer()
    assert not answered
    ground.send(b"written")
    ground.rdkafka.report(1, offset=9)
    background._topics.answer()
    assert answered == ["orders/0"]
