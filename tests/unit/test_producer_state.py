"""Routes, holds, reports: the parts of a Producer that need no broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import KpsplitError
from kpsplit.producer.config import split_config
from kpsplit.producer.messages import PendingRecord, PlainProducer
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.polling import Polling, Transactions
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.sending import PassThroughSender, StampedSender, make_produce
from kpsplit.producer.state import (
    PASS_THROUGH,
    ProducerState,
    RouteWriter,
    SendState,
    TopicRoute,
    certificates,
)
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import STAMP_HEADER
from kpsplit.splitter.records.producers import Certificate
from tests.unit.samples import fenced, merge_attempt, operated, split_attempt

pytestmark = pytest.mark.usefixtures("both_paths")

PARENT = PhysicalPartition("orders", 0)
UNSPLIT = PartitionState.unsplit(PARENT, "id")
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))
LONE = "\ud83d"
"""Half of a character: it cannot be encoded."""


class Librdkafka:
    """What was given to produce(), and what its reports will say."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.room = 1000
        self.refuse: Exception | None = None

    def produce(self, *arguments: Any) -> None:
        if isinstance(arguments[1], str):
            arguments[1].encode()
        if arguments[6] > 2**63 - 1:
            raise OverflowError("int too big to convert")
        if self.refuse is not None and arguments[1] == b"bad":
            raise self.refuse
        if len(self.given) >= self.room:
            raise BufferError("Local: Queue full")
        self.given.append(arguments)

    def report(self, number: int, offset: int = 0, error: Any = None) -> None:
        topic, value, key, partition, report, *_ = self.given[number]
        message = Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=value,
            timestamp=(1, 9),
            error=error,
        )
        report(error, message)

    @property
    def values(self) -> list[Any]:
        return [arguments[1] for arguments in self.given]


class Ground:
    """A producer's parts with one enrolled topic of one partition, and a valid lease."""

    def __init__(self, **settings: Any) -> None:
        _, parsed = split_config(settings)
        self.rdkafka = Librdkafka()
        self.counts: dict[str, Any] = {}
        self.queued, self.poll = 0, lambda _: 0
        plain = PlainProducer(
            self.rdkafka.produce,
            lambda seconds: self.poll(seconds),  # noqa: PLW0108 - tests change it later
            lambda: self.queued,
            lambda topic: self.counts[topic],
        )
        self.state = ProducerState(parsed, 7, plain)
        self.stamped = StampedSender(self.state)
        self.plain = PassThroughSender(self.state)
        self.held = HeldRecords(self.state, self.stamped, self.plain, lambda: None)
        self.fence: SendState = PartitionSendState(
            UNSPLIT, lambda s: RouteWriter(s, PARENT), self.state.tally
        )
        self.fence.suspend(True)  # up to the first lease, as every one that is added
        enrolment = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True)
        self.state.add_route("orders", TopicRoute(enrolment, [self.fence]))
        self.state.renew(monotonic() + 1000)
        self.told: list[tuple[Any, Any]] = []

    def callback(self, error: Any, message: Any) -> None:
        self.told.append((error and error.code(), message.value()))

    def producing(self, general: Any, callback: Any = None) -> Callable[..., None]:
        self.state.settings = replace(self.state.settings, on_delivery=callback)
        return make_produce(self.state, self.rdkafka.produce, self.stamped, self.plain, general)

    def content(self, value: bytes = b"v", **more: Any) -> PendingRecord:
        given = {"timestamp": 0, "headers": None, "callback": self.callback, "accepted_at": monotonic()}
        return PendingRecord(**{"value": value, "key": b"k", **given, **more})

    def send(self, value: bytes = b"v", **more: Any) -> RouteWriter:
        writer = self.fence.writers[0]
        self.stamped.send(self.fence, writer, self.fence.next_sequence, self.content(value, **more))
        self.fence.next_sequence += 1
        return writer

    def observe(self, state: PartitionState, *, lease_valid: bool = True) -> None:
        finals = self.fence.observe(state, lease_valid=lease_valid)
        self.state.refresh(self.fence)
        self.state.report(self.fence, finals)

    def hold(self, *values: bytes, **more: Any) -> None:
        for value in values:
            self.held.hold(self.fence, self.content(value, **more))


def in_a_transaction(**settings: Any) -> tuple[Ground, Transactions]:
    ground = Ground(**{"transactional.id": "t", **settings})
    transactions = Transactions(ground.state, Polling(ground.state), ground.held, lambda _: 0)
    transactions.begun()
    return ground, transactions


def test_a_report_under_a_valid_lease_goes_straight_to_the_application() -> None:
    ground = Ground()
    writer = ground.send(b"a")
    ground.rdkafka.report(0)
    assert ground.told == [(None, b"a")]
    assert (writer.done, writer.in_flight, writer.delivered) == (1, 0, 1)


def test_a_certificate_names_the_topic_that_it_speaks_of() -> None:
    """Of two topics of one name, where some numbers lie in the one that is gone, there is none."""
    ground = Ground()
    ground.send(b"a")
    ground.rdkafka.report(0)
    said = Certificate(1, {"0": 1}, (), UNSPLIT.topic_id)
    assert certificates(ground.state) == {str(PARENT): said}
    ground.observe(replace(UNSPLIT, topic_id="another"))
    assert certificates(ground.state) == {}


def test_a_record_is_in_flight_until_its_report_is_in_hand() -> None:
    """The report waits for the lock while the library's thread applies the end of a fence."""
    ground = Ground()
    writer = ground.send(b"a")
    ground.state.lapse()
    with ground.state.lock:
        thread = threading.Thread(target=ground.rdkafka.report, args=(0, 5))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert writer.in_flight == 1
        ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
        assert ground.fence.closing == [writer]
    thread.join(5)
    assert ground.fence.statistics.strays == 1 and not any(w.open for w in ground.fence.writers)


def test_a_lease_that_has_run_out_is_not_installed() -> None:
    """The process slept between the question for the control topic's end and the answer."""
    ground = Ground()
    ground.state.lapse()
    ground.hold(b"a")
    ground.state.renew(monotonic() - 0.001)
    assert ground.fence.suspended and not ground.fence.writers[0].open
    assert ground.held.release() == 0 and ground.rdkafka.values == []
    assert not ground.state.lease_valid()


def test_reports_of_closed_segments_are_never_final_at_once() -> None:
    ground = Ground()
    writer = ground.send(b"a")
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.rdkafka.report(0, offset=5)
    assert ground.told == [] and ground.fence.statistics.strays == 1
    assert writer.lease.until == 0.0


def test_no_renewal_makes_reports_of_a_removed_route_final_at_once() -> None:
    ground = Ground()
    writer = ground.send(b"a")
    ground.state.remove_route("orders")
    ground.state.renew(monotonic() + 1000)
    ground.rdkafka.report(0, offset=5)
    assert ground.told == [] and writer.lease.until == 0.0
    assert ground.state.callbacks.run() == 1  # it was looked at the slow way


def test_reports_that_the_librarys_thread_takes_are_queued_for_the_application() -> None:
    ground = Ground()
    ground.send(b"a")
    ground.state.routes["plain"] = PASS_THROUGH
    ground.plain.send("plain", b"b", None, -1, ground.callback, 0, None)

    def poll(_: float) -> int:
        ground.rdkafka.report(0)
        ground.rdkafka.report(1)
        return 2

    ground.poll = poll
    ground.state.collect()
    assert ground.told == [] and ground.fence.writers[0].delivered == 1
    assert ground.state.callbacks.run() == 2
    assert sorted(ground.told) == [(None, b"a"), (None, b"b")]


def test_no_callback_of_a_topic_that_is_not_enrolled_runs_in_the_librarys_thread() -> None:
    """So librdkafka never gets the callback itself: it was sent before anything was enrolled."""
    ground, threads = Ground(), list[threading.Thread]()
    ground.state.fast_plain.add("plain")
    produce = ground.producing(ground.held.produce, lambda *_: threads.append(threading.current_thread()))
    produce("plain", b"a")
    produce("plain", b"b")
    ground.rdkafka.report(0)
    ground.poll = lambda _: ground.rdkafka.report(1) or 1
    library = threading.Thread(target=ground.state.collect)
    library.start()
    library.join(10)
    assert len(threads) == 1
    assert ground.state.callbacks.run() == 1 and threads == [threading.current_thread()] * 2


def test_producers_that_share_a_callback_share_nothing_else() -> None:
    told: list[bytes] = []

    def callback(_: Any, message: Any) -> None:
        told.append(message.value())

    collects, other = Ground(), Ground()
    for ground, value in ((collects, b"collects"), (other, b"other")):
        ground.state.fast_plain.add("plain")
        ground.producing(ground.held.produce, callback)("plain", value)
    collects.state.collecting = True
    for ground in (collects, other):
        ground.rdkafka.report(0)
    assert told == [b"other"]
    assert collects.state.callbacks.run() == 1 and told == [b"other", b"collects"]


def test_a_record_that_librdkafka_refuses_fails_alone() -> None:
    ground = Ground()
    ground.state.lapse()
    ground.hold(b"a", b"bad", b"c")
    assert ground.held.bytes == 3 + 5
    ground.state.renew(monotonic() + 1000)
    ground.rdkafka.refuse = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert ground.held.release() == 3
    assert ground.rdkafka.values == [b"a", b"c"]
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError.MSG_SIZE_TOO_LARGE, b"bad")]
    assert ground.fence.statistics.failed.numbers() == [1]
    assert (ground.held.bytes, ground.fence.waiting(), ground.fence.writers[0].open) == (
        0,
        0,
        True,
    )


def test_a_full_queue_stops_the_release_where_it_is() -> None:
    ground = Ground()
    ground.state.lapse()
    ground.hold(b"a", b"b", b"c")
    ground.state.renew(monotonic() + 1000)
    ground.rdkafka.room = 2
    assert ground.held.release() == 2
    assert ground.held.release() == 0
    assert (ground.fence.waiting(), ground.fence.writers[0].open, ground.held.bytes) == (
        1,
        False,
        2,
    )
    ground.rdkafka.room = 3
    assert ground.held.release() == 1
    assert ground.rdkafka.values == [b"a", b"b", b"c"] and ground.fence.writers[0].open


def test_the_lock_is_never_kept_for_a_whole_queue() -> None:
    ground = Ground()
    ground.rdkafka.room = 10_000
    ground.state.lapse()
    ground.hold(*([b"v"] * 1200))
    ground.state.renew(monotonic() + 1000)
    assert [ground.held.release() for _ in range(4)] == [500, 500, 200, 0]


@pytest.mark.parametrize("wrong", [{"value": 3}, {"key": 5}, {"headers": 5}])
def test_a_record_of_the_wrong_type_is_refused_before_it_is_held(wrong: dict[str, Any]) -> None:
    ground = Ground()
    with pytest.raises(TypeError):
        ground.held.hold(ground.fence, ground.content(**wrong))
    with pytest.raises(TypeError):
        ground.held.hold_unrouted("other", ground.content(**wrong), -1)
    assert ground.state.tally.count == 0 and ground.held.bytes == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": LONE},
        {"timestamp": 2**63},
        {"timestamp": -(2**63) - 1},
        {"headers": {LONE: b"1"}},
        {"headers": {"h": LONE}},
        {"headers": [("h", 3)]},
        {"headers": ["h1"]},
    ],
)
def test_a_record_that_librdkafka_would_refuse_is_refused_before_it_is_held(wrong: dict[str, Any]) -> None:
    """As librdkafka's produce() does; but a header's name that cannot be encoded ends the process there."""
    ground = Ground()
    with pytest.raises((TypeError, UnicodeEncodeError, OverflowError)):
        ground.held.hold(ground.fence, ground.content(**wrong))
    with pytest.raises((TypeError, UnicodeEncodeError, OverflowError)):
        ground.held.hold_unrouted("other", ground.content(**wrong), -1)
    assert ground.state.tally.count == 0 and ground.held.bytes == 0


@pytest.mark.parametrize(("topic", "partition"), [(LONE, -1), ("other", 2**31)])
def test_a_place_that_librdkafka_would_refuse_is_refused_before_a_record_is_held(
    topic: str, partition: int
) -> None:
    ground = Ground()
    with pytest.raises((UnicodeEncodeError, OverflowError)):
        ground.held.hold_unrouted(topic, ground.content(), partition)
    assert ground.state.tally.count == 0 and ground.held.bytes == 0


class Number:
    """An integer that is no int, as numpy has them."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number

    def __lt__(self, other: int) -> bool:
        return self._number < other


@pytest.mark.parametrize("topic", ["orders", "other"])
def test_an_integer_that_is_no_int_is_taken_as_librdkafka_does_when_a_record_is_held(topic: str) -> None:
    ground = Ground()
    ground.state.lapse()
    general = ground.held
    produce = ground.producing(general.produce)
    given: Any = {"partition": Number(0), "timestamp": Number(9)}
    produce(topic, b"v", b"k", **given)
    (queue,) = [*ground.fence.backlog.queues.values(), *ground.state.unrouted.values()]
    content = queue[0].payload if topic == "orders" else queue[0].content  # type: ignore[union-attr]
    assert content.timestamp == 9 and ground.state.tally.count == 1


@pytest.mark.parametrize("bad", [{"value": LONE}, {"timestamp": 2**63}])
@pytest.mark.parametrize("end", ["release", "expire", "purge"])
def test_beside_a_record_that_cannot_be_sent_each_is_sent_at_most_once_and_reported_once(
    bad: dict[str, Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground()
    ground.state.lapse()
    ground.hold(b"a")
    with monkeypatch.context() as past_the_check:
        past_the_check.setattr(PendingRecord, "check", lambda _: None)
        ground.held.hold(ground.fence, ground.content(**{"value": b"?", **bad}))
    ground.hold(b"b")
    if end == "release":
        ground.state.renew(monotonic() + 1000)
        assert [ground.held.release() for _ in range(2)] == [3, 0]
        assert ground.rdkafka.values == [b"a", b"b"]
        for number in range(2):
            ground.rdkafka.report(number)
    elif end == "expire":
        ground.held.expire(monotonic() + 1000)
    else:
        ground.held.purge()
    ground.state.callbacks.run()
    assert sorted(value for _, value in ground.told) == [b"?", b"a", b"b"]
    assert ground.state.unresolved() == 0 and ground.held.bytes == 0


def test_a_thread_that_polls_all_the_time_lets_another_one_poll_or_flush() -> None:
    polling = Polling(Ground().state)
    polls, over = threading.Event(), threading.Event()

    def poll(seconds: float) -> int:
        polls.set()
        over.wait(seconds)
        return 0

    def all_the_time() -> None:
        while not over.is_set():
            polling.serve(poll, 0.01)

    thread = threading.Thread(target=all_the_time, daemon=True)
    thread.start()
    polls.wait(10)
    entered: list[float] = []
    limit = time.monotonic() + 30
    while len(entered) < 3 and time.monotonic() < limit:
        polling.serve(lambda seconds: entered.append(seconds) or 0, 0.1)  # type: ignore[func-returns-value]
    over.set()
    thread.join(10)
    assert len(entered) == 3


@dataclass(frozen=True)
class Noting:
    """A callback that equals others of its name, wherever they note."""

    name: str
    noted: list[Any] = field(compare=False)

    def __call__(self, error: Any, message: Any) -> None:
        self.noted.append(message.value())

    def note(self, error: Any, message: Any) -> None:
        self.noted.append(message.value())


@pytest.mark.parametrize("topic", ["orders", "plain"])
@pytest.mark.parametrize("as_method", [False, True])
def test_a_callback_that_equals_another_one_gets_its_own_reports(topic: str, as_method: bool) -> None:
    ground = Ground()
    ground.state.fast_plain.add("plain")
    general = ground.held
    ground.state.routes["plain"] = PASS_THROUGH
    produce = ground.producing(general.produce)
    one, other = Noting("n", []), Noting("n", [])
    for value, callback, key in (
        (b"a", one, b"k"),
        (b"b", other, b"k"),
        (b"c", one, None),
        (b"d", other, None),
    ):
        produce(topic, value, key, callback=callback.note if as_method else callback)
    for number in range(4):
        ground.rdkafka.report(number)
    assert (one.noted, other.noted) == ([b"a", b"c"], [b"b", b"d"])


@pytest.mark.parametrize("topic", ["orders", "plain"])
def test_the_report_function_of_a_common_callback_is_made_once(topic: str) -> None:
    ground = Ground()
    ground.state.routes["plain"] = PASS_THROUGH
    general = ground.held
    produce = ground.producing(general.produce)
    noted: list[Any] = []
    for callback in (print, lambda *_: None, ground.callback, partial(print), noted.append):
        for _ in range(2):
            produce(topic, b"v", b"k", callback=callback)
        given = [getattr(arguments[4], "__func__", arguments[4]) for arguments in ground.rdkafka.given]
        assert given[-1] is given[-2]


def test_a_strays_own_headers_and_time_are_sent_again() -> None:
    ground = Ground()
    ground.send(b"a", headers=[("h", b"1")], timestamp=9)
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.rdkafka.report(0, offset=5)
    assert ground.held.release() == 1
    topic, value, key, _, _, _, timestamp, headers = ground.rdkafka.given[1]
    assert (topic, value, key, timestamp) == (SPLIT.subtopic, b"a", b"k", 9)
    assert headers[0] == ("h", b"1") and headers[1][0] == STAMP_HEADER
    first = ground.rdkafka.given[0][7]
    assert headers[1][1][-8:] == dict(first)[STAMP_HEADER][-8:], "the sequence number stays"
    ground.rdkafka.report(1, offset=0)
    assert ground.told == [(None, b"a")]


def test_a_rejection_by_a_sealed_topic_waits_for_a_look_at_the_log() -> None:
    ground = Ground()
    split = operated(UNSPLIT, SPLIT, {0: 1})
    ground.fence.observe(split, lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.send(b"a")
    ground.state.lapse()
    ground.rdkafka.report(0, error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert ground.told == [] and ground.fence.pending() == 1


def test_inside_transactions_a_rejection_is_a_failure() -> None:
    ground = Ground(**{"transactional.id": "t"})
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.send(b"a")
    ground.state.lapse()
    ground.rdkafka.report(0, error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError.MSG_SIZE_TOO_LARGE, b"a")]


def test_records_that_wait_too_long_time_out_strays_as_well() -> None:
    ground = Ground(**{"message.timeout.ms": 1000})
    ground.send(b"stray")
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.state.lapse()
    ground.hold(b"held")
    ground.held.hold_unrouted("other", ground.content(b"unrouted"), -1)
    ground.rdkafka.report(0, offset=5)
    ground.held.expire(monotonic())
    assert ground.state.tally.count == 3
    ground.held.expire(monotonic() + 2)
    ground.state.callbacks.run()
    assert sorted(ground.told, key=lambda t: t[1]) == [
        (KafkaError._MSG_TIMED_OUT, value) for value in (b"held", b"stray", b"unrouted")
    ]
    assert (ground.state.unresolved(), ground.held.bytes) == (0, 0)


def test_purge_fails_everything_that_waits() -> None:
    ground = Ground()
    ground.state.lapse()
    ground.hold(b"held")
    ground.held.hold_unrouted("other", ground.content(b"unrouted"), 3)
    ground.held.purge()
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError._PURGE_QUEUE, b"held"), (KafkaError._PURGE_QUEUE, b"unrouted")]
    assert (ground.state.unresolved(), ground.held.bytes) == (0, 0)


def test_a_newer_format_fails_everything_and_refuses_everything_from_then_on() -> None:
    ground = Ground()
    ground.send(b"pending")
    ground.send(b"in flight")
    ground.fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    ground.state.refresh(ground.fence)
    ground.hold(b"held")
    ground.rdkafka.report(0)
    ground.held.fail_closed(KpsplitError("too new"))
    ground.rdkafka.report(1)
    ground.state.callbacks.run()
    assert [value for code, value in ground.told if code] == [b"held", b"pending", b"in flight"]
    assert ground.state.unresolved() == 0
    with pytest.raises(KpsplitError, match="too new"):
        ground.hold(b"more")


def test_every_queued_callback_runs_and_the_first_error_is_raised() -> None:
    ground = Ground()
    seen: list[int] = []

    def fails(number: int) -> None:
        seen.append(number)
        raise ValueError(number)

    for number in range(3):
        ground.state.callbacks.put(fails, number)
    with pytest.raises(ValueError, match="0"):
        ground.state.callbacks.run()
    assert seen == [0, 1, 2] and ground.state.callbacks.run() == 0


def test_two_threads_may_run_queued_callbacks_at_the_same_time() -> None:
    ground = Ground()
    seen: list[int] = []
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        try:
            ground.state.callbacks.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be
            errors.append(error)

    for number in range(20_000):
        ground.state.callbacks.put(seen.append, number)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == [] and sorted(seen) == list(range(20_000))


def test_unstamped_records_are_settled_under_a_steady_stream_of_others() -> None:
    """The queue is never empty: later records of other topics are told from the older ones by counting."""
    ground = Ground()

    def send_plain() -> int:
        ground.plain.send("plain", b"x", None, -1, None, 0, None)
        ground.queued += 1
        return len(ground.rdkafka.given) - 1

    def settled() -> bool:
        return ground.plain.settled()

    def report(number: int) -> None:
        ground.rdkafka.report(number)
        ground.queued -= 1

    send_plain()  # without a callback nothing is reported for it
    ground.plain.count()
    later = send_plain()
    ground.send(b"stamped")
    ground.queued += 1
    assert not settled()
    ground.queued -= 1  # the first one is through
    report(later)
    later = send_plain()
    assert ground.queued == 2 and settled()


def test_the_count_of_what_waits_runs_along_with_everything_that_changes_it() -> None:
    """Through holding, a new layout, strays, release, a time-out, a purge and the end of a topic's route."""
    ground = Ground(**{"message.timeout.ms": 1000})
    held, state = ground.held, ground.state
    now = monotonic()

    def checked() -> int:
        fenced = sum(len(q) for q in ground.fence.backlog.queues.values())
        unrouted = sum(map(len, state.unrouted.values()))
        assert ground.state.tally.count == fenced + unrouted
        return ground.state.tally.count

    ground.send(b"stray")
    state.lapse()
    ground.hold(b"a", b"b", b"c", accepted_at=now)
    for topic in ("plain", "plain", "failed", "purged"):
        held.hold_unrouted(topic, ground.content(accepted_at=now + 5), -1)
    assert checked() == 7
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
    ground.rdkafka.report(0, offset=5)
    assert checked() == 8
    state.routes["plain"], state.lease_until = PASS_THROUGH, now + 1000
    ground.rdkafka.room = 2
    held.route("plain")
    assert checked() == 7
    held.fail_unrouted("failed", KafkaError(KafkaError._UNKNOWN_TOPIC))
    assert checked() == 6
    state.renew(now + 1000)
    ground.rdkafka.room = 4
    assert held.release() == 2
    assert checked() == 4
    ground.held.expire(now + 2)
    assert checked() == 2
    state.lapse()
    ground.hold(b"d", b"e")
    state.remove_route("orders")
    assert ground.state.tally.count == 2
    ground.held.purge()
    assert ground.state.tally.count == 0


def test_what_is_not_final_in_time_fails_as_perhaps_written_and_is_never_sent_again() -> None:
    ground = Ground(**{"message.timeout.ms": 1000})
    for value in (b"inside", b"behind the end", b"young"):
        ground.send(value)
    ground.state.lapse()
    ground.rdkafka.report(0, offset=0)
    ground.rdkafka.report(1, offset=5)
    told: list[Any] = []
    ground.state.callbacks.put(lambda: None)
    late = monotonic() + 1.5
    pending = ground.fence.writers[0].pending
    assert [a.offset for a in pending] == [0, 5]
    ground.rdkafka.report(2, offset=6)
    pending[2].record.payload.accepted_at = late
    pending[0].record.payload.callback = lambda error, message: told.append((error, message))
    ground.held.expire(late)
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError._MSG_TIMED_OUT, b"behind the end")]
    ((error, message),) = told
    assert "may have been written" in error.str() and message.error() is error
    assert (message.value(), message.topic(), message.offset()) == (b"inside", "orders", None)
    assert (ground.fence.pending(), ground.fence.statistics.failed.numbers()) == (1, [0, 1])
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
    ground.state.renew(monotonic() + 1000)
    assert ground.held.release() == 1
    assert ground.rdkafka.values[3:] == [b"young"], "only what nobody was told of"


def test_a_rejection_that_nobody_looked_up_in_time_is_no_certain_failure() -> None:
    ground = Ground(**{"message.timeout.ms": 1000})
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}))
    ground.send(b"a")
    ground.state.lapse()
    ground.rdkafka.report(0, error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    ground.held.expire(monotonic() + 2)
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError._MSG_TIMED_OUT, b"a")]


CODES = sorted({v for n, v in vars(KafkaError).items() if n.isupper() and isinstance(v, int)} - {0})
OF_A_LOG_THAT_IS_SEALED_OR_GONE = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._DESTROY,
    KafkaError._DESTROY_BROKER,
}


def test_whatever_code_a_report_carries_its_record_fails_or_is_looked_up() -> None:
    """What a retired sub-topic makes of records is never told as it is: they may have been written before."""
    split = operated(UNSPLIT, SPLIT, {0: 1})
    merged = operated(split, merge_attempt(split, (2, 3), WHOLE), {1: 2, 2: 50, 3: 50})
    looked_up = set()
    for code in CODES:
        ground = Ground()
        ground.observe(split)
        ground.send(b"a")
        ground.observe(merged)
        ground.rdkafka.report(0, error=KafkaError(code))
        ground.state.callbacks.run()
        if ground.fence.unclear():
            looked_up.add(code)
        else:
            assert ground.told == [(code, b"a")] and ground.fence.closing == []
    assert len(CODES) > 150 and looked_up == OF_A_LOG_THAT_IS_SEALED_OR_GONE


def test_a_record_that_was_acknowledged_without_its_offset_is_delivered_somewhere() -> None:
    """librdkafka says so where a later record was acknowledged, and so the earlier one is written."""
    ground = Ground()
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}))
    told: list[Any] = []
    for n in range(2):
        ground.send(b"a", callback=lambda error, message: told.append((error, message.offset())))
        ground.state.collecting = bool(n)
        ground.state.refresh(ground.fence)
        ground.rdkafka.report(n, offset=-1001)
    ground.state.callbacks.run()
    assert told == [(None, None)] * 2 and ground.fence.delivered()[2] == 2


def test_a_record_waits_behind_older_ones_of_its_topic_although_the_route_is_there() -> None:
    ground = Ground()
    general = ground.held
    produce = ground.producing(general.produce, ground.callback)
    for topic, key in (("plain", None), ("orders", b"k")):
        ground.state.remove_route(topic) if topic == "plain" else ground.fence.suspend(True)
        ground.held.hold_unrouted(topic, ground.content(b"1", key=key), -1)
    ground.state.routes["plain"] = PASS_THROUGH
    produce("plain", b"2")
    produce("orders", b"2", b"k")
    ground.held.route("plain")
    ground.held.route("orders")
    produce("plain", b"3")
    produce("plain", b"4")
    produce("orders", b"3", b"k")
    ground.state.renew(monotonic() + 1000)
    ground.held.release()
    given = [(arguments[0], arguments[1]) for arguments in ground.rdkafka.given]
    assert given == [("plain", b"%d" % n) for n in (1, 2, 3, 4)] + [("orders", b"%d" % n) for n in (1, 2, 3)]


def test_a_full_queue_in_the_middle_of_what_waits_lets_nothing_newer_pass() -> None:
    ground = Ground()
    general = ground.held
    produce = ground.producing(general.produce, ground.callback)
    for value in (b"1", b"2"):
        ground.held.hold_unrouted("plain", ground.content(value), -1)
    ground.state.routes["plain"] = PASS_THROUGH
    ground.rdkafka.room = 1
    ground.held.route("plain")
    ground.rdkafka.room = 10
    produce("plain", b"3")
    ground.held.route("plain")
    produce("plain", b"4")
    assert ground.rdkafka.values == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("short", [True, False])
def test_no_record_passes_through_after_the_lease_although_the_librarys_thread_is_late(
    key: bytes | None, short: bool
) -> None:
    """Its topic may be enrolled by then, and split: an unstamped record would be read out of order."""
    ground = Ground()
    produce = ground.producing(ground.held.produce, ground.callback)
    ground.state.routes["plain"] = PASS_THROUGH
    if short:
        produce("plain", b"1", key)
    ground.state.lease_until = monotonic()
    produce("plain", b"2", key)
    produce("plain", b"3", key)
    ground.held.route("plain")
    assert ground.rdkafka.values == [b"1"][: int(short)]
    ground.state.renew(monotonic() + 1000)
    produce("plain", b"4", key)
    assert ground.rdkafka.values == [b"1"][: int(short)], "the topic was not looked up under this lease"
    ground.state.routes["plain"] = PASS_THROUGH
    ground.held.route("plain")
    produce("plain", b"5", key)
    assert ground.rdkafka.values == [b"1", b"2", b"3", b"4", b"5"][not short :]


def test_a_topic_without_enrolment_takes_the_short_path_until_that_may_have_changed() -> None:
    ground = Ground()
    seen: list[str] = []

    def general(topic: str, *arguments: Any) -> None:
        seen.append(topic)
        ground.held.produce(topic, *arguments)

    produce = ground.producing(general, ground.callback)
    ground.state.routes["plain"] = PASS_THROUGH
    for change in (lambda: None, ground.state.lapse, ground.plain.count):
        ground.state.renew(monotonic() + 1000)
        ground.state.routes["plain"] = PASS_THROUGH
        for _ in range(3):
            produce("plain", b"v", b"k", headers={"h": b"1"})
        change()
    assert seen == ["plain", "plain"], "the first one, and the first one after the lease ran out"
    produce("plain", b"counted")
    produce("plain", b"counted")
    assert len(seen) == 4, "while records are counted all take the path that counts"
    assert ground.rdkafka.given[0][:4] == ("plain", b"v", b"k", -1)
    assert [arguments[7] for arguments in ground.rdkafka.given[:9]] == [{"h": b"1"}] * 9
    for number in range(len(ground.rdkafka.given)):
        ground.rdkafka.report(number)
    assert len(ground.told) == 11


def test_a_transaction_that_begins_while_reports_are_collected_lets_no_callback_through() -> None:
    """The library's thread must not run the application's callback, whatever the application does then."""
    ground = Ground()
    ground.send(b"a")

    def poll(_: float) -> int:
        with ground.state.lock:
            ground.state.transaction(True)
        ground.rdkafka.report(0)
        return 1

    ground.poll = poll
    ground.state.collect()
    assert ground.told == []
    assert ground.state.callbacks.run() == 1 and ground.told == [(None, b"a")]


@pytest.mark.parametrize(
    "how", ["timed out while held", "timed out while pending", "astray", "given up", "nothing"]
)
def test_a_transaction_that_lost_a_record_must_be_aborted(how: str) -> None:
    ground, transactions = in_a_transaction(**{"message.timeout.ms": 1000})
    state = ground.state
    ground.send(b"a")
    if how == "nothing":
        ground.rdkafka.report(0)
        transactions.before_commit(Deadline(1.0))
        return
    state.lapse()
    if how == "timed out while held":
        ground.hold(b"b")
    else:
        ground.rdkafka.report(0, offset=5)
    if how == "astray":
        ground.observe(operated(UNSPLIT, SPLIT, {0: 1}))
        state.renew(monotonic() + 1000)
        ground.held.release()
    elif how == "given up":
        ground.held.fail_closed(KpsplitError("too new"))
    else:
        ground.held.expire(monotonic() + 2)
    with pytest.raises(KafkaException, match="abort it and do it again") as caught:
        transactions.before_commit(Deadline(1.0))
    assert caught.value.args[0].txn_requires_abort()
    transactions.before_abort()
    transactions.ended(aborted=True)
    transactions.begun()
    transactions.before_commit(Deadline(1.0))


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("change", ["leaves", "comes back"])
def test_a_topic_that_leaves_or_comes_back_changes_nothing_of_what_a_transaction_lost(
    change: str, lost: int
) -> None:
    """A record of it went astray once, in a transaction that was aborted and done again."""
    ground, transactions = in_a_transaction()
    state = ground.state
    ground.send(b"a")
    state.lapse()
    ground.rdkafka.report(0, offset=5)
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}))
    state.renew(monotonic() + 1000)
    ground.held.release()
    ground.rdkafka.report(1)
    transactions.ended(aborted=True)

    def leave() -> None:
        state.parted[PARENT] = ground.fence
        state.remove_route("orders")

    def come_back() -> None:
        state.add_route("orders", TopicRoute(enrolment, [state.parted.pop(PARENT)]))

    enrolment = state.topic_routes()[0].enrolment
    if change == "comes back":
        leave()
    transactions.begun()
    (leave if change == "leaves" else come_back)()
    if not lost:
        transactions.before_commit(Deadline(1.0))
        return
    ground.held.hold_unrouted("bills", ground.content(b"b"), -1)
    ground.held.purge()
    with pytest.raises(KafkaException, match='"1 records of the transaction'):
        transactions.before_commit(Deadline(1.0))


def test_a_record_of_an_aborted_transaction_that_fails_later_spoils_no_other_one() -> None:
    ground, transactions = in_a_transaction()
    state = ground.state
    ground.send(b"a")
    state.lapse()
    ground.rdkafka.report(0, offset=5)
    transactions.before_abort()
    transactions.ended(aborted=True)
    transactions.begun()
    ground.observe(operated(UNSPLIT, SPLIT, {0: 1}))
    state.callbacks.run()
    assert ground.told == [(KafkaError._PURGE_INFLIGHT, b"a")]
    transactions.before_commit(Deadline(1.0))


def test_a_commit_waits_until_what_is_acknowledged_is_final() -> None:
    ground, transactions = in_a_transaction()
    state = ground.state
    ground.send(b"a")
    state.lapse()
    ground.rdkafka.report(0)
    with pytest.raises(KafkaException, match="wait for a fence") as caught:
        transactions.before_commit(Deadline(0.01))
    assert caught.value.args[0].retriable()
    state.renew(monotonic() + 1000)
    transactions.before_commit(Deadline(1.0))


def test_a_commit_waits_for_a_record_that_another_thread_is_told_of_while_it_looks() -> None:
    """The report takes the record from librdkafka to what is pending, between any two looks."""
    ground, transactions = in_a_transaction()
    state = ground.state
    ground.send(b"a")
    state.lapse()
    ground.queued, lock_is_free = 1, state.locked

    def locked(step: Any) -> Any:
        found = lock_is_free(step)
        if ground.queued:
            ground.rdkafka.report(0, offset=5)
            ground.queued = 0
        return found

    state.locked = locked  # type: ignore[method-assign]
    with pytest.raises(KafkaException, match="wait for a fence"):
        transactions.before_commit(Deadline(0.01))


@pytest.mark.parametrize("fatal", [True, False])
def test_only_a_fatal_error_ends_a_transaction_that_was_not_committed(fatal: bool) -> None:
    ground, transactions = in_a_transaction()
    state = ground.state

    def refuse(_: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=fatal))

    with pytest.raises(KafkaException):
        transactions.end(refuse, 1.0)
    assert state.in_transaction is not fatal


def test_only_errors_are_reported_where_only_errors_are_wanted() -> None:
    ground = Ground(**{"delivery.report.only.error": True})
    ground.send(b"a")
    ground.send(b"b")
    ground.rdkafka.report(0)
    ground.rdkafka.report(1, error=KafkaError(KafkaError._MSG_TIMED_OUT))
    ground.state.callbacks.run()
    assert ground.told == [(KafkaError._MSG_TIMED_OUT, b"b")]


def test_the_queue_limits_count_what_is_held() -> None:
    ground = Ground(**{"queue.buffering.max.messages": 3})
    ground.state.lapse()
    ground.hold(b"a", b"b")
    ground.held.room()
    with pytest.raises(BufferError):
        ground.queued = 1
        ground.held.room()
    small = Ground(**{"queue.buffering.max.kbytes": 1})
    small.state.lapse()
    small.hold(b"x" * 2000)
    with pytest.raises(BufferError):
        small.held.room()
