"""A topic is left: its producers stop stamping, and no record passes another (protocol, section 6.10)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.producer.background import BackgroundThread
from kpsplit.producer.lease import Registration
from kpsplit.producer.state import PASS_THROUGH, certificates
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import PartitionState, Retire
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment, encode_state
from kpsplit.splitter.records.data import STAMP_HEADER
from kpsplit.splitter.records.keys import enrolment_key, partition_key
from kpsplit.splitter.records.producers import Certificate, PauseReport
from tests.unit.samples import fenced, merge_attempt, operated
from tests.unit.test_producer_state import SPLIT, UNSPLIT, Ground
from tests.unit.test_producer_topics import library

STATE_OF = ControlView.state
HALVES = operated(UNSPLIT, SPLIT, {0: 0})
MERGE = merge_attempt(HALVES, (2, 3), WHOLE)
MERGED = operated(HALVES, MERGE, {1: 1, 2: 1, 3: 1})
RETIRED = apply(MERGED, Retire(MERGED.to_retire()[0].name))
LEFT = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True, None, 2, returning=True)


class Leaving:
    """A producer whose topic is enrolled, and its thread; the topic can be left and enrolled again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ground = Ground()
        self.removed: list[str] = []
        self.reported = 0
        self.thread: BackgroundThread = library(self.ground, monkeypatch, {"orders": 1}, "orders")
        registration = self.thread._feed.registration
        monkeypatch.setattr(registration, "remove_topic", lambda topic, _: self._remove(topic))
        monkeypatch.setattr(registration, "report_pause", lambda *_: None)
        registration.record = _with_topics(registration.record, "orders")
        self.tail: Any = self.thread._feed.tail
        self.tail.progress = lambda: 0
        self.enrolment = self.tail.view.enrolments["orders"]
        self.produce = self.ground.producing(self.ground.held.produce, self.ground.callback)

    def _remove(self, topic: str) -> None:
        self.removed.append(topic)
        record = self.thread._feed.registration.record
        self.thread._feed.registration.record = _with_topics(record)

    def leave(self) -> None:
        self.tail.view.enrolments.pop("orders")
        self.tail.view.left["orders"] = LEFT
        self.thread._topics.adopt(self.tail.view)

    def enrol_again(self, **other: Any) -> None:
        self.tail.view.left.pop("orders", None)
        self.tail.view.enrolments["orders"] = replace(self.enrolment, **other)
        self.thread._topics.adopt(self.tail.view)

    def read(self, *records: PartitionState | Enrolment) -> None:
        """These are read from the control topic in one go."""
        view, changed = self.tail.view, []
        for record in records:
            if isinstance(record, PartitionState):
                changed.append(view.fold(partition_key(record.parent), encode_state(record)))
            else:
                changed.append(view.fold(enrolment_key(record.topic), encode_enrolment(record)))
        self.thread._fences.adopt(view, changed)
        self.thread._topics.adopt(view)

    def turn(self) -> None:
        self.ground.queued = len(self.ground.rdkafka.given) - self.reported
        self.thread._turn()

    def report(self) -> None:
        """The broker acknowledges the first record that it has not acknowledged yet."""
        self.ground.rdkafka.report(self.reported)
        self.reported += 1

    def stamped(self) -> list[tuple[bytes, bool]]:
        """What librdkafka was given, and whether it had a stamp."""
        return [(given[1], STAMP_HEADER in dict(given[7] or ())) for given in self.ground.rdkafka.given]


def _with_topics(record: Any, *topics: str) -> Any:
    return replace(record, topics=topics)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    return Leaving(monkeypatch)


def test_new_records_wait_until_the_stamped_ones_are_resolved(leaving: Leaving) -> None:
    leaving.produce("orders", b"a", b"k")
    leaving.leave()
    leaving.produce("orders", b"b", b"k")
    leaving.produce("orders", b"c", b"k", 0)
    leaving.turn()
    assert leaving.stamped() == [(b"a", True)] and not leaving.removed
    leaving.report()
    leaving.turn()
    assert leaving.stamped() == [(b"a", True), (b"b", False), (b"c", False)]
    assert leaving.removed == ["orders"]
    assert leaving.ground.state.route("orders") is PASS_THROUGH
    leaving.produce("orders", b"d", b"k")
    assert leaving.stamped()[-1] == (b"d", False)


def test_what_it_delivered_before_the_return_is_certified_at_its_end(leaving: Leaving) -> None:
    """Also if the topic is not enrolled again: else a loss of that time could not be proven."""
    leaving.produce("orders", b"a", b"k")
    leaving.report()
    leaving.leave()
    leaving.turn()
    leaving.produce("orders", b"b", b"k")
    assert not leaving.ground.state.send_states()
    assert certificates(leaving.ground.state) == {"orders/0": Certificate(1, {"0": 1}, (), "id")}


def test_what_was_held_before_goes_out_with_its_stamp_first(leaving: Leaving) -> None:
    leaving.ground.hold(b"held")
    leaving.leave()
    leaving.produce("orders", b"new", b"k")
    leaving.turn()
    assert leaving.stamped() == [(b"held", True)]
    leaving.report()
    leaving.turn()
    assert leaving.stamped() == [(b"held", True), (b"new", False)]


def test_a_topic_that_is_enrolled_again_in_time_keeps_its_route(leaving: Leaving) -> None:
    leaving.produce("orders", b"a", b"k")
    leaving.leave()
    leaving.produce("orders", b"b", b"k")
    leaving.turn()
    leaving.enrol_again()
    leaving.turn()
    leaving.turn()
    assert leaving.stamped() == [(b"a", True), (b"b", True)] and not leaving.removed
    leaving.produce("orders", b"c", b"k")
    assert leaving.stamped()[-1] == (b"c", True)
    assert leaving.ground.fence.next_sequence == 3


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize("task, moment", [("_lease", "renew"), ("_fences", "acknowledge")])
def test_nothing_passes_what_waited_where_a_topic_is_enrolled_again_in_time(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, task: str, moment: str
) -> None:
    """The application writes between two tasks of one turn: the first took the topic back, or routed it."""

    def write() -> None:
        leaving.produce("orders", b"c", b"k")

    leaving.produce("orders", b"a", b"k")
    leaving.leave()
    leaving.produce("orders", b"b", b"k")
    leaving.enrol_again()
    with monkeypatch.context() as patch:
        patch.setattr(getattr(leaving.thread, task), moment, write)
        leaving.turn()
    leaving.produce("orders", b"d", b"k")
    assert leaving.stamped() == [(b"a", True), (b"b", True), (b"c", True), (b"d", True)]


@pytest.fixture
def split(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> Leaving:
    """One whose partition is split: the merge and the return come while it is cut off."""
    monkeypatch.setattr(ControlView, "state", STATE_OF)
    leaving.read(HALVES)
    return leaving


@pytest.mark.parametrize("records", [(MERGED, RETIRED, LEFT), (LEFT, MERGED, RETIRED)])
def test_a_merge_that_is_seen_with_the_return_is_applied(split: Leaving, records: tuple[Any, ...]) -> None:
    """The partitions of the control topic come in any order. A stray was reported as delivered."""
    split.produce("orders", b"stray", b"k")
    split.ground.state.lapse()
    split.ground.rdkafka.report(0, offset=2)
    split.reported = 1
    split.produce("orders", b"held", b"k")
    split.read(*records)
    split.produce("orders", b"new", b"k")
    split.turn()
    split.ground.state.renew(monotonic() + 1000)
    split.turn()
    split.ground.state.callbacks.run()
    assert split.ground.told == [] and split.ground.fence.statistics.strays == 1
    assert [given[0] for given in split.ground.rdkafka.given] == ["orders.split-0-1", "orders", "orders"]
    split.report()
    split.report()
    split.turn()
    assert split.stamped()[1:] == [(b"stray", True), (b"held", True), (b"new", False)]
    assert split.removed == ["orders"]


def test_a_fence_ends_for_one_that_sees_its_merge_with_the_return(split: Leaving) -> None:
    split.read(fenced(HALVES, MERGE))
    split.produce("orders", b"held", b"k")
    split.read(RETIRED, LEFT)
    split.produce("orders", b"new", b"k")
    split.turn()
    assert split.stamped() == [(b"held", True)] and split.ground.rdkafka.given[0][0] == "orders"
    split.report()
    split.turn()
    assert split.stamped() == [(b"held", True), (b"new", False)]


def test_the_numbers_go_on_where_the_topic_is_enrolled_again(leaving: Leaving) -> None:
    """A number names one record of a producer for good."""
    leaving.produce("orders", b"a", b"k")
    leaving.report()
    leaving.leave()
    leaving.turn()
    leaving.produce("orders", b"b", b"k")
    leaving.turn()
    leaving.report()
    leaving.enrol_again()
    leaving.produce("orders", b"c", b"k")
    leaving.turn()
    leaving.ground.state.renew(monotonic() + 1000)
    leaving.turn()
    assert leaving.stamped() == [(b"a", True), (b"b", False), (b"c", True)]
    send_state = leaving.ground.state.send_states()[0]
    assert send_state.next_sequence == 2 and send_state.delivered() == {0: 1}
    assert leaving.ground.state.tally.count == 0


def test_an_acknowledgement_of_before_the_return_shows_nothing_of_what_was_sent_plainly_since(
    leaving: Leaving,
) -> None:
    """A PREPARE was answered by it, with unstamped records in flight: they could land after the seal."""
    leaving.produce("orders", b"stamped", b"k")
    leaving.report()
    leaving.leave()
    leaving.turn()
    leaving.produce("orders", b"plain", b"k")
    leaving.turn()
    leaving.enrol_again()
    leaving.produce("orders", b"next", b"k")
    leaving.turn()
    leaving.ground.state.renew(monotonic() + 1000)
    leaving.turn()
    assert leaving.stamped() == [(b"stamped", True), (b"plain", False), (b"next", True)]
    topics, leaving.ground.queued = leaving.thread._topics, 2
    assert not topics._settled("orders", 0)
    leaving.ground.rdkafka.report(2, offset=5)
    leaving.ground.queued = 1
    assert topics._settled("orders", 0) and "orders" in topics.transitions


@pytest.mark.parametrize("seen", [False, True])
def test_a_topic_that_is_enrolled_again_by_another_partitioner_gets_another_route(
    leaving: Leaving, seen: bool
) -> None:
    """Also where the producer has not run meanwhile, and finds the topic enrolled as before it."""
    leaving.produce("orders", b"a", b"k")
    if seen:
        leaving.leave()
    leaving.enrol_again(partitioner=Partitioner.MURMUR2_RANDOM)
    failed: list[Any] = []
    leaving.ground.producing(leaving.ground.held.produce, lambda error, _: failed.append(error))(
        "orders", b"b", b"k"
    )
    leaving.turn()
    assert leaving.stamped() == [(b"a", True)]
    leaving.report()
    leaving.turn()
    leaving.ground.state.callbacks.run()
    assert leaving.stamped() == [(b"a", True)], "nothing goes where its key does not belong"
    assert len(failed) == 1 and "this producer has partitioner" in failed[0].str() and not leaving.removed


@pytest.mark.parametrize(
    ("then", "stamped"), [("left", False), ("gone", False), ("consistent_random", True), ("explicit", True)]
)
def test_a_topic_that_was_refused_for_its_partitioner_is_taken_once_it_is_another_or_none(
    leaving: Leaving, then: str, stamped: bool
) -> None:
    leaving.leave()
    leaving.turn()
    leaving.enrol_again(partitioner=Partitioner.MURMUR2_RANDOM)
    leaving.produce("orders", b"a", b"k", 0)
    leaving.turn()
    for _ in range(2):  # whatever else changes in the view
        with pytest.raises(KpsplitError, match="is enrolled with partitioner=murmur2_random"):
            leaving.produce("orders", b"b", b"k", 0)
        leaving.thread._topics.adopt(leaving.tail.view)
    if then == "left":
        leaving.leave()
    elif then == "gone":
        del leaving.tail.view.enrolments["orders"]
        leaving.thread._topics.adopt(leaving.tail.view)
    else:
        leaving.enrol_again(partitioner=Partitioner(then))
    leaving.produce("orders", b"c", b"k", 0)
    leaving.turn()
    leaving.ground.state.renew(monotonic() + 1000)
    leaving.turn()
    assert leaving.stamped() == [(b"c", stamped)]


def test_a_refusal_names_the_partitioner_by_which_the_topic_is_enrolled_now(leaving: Leaving) -> None:
    state = leaving.ground.state
    state.settings = replace(state.settings, partitioner="random")
    leaving.leave()
    leaving.turn()
    for partitioner in (Partitioner.MURMUR2_RANDOM, Partitioner.CONSISTENT_RANDOM):
        leaving.enrol_again(partitioner=partitioner)
        leaving.produce("orders", b"a", b"k", 0)
        leaving.turn()
        with pytest.raises(KpsplitError, match=f"is enrolled with partitioner={partitioner}"):
            leaving.produce("orders", b"b", b"k", 0)


class Writer:
    def __init__(self) -> None:
        self.written: list[list[tuple[bytes, bytes | None]]] = []
        self.fails = False

    def write_all(self, _topic: str, records: list[Any], _deadline: Deadline) -> None:
        if self.fails:
            raise KpsplitError("no answer")
        self.written.append(list(records))


def registered(*topics: str) -> tuple[Registration, Writer]:
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    registration, writer = Registration(connection, 5, "c", None, lambda: 60.0), Writer()
    registration._writer = writer  # type: ignore[assignment]
    for topic in topics:
        registration.add_topic(topic, {f"{topic}/0": "a"}, Deadline(5))
    return registration, writer


def test_a_topic_leaves_the_registration_with_all_that_was_said_of_it() -> None:
    registration, writer = registered("orders", "orders-2")
    registration.acknowledge("orders/0", "a", Deadline(5))
    registration.remove_topic("orders", Deadline(5))
    assert registration.record.topics == ("orders-2",)
    assert (registration.record.ready, registration.record.acknowledged) == ({"orders-2/0": "a"}, {})
    assert writer.written[-1] == [(registration.record.key, registration.record.encode())]


def test_only_what_a_lease_rests_on_asks_for_a_new_reading() -> None:
    registration, _ = registered("orders")
    writes = [registration.writes]
    for write in (
        lambda: registration.add_topic("orders-2", {}, Deadline(5)),
        lambda: registration.answer_ready("orders-2/0", "b", ("orders/0", "orders-2/0"), Deadline(5)),
        lambda: registration.acknowledge("orders-2/0", "b", Deadline(5)),
        lambda: registration.report_pause("orders-2/0", PauseReport("b", 7, 1, 0), Deadline(5)),
        lambda: registration.remove_topic("orders-2", Deadline(5)),
    ):
        write()
        writes.append(registration.writes)
    assert [b - a for a, b in pairwise(writes)] == [1, 1, 0, 0, 1]


def test_the_registration_goes_with_its_last_topic_and_its_key_is_not_used_again() -> None:
    registration, writer = registered("orders")
    key, writes = registration.record.key, registration.writes
    registration.remove_topic("orders", Deadline(5))
    assert writer.written[-1] == [(key, None)]
    assert registration.writes == writes + 1 and not registration.is_over()
    assert registration.renews(monotonic()), "nobody waits for it: the lease needs no registration"
    registration.add_topic("orders", {}, Deadline(5))
    assert registration.record.key != key and registration.record.topics == ("orders",)


def test_a_removal_that_may_come_late_never_reaches_the_next_registration() -> None:
    registration, writer = registered("orders")
    key, writer.fails = registration.record.key, True
    with pytest.raises(KpsplitError):
        registration.remove_topic("orders", Deadline(5))
    writer.fails = False
    registration.add_topic("bills", {}, Deadline(5))
    assert registration.record.key != key and (key, None) in writer.written[-1]


def test_the_end_of_a_producer_whose_registration_is_gone_is_said_under_its_next_key() -> None:
    """Closed: no operator waits for it. A producer that has nothing to say writes nothing."""
    registration, writer = registered("orders")
    registration.remove_topic("orders", Deadline(5))
    key, certificate = writer.written[0][0][0], Certificate(1, {"0": 1}, (), "id")
    registration.certify({"orders/0": certificate}, Deadline(5))
    said = registration.record
    assert writer.written[-1] == [(said.key, said.encode())] and said.key != key
    assert (said.closed, said.topics, said.certificates) == (True, (), {"orders/0": certificate})
    silent, nothing = registered()
    silent.certify({}, Deadline(5))
    assert not nothing.written


def test_a_producer_that_is_closed_says_nothing_more() -> None:
    registration, writer = registered("orders")
    registration.certify({}, Deadline(5))
    written = len(writer.written)
    registration.remove_topic("orders", Deadline(5))
    assert len(writer.written) == written
