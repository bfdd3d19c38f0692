"""What a Producer of many partitions does for each turn and each record of an operation: what there is to do.

Each test counts work. None of it may grow with the number of partitions where nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.producer import lease
from kpsplit.producer.background import BackgroundThread
from kpsplit.producer.lease import ANSWERS_KEPT, Registration
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import NEVER, ProducerState, TopicRoute
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    EndedBy,
    Fence,
    OperationKind,
    PartitionState,
    Prepare,
    Target,
)
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    Settings,
    encode_enrolment,
    encode_settings,
    encode_state,
)
from kpsplit.splitter.records.keys import SETTINGS_KEY, enrolment_key, partition_key
from kpsplit.splitter.records.producers import Certificate, PauseReport, ProducerRegistration, decode_record
from tests.unit.test_producer_state import Ground

MANY = 400
TOPIC = "many"
ENROLMENT = Enrolment(TOPIC, "id", Partitioner.CONSISTENT_RANDOM, True)


class Tail:
    """A control topic that is read up to what was put there."""

    def __init__(self) -> None:
        self.view, self.changed, self.length = ControlView(), set[Any](), 0
        self.put(SETTINGS_KEY, encode_settings(Settings(600_000)))
        self.put(enrolment_key(TOPIC), encode_enrolment(ENROLMENT))

    def put(self, key: bytes, value: bytes) -> None:
        subject = self.view.fold(key, value)
        self.length += 1
        if subject is not None:
            self.changed.add(subject)

    def put_state(self, state: PartitionState) -> None:
        self.put(partition_key(state.parent), encode_state(state))

    def poll(self, seconds: float) -> None: ...

    def progress(self) -> int:
        return self.length


class Passes(list[Any]):
    """The send states of a topic; counts how often somebody goes through all of them."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        self.count += 1
        return super().__iter__()


class Producing:
    """The library's thread of a producer with one topic of many partitions, and a lease; not started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ground = Ground()
        self.state: ProducerState = self.ground.state
        connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        self.thread = BackgroundThread(connection, self.state, self.ground.held, self.ground.plain)
        self.tail = Tail()
        self.thread._feed.tail = self.tail  # type: ignore[assignment]
        monkeypatch.setattr(self.thread._lease, "renew", lambda: None)
        self.thread._topics._metadata_at = float("inf")
        registration = self.thread._feed.registration
        registration.record = replace(registration.record, topics=(TOPIC,))
        self.written: list[ProducerRegistration] = []
        monkeypatch.setattr(registration, "_write", self._write)
        task, view = self.thread._topics, self.tail.view
        send_states = [task._new_send_state(ENROLMENT, number, view) for number in range(MANY)]
        self.state.add_route(TOPIC, TopicRoute(ENROLMENT, send_states))
        self.state.renew(monotonic() + 1000)
        self.thread._turn()
        self.passes = Passes(send_states)
        self.route.send_states = self.passes
        self.observed: list[PhysicalPartition] = []
        real = PartitionSendState.observe

        def observe(of: Any, state: PartitionState, **more: Any) -> Any:
            self.observed.append(state.parent)
            return real(of, state, **more)

        monkeypatch.setattr(PartitionSendState, "observe", observe)

    def _write(self, record: ProducerRegistration, _: Deadline) -> None:
        self.written.append(record)
        self.thread._feed.registration.record = record

    @property
    def route(self) -> TopicRoute:
        route = self.state.routes[TOPIC]
        assert isinstance(route, TopicRoute)
        return route

    def turn(self) -> None:
        self.thread._turn()
        assert self.thread.last_error is None


@pytest.fixture
def producing(monkeypatch: pytest.MonkeyPatch) -> Producing:
    return Producing(monkeypatch)


def attempt_of(state: PartitionState, name: str = "a") -> Attempt:
    topic = f"{state.parent.topic}.split-{state.parent.partition}-{state.next_split}"
    ranges = WHOLE.split_evenly(2)
    return Attempt(name, OperationKind.SPLIT, "op", 1, (0,), ranges, Target.PHANTOMS, topic, 60_000)


def prepared(number: int, name: str = "a") -> PartitionState:
    state = PartitionState.unsplit(PhysicalPartition(TOPIC, number), "id")
    return apply(state, Prepare(attempt_of(state, name)))


def test_an_idle_turn_goes_through_no_partition(producing: Producing) -> None:
    for _ in range(5):
        producing.turn()
    assert producing.passes.count == 0 and not producing.state.active()


def test_a_record_of_the_control_topic_is_applied_to_its_own_partition_only(producing: Producing) -> None:
    """Also to a partition without a record of its own nothing is applied: its state is made at each look."""
    state = prepared(7)
    producing.tail.put_state(state)
    producing.turn()
    assert producing.observed == [state.parent] and producing.passes.count == 0
    assert producing.written[-1].ready == {str(state.parent): "a"}


def test_an_enrolment_is_applied_to_all_partitions_of_its_topic(producing: Producing) -> None:
    producing.tail.put(enrolment_key(TOPIC), encode_enrolment(replace(ENROLMENT, topic_id="made again")))
    producing.turn()
    assert len(producing.observed) == MANY
    assert {f.state.topic_id for f in producing.passes} == {"made again"}


def test_a_fence_goes_on_in_its_own_partition_until_what_it_held_is_sent(producing: Producing) -> None:
    state = prepared(7)
    producing.tail.put_state(state)
    producing.turn()
    fenced = apply(state, Fence("a", "sub-topic's id"))
    producing.tail.put_state(fenced)
    producing.turn()
    held = producing.passes[7]
    producing.ground.held.hold(held, producing.ground.content(b"held"))
    producing.turn()
    assert producing.state.active() == [held] and held.waiting() == 1
    assert producing.written[-1].acknowledged == {str(state.parent): "a"}
    producing.tail.put_state(apply(fenced, Abort("a", EndedBy.OPERATOR, "enough")))
    producing.turn()
    producing.turn()
    assert producing.ground.rdkafka.values == [b"held"] and not producing.state.active()
    assert producing.written[-1].pauses[str(state.parent)].held == 1


def test_a_renewed_lease_is_good_for_each_partition_and_looks_into_active_ones_only(
    producing: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    producing.tail.put_state(prepared(7))
    producing.turn()
    resolved: list[Any] = []
    real = PartitionSendState.resolve

    def resolve(of: Any, **more: Any) -> Any:
        resolved.append(of)
        return real(of, **more)

    monkeypatch.setattr(PartitionSendState, "resolve", resolve)
    until = monotonic() + 2000
    producing.state.renew(until)
    assert resolved == [producing.passes[7]]
    assert {w.lease.until for f in producing.passes for w in f.writers} == {until}


def test_what_was_suspended_opens_with_the_next_lease_and_reports_look_at_it_after_that(
    producing: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    producing.state.lapse()
    assert not any(w.open for f in producing.passes for w in f.writers)
    meanwhile: list[float] = []
    real = PartitionSendState.resolve

    def resolve(of: Any, **more: Any) -> Any:
        meanwhile.extend(w.lease.until for f in producing.passes for w in f.writers)
        return real(of, **more)

    monkeypatch.setattr(PartitionSendState, "resolve", resolve)
    producing.state.renew(monotonic() + 1000)
    assert all(w.open for f in producing.passes for w in f.writers)
    assert set(meanwhile) == {0.0}


def test_a_partition_without_a_route_is_answered_for_while_an_operation_is_under_way(
    producing: Producing,
) -> None:
    """It was added a moment ago: the operator counts on an answer of everybody who registered its topic."""
    added = prepared(MANY)
    producing.tail.put_state(added)
    producing.turn()
    producing.tail.put_state(apply(added, Fence("a", "sub-topic's id")))
    producing.turn()
    assert producing.written[-1].acknowledged == {str(added.parent): "a"}
    assert producing.tail.view.under_way()
    producing.tail.put_state(apply(added, Abort("a", EndedBy.OPERATOR, "enough")))
    assert not producing.tail.view.under_way()


def test_what_is_pending_is_counted_without_a_pass(producing: Producing) -> None:
    for number in (3, 5):
        one = producing.passes[number]
        writer = one.writers[0]
        producing.ground.stamped.send(one, writer, one.next_sequence, producing.ground.content())
        one.next_sequence += 1
        writer.lease = NEVER  # the report takes the slow way
    producing.passes.count = 0
    producing.state.lease_until = 0.0
    for number in range(2):
        producing.ground.rdkafka.report(number)
    assert producing.state.pending() == 2 and producing.passes.count == 0


def registration(written: list[tuple[bytes, bytes | None]]) -> Registration:
    class Writer:
        def write_all(self, _: str, records: Any, __: Deadline) -> None:
            written.extend(records)

    made = Registration(Connection({"bootstrap.servers": "127.0.0.1:1"}), 7, "c", None, lambda: 1000.0)
    made._writer = Writer()  # type: ignore[assignment]
    made.add_topic(TOPIC, {}, Deadline(1))
    return made


def test_a_registration_does_not_grow_with_the_operations_that_a_producer_has_seen() -> None:
    """It is written whole for each answer, by each producer, and has a largest size."""
    written: list[tuple[bytes, bytes | None]] = []
    own, sizes = registration(written), list[int]()
    under_way = {f"{TOPIC}/{number}" for number in range(10)}
    for number in range(4 * ANSWERS_KEPT):
        partition, attempt = f"{TOPIC}/{number}", f"{number:04}"
        own.answer_ready(partition, attempt, {*under_way, partition}, Deadline(1))
        own.acknowledge(partition, attempt, Deadline(1))
        own.report_pause(partition, PauseReport(attempt, 10, 1, 0), Deadline(1))
        sizes.append(len(written[-1][1] or b""))
    kept = {f"{TOPIC}/{number}" for number in range(4 * ANSWERS_KEPT)[-ANSWERS_KEPT - 1 :]}
    record = decode_record(*written[-1])
    assert set(record.ready) == set(record.acknowledged) == set(record.pauses) == kept | under_way
    assert max(sizes) <= sizes[2 * ANSWERS_KEPT] + 100


def test_an_answer_that_is_given_again_is_among_the_newest() -> None:
    own = registration([])
    for number in range(ANSWERS_KEPT):
        own.answer_ready(f"{TOPIC}/{number}", "first", (), Deadline(1))
    own.answer_ready(f"{TOPIC}/0", "second", (), Deadline(1))
    own.answer_ready(f"{TOPIC}/{MANY}", "first", (), Deadline(1))
    own.answer_ready(f"{TOPIC}/{MANY + 1}", "first", (), Deadline(1))
    assert own.record.ready[f"{TOPIC}/0"] == "second"
    assert f"{TOPIC}/1" not in own.record.ready and f"{TOPIC}/2" in own.record.ready


def test_certificates_that_do_not_fit_are_left_out_after_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look writes and reads the whole record: one for each that is left out would take minutes."""
    written: list[tuple[bytes, bytes | None]] = []
    own, looks = registration(written), list[int]()
    real = lease._fits
    monkeypatch.setattr(lease, "_fits", lambda record: (looks.append(1), real(record))[1])
    numbers = tuple(range(1_000))
    certificates = {f"{TOPIC}/{n}": Certificate(1_000, {"0": 0}, numbers) for n in range(MANY)}
    certificates["first/0"] = Certificate(1, {"0": 1}, ())
    own.certify(certificates, Deadline(1))
    said = decode_record(*written[-1]).certificates
    assert len(looks) <= 10 and 100 < len(said) < MANY and "first/0" in said


def test_an_answer_that_could_not_be_written_stays_owed(
    producing: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a lease would be renewed of which the operator believes that it runs out."""

    def broken(*_: Any) -> None:
        raise KpsplitError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(producing.thread._feed.registration, "_write", broken)
        producing.tail.put_state(prepared(7))
        for _ in range(2):
            producing.thread._turn()
    feed = producing.thread._feed
    assert not producing.written and lease.owes(feed.states(), feed.registration.record)


def test_what_is_held_while_there_is_no_lease_is_sent_under_the_next_one(producing: Producing) -> None:
    producing.state.lapse()
    producing.ground.held.hold(producing.passes[7], producing.ground.content(b"held"))
    producing.state.renew(monotonic() + 1000)
    producing.turn()
    assert producing.ground.rdkafka.values == [b"held"]
