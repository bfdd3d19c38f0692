"""Splits and merges under producers that write, on real brokers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from kpsplit import Producer, StepDone
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.control_log import OperationLog
from kpsplit.producer.fence_task import Takeover
from kpsplit.producer.lease import LeaseTask
from kpsplit.splitter.driver import Driver
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import EndedBy, Phase, Result
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp
from tests.broker import suspended_child
from tests.broker.operating import (
    PAUSE_MS,
    SHORT_LEASE_MS,
    DiedError,
    dying_after,
    enrolled,
    merge,
    records,
    split,
    state_of,
)
from tests.broker.producing import Journal, Writer, eventually, records_of

pytestmark = [pytest.mark.broker]

LINGER_MS = 200_000
"""Records leave the queue when they are flushed, and not before: it outlasts each wait of a test."""
SECONDS = 180.0


def await_silence(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have operators wait so long for producers that do not answer: a slow one is not silent then."""
    monkeypatch.setattr(OperationLog, "lease_seconds", lambda _: seconds)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators cut nothing before every producer has answered; max-pause alone ends the wait."""
    await_silence(monkeypatch, 3600.0)


def begun(producer: Producer, topic: str, journal: Journal) -> None:
    """Write one record, so that the producer is registered and its route is open."""
    journal.send(producer, topic, b"first")
    assert producer.flush(30) == 0


def die_in_the_fence(operations: Admin, parent: PhysicalPartition) -> None:
    """Begin a split and leave it at its fence, however long it took to come there; max-pause is short."""
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiedError):
        patch.setattr(Driver, "_pause_limit", lambda _driver, _state, deadline: deadline)
        operations.run(plan, max_pause_ms=300, observer=dying_after("Fence"), force=True)


@contextmanager
def no_takeover() -> Iterator[None]:
    """Have no producer of this process look whether it is to take over, for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Takeover, "check", lambda *_: None)
        yield


def test_threads_write_through_a_split_a_nested_split_and_a_merge(operations, bootstrap, make_topic) -> None:
    topic = make_topic(partitions=2)
    parent = enrolled(operations, topic)
    journal = Journal()

    def nested() -> None:
        plan = operations.plan_split(parent, 2, of=KeyRange(1 << 30, 2 << 30), even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True)

    steps: list[Callable[[], Any]] = [
        lambda: split(operations, parent),
        nested,
        lambda: merge(operations, parent),
    ]
    with (
        Producer({"bootstrap.servers": bootstrap, "linger.ms": 1}) as shared,
        Producer({"bootstrap.servers": bootstrap}) as own,
    ):
        users = [(shared, "a"), (shared, "b"), (own, "c")]
        writers = [Writer(producer, topic, journal, who) for producer, who in users]
        for writer in writers:
            writer.start()
        for step in steps:
            wanted = [w.count + 64 for w in writers]
            eventually(
                lambda wanted=wanted: all(
                    w.count > n or w.error for w, n in zip(writers, wanted, strict=True)
                ),
                "writers to write",
            )
            step()
        for writer in writers:
            writer.stop()
        assert (own.flush(30), shared.flush(30)) == (0, 0)
        stats = own.layout_stats()
    journal.check(operations, bootstrap, topic, 2)
    mine = stats.partitions[f"{topic}/0"]
    assert (mine.epoch, mine.failed, mine.waiting, mine.pending) == (3, 0, 0, 0)
    assert stats.last_error is None


@pytest.mark.usefixtures("patient")
def test_a_topic_is_enrolled_while_a_producer_writes_to_it_and_to_another(
    operations, bootstrap, make_topic
) -> None:
    topic, other = make_topic(), make_topic()
    parent = PhysicalPartition(topic, 0)
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        writer = Writer(producer, topic, journal, "a")
        aside = Writer(producer, other, Journal(), "b")
        writer.start()
        aside.start()
        eventually(lambda: len(journal.reports) > 100, "unstamped records")
        operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
        eventually(lambda: f"{topic}/0" in producer.layout_stats().partitions, "the route of the topic")
        plan = operations.plan_split(parent, 2, even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
        before = writer.count
        eventually(lambda: writer.count > before + 100, "records behind the split")
        writer.stop()
        aside.stop()
        assert producer.flush(30) == 0
    tally = journal.check(operations, bootstrap, topic)
    read, _ = records_of(operations, bootstrap, parent)
    stamped = [r.stamp is not None for r in read if r.segment == 0]
    assert stamped[0] is False and stamped == sorted(stamped), "unstamped ones first, then stamped ones"
    assert all(r.stamp for r in read if r.segment != 0)
    assert tally.strays == 0


def test_a_producer_takes_over_from_an_operator_that_died_in_the_fence(
    operations, bootstrap, make_topic
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    small = {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 10}
    with Producer(small) as producer:
        begun(producer, topic, journal)
        with no_takeover():
            die_in_the_fence(operations, parent)
            eventually(lambda: producer.layout_stats().partitions[f"{topic}/0"].fences, "the fence")
            for _ in range(10):
                producer.produce(topic, b"", b"first", on_delivery=lambda *_: None)
            assert len(producer) == 10
            with pytest.raises(BufferError):
                producer.produce(topic, b"one too many", b"first")
            assert producer.flush(0.2) == 10, "what is held counts"
        assert producer.flush(SECONDS) == 0
        journal.send(producer, topic, b"first")
        assert producer.flush(SECONDS) == 0
    state = state_of(operations, parent)
    assert (state.phase, state.epoch) == (Phase.STEADY, 0)
    assert state.last and (state.last.result, state.last.ended_by) == (Result.ROLLED_BACK, EndedBy.TAKEOVER)
    read, _ = records_of(operations, bootstrap, parent)
    assert [r.value for r in read] == [b"p:first:0", *[b""] * 10, b"p:first:1"]


def test_a_new_producer_takes_over_where_nobody_else_is_left(operations, bootstrap, make_topic) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    die_in_the_fence(operations, parent)
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        begun(producer, topic, journal)
    journal.check(operations, bootstrap, topic)
    assert state_of(operations, parent).phase is Phase.STEADY


@pytest.mark.usefixtures("patient")
def test_an_application_that_never_polls_does_not_hold_up_a_fence(operations, bootstrap, make_topic) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 50}) as producer:
        begun(producer, topic, journal)
        for n in range(50):
            journal.send(producer, topic, b"key-%d" % (n % 5))
        plan = operations.plan_split(parent, 2, even=True)
        report = operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
        assert report.outcome.result is Result.COMMITTED
        assert len(journal.reports) == 1, "callbacks wait for the application"
        assert producer.flush(30) == 0
    assert journal.check(operations, bootstrap, topic).strays == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("patient")
def test_what_is_queued_and_lingers_at_the_fence_is_written_before_it_and_in_order(
    operations, bootstrap, make_topic
) -> None:
    """The application does not poll: the library's thread waits for 50,000 records with linger.ms 500."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    queued = 50_000
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 500}) as producer:
        begun(producer, topic, journal)

        def ours() -> Any:
            return producer.layout_stats().partitions[f"{topic}/0"]

        def fill(step: StepDone) -> None:
            if step.name == "Prepare":
                for n in range(queued):
                    journal.send(producer, topic, b"key-%d" % (n % 50))
                eventually(lambda: not ours().waiting, "librdkafka to have all: a lease may have run out")

        plan = operations.plan_split(parent, 2, even=True)
        report = operations.run(plan, max_pause_ms=PAUSE_MS, force=True, observer=fill)
        assert report.outcome.result is Result.COMMITTED
        for n in range(100):
            journal.send(producer, topic, b"key-%d" % (n % 50))
        assert producer.flush(SECONDS) == 0
        mine = ours()
    tally = journal.check(operations, bootstrap, topic)
    assert (mine.epoch, mine.failed, mine.strays, tally.strays) == (1, 0, 0, 0)
    assert sum(mine.delivered.values()) == queued + 101
    assert mine.delivered[0] >= queued, "what was queued went before the cut"


def test_a_record_not_known_to_be_final_in_time_is_reported_as_such_and_never_sent_again(
    operations, bootstrap, make_topic, monkeypatch
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    told: list[tuple[str, str]] = []
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS}) as producer:
        begun(producer, topic, journal)

        def ours() -> Any:
            return producer.layout_stats().partitions[f"{topic}/0"]

        producer.produce(
            topic, b"late", b"first", on_delivery=lambda error, _: told.append((error.name(), error.str()))
        )
        eventually(lambda: ours().waiting == 0, "librdkafka to have the record")
        monkeypatch.setattr(LeaseTask, "renew", lambda self: None)
        eventually(lambda: not producer.layout_stats().lease_valid, "the lease to run out")
        eventually(lambda: producer.flush(0.1) and ours().pending, "the broker's acknowledgement")
        assert told == [] and len(producer) == 1
        in_no_time = replace(producer._state.settings, message_timeout=0.0)
        monkeypatch.setattr(producer._state, "settings", in_no_time)
        eventually(lambda: producer.poll(0.1) or told, "the report")
        ((name, text),) = told
        assert name == "_MSG_TIMED_OUT" and "may have been written" in text
        assert (len(producer), ours().pending, ours().failed) == (0, 0, 1)
        monkeypatch.undo()
        journal.send(producer, topic, b"first")
        assert producer.flush(SECONDS) == 0
    assert [m.value() for m in records(bootstrap, parent)] == [b"p:first:0", b"late", b"p:first:1"]


class Child:
    """A producer in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, linger_ms: int) -> None:
        arguments = [sys.executable, suspended_child.__file__, bootstrap, topic, str(linger_ms)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def tell(self, command: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def child_of(bootstrap: str) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(topic: str, linger_ms: int = LINGER_MS) -> Child:
        children.append(Child(bootstrap, topic, linger_ms))
        return children[-1]

    yield start
    for child in children:
        child.end()


def suspended_across(child: Child, operation: Callable[[], Any]) -> dict[str, Any]:
    """Let a child queue records, suspend it, run an operation, wake it; return what it was told.

    It sends nothing of them before: they linger until it is told to flush, or its fence asks for them.
    """
    assert child.tell("send 5") == "sent\n"
    child.process.send_signal(signal.SIGSTOP)
    operation()
    child.process.send_signal(signal.SIGCONT)
    told: dict[str, Any] = json.loads(child.tell("flush"))
    assert told["left"] == 0
    assert [r for r in told["reports"] if r[1] is not None] == []
    return told


def check_children(operations: Admin, bootstrap: str, topic: str, told: list[Any], count: int) -> Any:
    read, tally = records_of(operations, bootstrap, PhysicalPartition(topic, 0))
    order: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for record in read:
        order[record.key].append(record.value)
        number = int((record.value or b"").rpartition(b":")[2])
        assert record.headers == ((("n", b"%d" % number),) if number % 2 else ())
    keys = suspended_child.KEYS
    assert order == {key: [b"child:%s:%d" % (key, n) for n in range(count)] for key in keys}
    places = {(r.value or b"").decode(): (None, topic, 0, r.logical_offset) for r in read}
    assert {v: tuple(rest) for v, *rest in told} == places
    assert len(told) == len(places)
    assert not tally.foreign
    return tally


def test_a_producer_suspended_across_the_cut_sends_its_strays_again_in_order(
    operations, bootstrap, make_topic, child_of
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    child = child_of(topic)
    child.tell("send 3")
    first = json.loads(child.tell("flush"))

    def split_in_two() -> None:
        plan = operations.plan_split(parent, 2, even=True)
        assert operations.run(plan, max_pause_ms=PAUSE_MS, force=True).outcome.result is Result.COMMITTED

    told = suspended_across(child, split_in_two)
    tally = check_children(operations, bootstrap, topic, first["reports"] + told["reports"], 8)
    assert told["strays"] == 20
    sealed = state_of(operations, parent).lineage.get(0)
    assert sealed.end is not None
    assert (
        len([m for m in records(bootstrap, parent) if (m.offset() or 0) > sealed.end]) == tally.strays == 20
    )


def test_a_producer_suspended_across_a_merge_is_rejected_by_the_hard_seal_and_sends_again(
    operations, bootstrap, make_topic, child_of
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    plan = operations.plan_split(parent, 2, even=True)
    operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
    child = child_of(topic)
    child.tell("send 3")
    first = json.loads(child.tell("flush"))
    told = suspended_across(child, lambda: merge(operations, parent))
    check_children(operations, bootstrap, topic, first["reports"] + told["reports"], 8)
    assert told["strays"] == 20
    child.tell("send 2")
    last = json.loads(child.tell("flush"))
    check_children(operations, bootstrap, topic, first["reports"] + told["reports"] + last["reports"], 10)


@pytest.mark.nightly
def test_a_producer_suspended_over_a_split_its_merge_and_retire_sends_its_strays_again_in_order(
    operations, bootstrap, make_topic, child_of
) -> None:
    """What it had queued for the parent lands in the reopened parent, two epochs too old."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    child = child_of(topic)
    child.tell("send 3")
    first = json.loads(child.tell("flush"))

    def there_and_back() -> None:
        operations.run(operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
        merge(operations, parent)
        assert len(operations.retire(parent, force=True)) == 1

    told = suspended_across(child, there_and_back)
    assert told["strays"] == 20
    lineage = state_of(operations, parent).lineage
    (sealed, reopened), order = (lineage.get(0), lineage.open_segments()[0]), defaultdict(list)
    for message in records(bootstrap, parent):
        offset, stamp = message.offset() or 0, dict(message.headers() or ()).get(STAMP_HEADER)
        late = offset >= reopened.start and Stamp.decode(stamp).epoch == reopened.opened_epoch
        if late or offset < (sealed.end or 0):
            order[message.key()].append(message.value())
    keys = suspended_child.KEYS
    assert order == {key: [b"child:%s:%d" % (key, n) for n in range(8)] for key in keys}
    assert len(first["reports"] + told["reports"]) == 32


def test_a_producer_suspended_over_a_merge_and_the_retirement_of_its_sub_topic_goes_on_with_the_parent(
    operations, bootstrap, make_topic, child_of
) -> None:
    """Requests are in flight to the sub-topic when it falls asleep; when it wakes there is no sub-topic."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    operations.run(operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
    child = child_of(topic, linger_ms=5)
    child.tell("send 3")
    first = json.loads(child.tell("flush"))
    assert child.tell("send 5000") == "sent\n"
    child.process.send_signal(signal.SIGSTOP)
    merge(operations, parent)
    assert len(operations.retire(parent, force=True)) == 1
    child.process.send_signal(signal.SIGCONT)
    woken = json.loads(child.tell("flush"))
    assert woken["left"] == 0
    child.tell("send 2")
    last = json.loads(child.tell("flush"))
    assert [r[1] for r in last["reports"]] == [None] * 8
    told = first["reports"] + woken["reports"] + last["reports"]
    values = [r[0] for r in told]
    assert len(values) == len(set(values)) == 4 * 5005
    unknown = {r[0]: r[1] for r in told if r[1] is not None}
    assert all("may have been written" in error for error in unknown.values())
    reopened = state_of(operations, parent).lineage.open_segments()[0]
    found: dict[str, list[str]] = defaultdict(list)
    for message in records(bootstrap, parent):
        if (message.offset() or 0) >= reopened.start:
            found[(message.key() or b"").decode()].append((message.value() or b"").decode())
    delivered = {r[0] for r in told if r[1] is None and r[4] >= reopened.logical(reopened.start)}
    assert sorted(v for values in found.values() for v in values) == sorted(delivered)
    for values in found.values():
        numbers = [int(value.rpartition(":")[2]) for value in values]
        assert numbers == sorted(numbers)
    assert not unknown.keys() & delivered
    assert all(error is None for error in [woken["error"], last["error"]])


@pytest.fixture
def transactional(bootstrap: str, topic_name: Callable[[], str]) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic_name()})
    producer.init_transactions(30)
    yield producer
    producer.close()


def begin(producer: Producer, topic: str, journal: Journal) -> None:
    """Begin a transaction with one record in it."""
    producer.begin_transaction()
    journal.send(producer, topic, b"key")
    producer.flush(30)


def test_a_transaction_longer_than_max_pause_aborts_the_attempt_and_is_kept(
    operations, bootstrap, make_topic, transactional
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    plan = operations.plan_split(parent, 2, even=True)
    with pytest.raises(DeadlineExceededError):
        operations.run(
            plan,
            max_pause_ms=SHORT_LEASE_MS // 2,
            force=True,
            observer=lambda step: begin(transactional, topic, journal) if step.name == "Prepare" else None,
        )
    journal.send(transactional, topic, b"key")
    transactional.commit_transaction(30)
    assert transactional.flush(30) == 0
    split(operations, parent, 2)
    transactional.begin_transaction()
    journal.send(transactional, topic, b"key")
    transactional.commit_transaction(30)
    assert transactional.flush(30) == 0
    journal.check(operations, bootstrap, topic)
    assert state_of(operations, parent).epoch == 1


def begin_then_split(
    operations: Admin,
    parent: PhysicalPartition,
    producer: Producer,
    journal: Journal,
    go_on: Callable[[], None],
    max_pause_ms: int,
) -> None:
    """Split while a transaction is open that began before the fence; a thread goes on with it."""
    thread = threading.Thread(target=go_on)

    def observe(step: StepDone) -> None:
        if step.name == "Prepare":
            begin(producer, parent.topic, journal)
            thread.start()

    plan = operations.plan_split(parent, 2, even=True)
    try:
        operations.run(plan, max_pause_ms=max_pause_ms, force=True, observer=observe)
    finally:
        if thread.ident is not None:
            thread.join(180)


@pytest.mark.nightly
def test_a_producer_that_took_over_the_transactional_id_of_one_that_crashed_goes_on_through_a_split(
    operations, bootstrap, make_topic, monkeypatch
) -> None:
    await_silence(monkeypatch, 5.0)
    topic, journal, told = make_topic(), Journal(), list[StepDone]()
    name, parent = topic, enrolled(operations, topic)
    crash_in_a_transaction(bootstrap, name, topic)
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as successor:
        successor.init_transactions(60)
        begin(successor, topic, journal)
        successor.commit_transaction(60)
        plan = operations.plan_split(parent, 2, even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True, observer=told.append)
        begin(successor, topic, journal)
        successor.commit_transaction(60)
    assert "1 producer ready, 1 silent" in [step.detail for step in told]
    journal.check(operations, bootstrap, topic)


def crash_in_a_transaction(bootstrap: str, name: str, topic: str) -> None:
    """Have a producer killed with an open transaction."""
    command = [sys.executable, "-m", "tests.broker.crashing_child", bootstrap, name, topic]
    crashing = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert crashing.stdout is not None and crashing.stdout.readline() == "written\n"
    finally:
        crashing.kill()
        crashing.wait()


def test_a_fence_waits_for_the_end_of_a_transaction(operations, bootstrap, make_topic, transactional) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()

    def commit_in_the_fence() -> None:
        eventually(lambda: transactional.layout_stats().partitions[f"{topic}/0"].fences, "the fence")
        journal.send(transactional, topic, b"key")
        transactional.commit_transaction(30)

    with suppress(DeadlineExceededError):  # on a slow machine; the transaction is kept in any case
        begin_then_split(
            operations, parent, transactional, journal, commit_in_the_fence, SHORT_LEASE_MS * 9 // 10
        )
    assert transactional.flush(30) == 0
    journal.check(operations, bootstrap, topic)


@pytest.mark.nightly
def test_a_fence_waits_for_a_transaction_longer_than_a_lease_that_flushes_before_its_end(
    operations, bootstrap, make_topic, transactional
) -> None:
    topic = make_topic(partitions=2)
    parent = enrolled(operations, topic)
    journal = Journal()

    def go_on_for_longer_than_a_lease() -> None:
        eventually(lambda: transactional.layout_stats().partitions[f"{topic}/0"].fences, "the fence")
        over = Deadline(1.5 * SHORT_LEASE_MS / 1000)
        while over.left() > 0:
            for partition in range(2):
                journal.send(transactional, topic, b"key", f"to-{partition}", partition=partition)
            assert transactional.flush(30) == 0
        transactional.commit_transaction(30)

    begin_then_split(operations, parent, transactional, journal, go_on_for_longer_than_a_lease, 60_000)
    assert (
        state_of(operations, parent).epoch,
        transactional.layout_stats().partitions[f"{topic}/0"].strays,
    ) == (1, 0)
    journal.check(operations, bootstrap, topic, 2)


@pytest.mark.nightly
def test_an_abandoned_producer_keeps_no_fence_waiting_for_its_transaction(
    operations, bootstrap, make_topic
) -> None:
    """One attempt may still wait for it, if it had answered that it is ready; none behind that does."""
    topic = make_topic()
    parent = enrolled(operations, topic)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic}
    hanging = Producer(settings)
    hanging.init_transactions(30)
    with suppress(DeadlineExceededError):
        begin_then_split(operations, parent, hanging, Journal(), hanging.abandon, 2000)
    with Producer(settings) as successor:
        successor.init_transactions(30)
        if not state_of(operations, parent).epoch:
            split(operations, parent)
    assert state_of(operations, parent).epoch == 1
    assert records_of(operations, bootstrap, parent)[0] == [], "its transaction was aborted"
    with pytest.raises(KpsplitError, match="closed"):
        hanging.produce(topic, b"late", b"key")


def test_transactions_that_begin_in_the_fence_are_held_and_then_committed_or_aborted(
    operations, bootstrap, make_topic, transactional
) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    journal = Journal()
    transactional.begin_transaction()
    journal.send(transactional, topic, b"key")
    transactional.commit_transaction(30)
    dropped: list[Any] = []
    with no_takeover():
        die_in_the_fence(operations, parent)
        eventually(lambda: transactional.layout_stats().partitions[f"{topic}/0"].fences, "the fence")
        transactional.begin_transaction()
        transactional.produce(
            topic, b"dropped", b"key", on_delivery=lambda error, _: dropped.append(error.name())
        )
        assert transactional.layout_stats().partitions[f"{topic}/0"].waiting == 1
        transactional.abort_transaction(SECONDS)
        transactional.begin_transaction()
        journal.send(transactional, topic, b"key")
    transactional.commit_transaction(SECONDS)
    assert transactional.flush(SECONDS) == 0
    assert dropped == ["_PURGE_QUEUE"]
    journal.check(operations, bootstrap, topic)
    assert state_of(operations, parent).phase is Phase.STEADY


def test_a_program_that_ends_without_close_leaves_no_registration_that_is_waited_for(
    operations, bootstrap, make_topic
) -> None:
    topic = make_topic()
    enrolled(operations, topic)
    command = [sys.executable, "-m", "tests.broker.leaving_child", bootstrap, topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "ends\n", "no callback of the application runs at the exit"
    assert operations.producers().to_ask(topic) == ()
    (record,) = [r for r in operations.producers().all() if topic in r.topics]
    assert (record.client_id, record.closed) == ("left-open", True)
