"""Routes, holds, reports: the parts of a Producer that need no broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.config import split_config
from kpsplit.producer.dispatcher import PASS_THROUGH, Dispatcher
from kpsplit.producer.fence import PartitionFence
from kpsplit.producer.messages import Content
from kpsplit.producer.routes import Fence, RouteWriter, TopicRoute
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.stamp import HEADER
from tests.unit.samples import fenced, operated, split_attempt

PARENT = PhysicalPartition("orders", 0)
UNSPLIT = PartitionState.unsplit(PARENT, "id")
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))


class Librdkafka:
    """What was given to produce(), and what its reports will say."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.room = 1000
        self.refuse: Exception | None = None

    def produce(self, *arguments: Any) -> None:
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
    """A dispatcher with one enrolled topic of one partition, and a valid lease."""

    def __init__(self, **settings: Any) -> None:
        _, parsed = split_config(settings)
        self.rdkafka = Librdkafka()
        self.dispatcher = Dispatcher(parsed, 7, self.rdkafka.produce)
        self.fence: Fence = PartitionFence(UNSPLIT, lambda s: RouteWriter(s, PARENT))
        enrolment = Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, True)
        self.dispatcher.add_route("orders", TopicRoute(enrolment, [self.fence]))
        self.dispatcher.renew(monotonic() + 1000)
        self.told: list[tuple[Any, Any]] = []

    def callback(self, error: Any, message: Any) -> None:
        self.told.append((error and error.code(), message.value()))

    def content(self, value: bytes = b"v", **more: Any) -> Content:
        given = {"timestamp": 0, "headers": None, "callback": self.callback, "accepted_at": monotonic()}
        return Content(**{"value": value, "key": b"k", **given, **more})

    def send(self, value: bytes = b"v", **more: Any) -> RouteWriter:
        writer = self.fence.writers[0]
        self.dispatcher.send_now(self.fence, writer, self.fence.next_sequence, self.content(value, **more))
        self.fence.next_sequence += 1
        return writer

    def hold(self, *values: bytes, **more: Any) -> None:
        for value in values:
            self.dispatcher.hold(self.fence, self.content(value, **more))


def test_a_report_under_a_valid_lease_goes_straight_to_the_application() -> None:
    ground = Ground()
    writer = ground.send(b"a")
    ground.rdkafka.report(0)
    assert ground.told == [(None, b"a")]
    assert (writer.done, writer.in_flight, writer.delivered) == (1, 0, 1)


def test_a_record_is_in_flight_until_its_report_is_in_hand() -> None:
    """The report waits for the lock while the library's thread applies the end of a fence."""
    ground = Ground()
    writer = ground.send(b"a")
    ground.dispatcher.lapse()
    with ground.dispatcher.lock:
        thread = threading.Thread(target=ground.rdkafka.report, args=(0, 5))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert writer.in_flight == 1
        ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
        assert ground.fence.closing == [writer]
    thread.join(5)
    assert ground.fence.statistics.strays == 1 and not any(w.open for w in ground.fence.writers)


def test_reports_of_closed_segments_are_never_final_at_once() -> None:
    ground = Ground()
    writer = ground.send(b"a")
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.rdkafka.report(0, offset=5)
    assert ground.told == [] and ground.fence.statistics.strays == 1
    assert writer.good_until == 0.0


def test_reports_that_the_librarys_thread_takes_are_queued_for_the_application() -> None:
    ground = Ground()
    ground.send(b"a")
    ground.dispatcher.routes["plain"] = PASS_THROUGH
    ground.dispatcher.send_plain("plain", b"b", None, -1, ground.callback, 0, None)

    def poll(_: float) -> int:
        ground.rdkafka.report(0)
        ground.rdkafka.report(1)
        return 2

    ground.dispatcher.collect(poll)
    assert ground.told == [] and ground.fence.writers[0].delivered == 1
    assert ground.dispatcher.run_callbacks() == 2
    assert sorted(ground.told) == [(None, b"a"), (None, b"b")]


def test_a_record_that_librdkafka_refuses_fails_alone() -> None:
    ground = Ground()
    ground.dispatcher.lapse()
    ground.hold(b"a", b"bad", b"c")
    assert ground.dispatcher.held_bytes == 3 + 5
    ground.dispatcher.renew(monotonic() + 1000)
    ground.rdkafka.refuse = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert ground.dispatcher.release() == 3
    assert ground.rdkafka.values == [b"a", b"c"]
    ground.dispatcher.run_callbacks()
    assert ground.told == [(KafkaError.MSG_SIZE_TOO_LARGE, b"bad")]
    assert ground.fence.statistics.failed == [1]
    assert (ground.dispatcher.held_bytes, ground.fence.waiting(), ground.fence.writers[0].open) == (
        0,
        0,
        True,
    )


def test_a_full_queue_stops_the_release_where_it_is() -> None:
    ground = Ground()
    ground.dispatcher.lapse()
    ground.hold(b"a", b"b", b"c")
    ground.dispatcher.renew(monotonic() + 1000)
    ground.rdkafka.room = 2
    assert ground.dispatcher.release() == 2
    assert ground.dispatcher.release() == 0
    assert (ground.fence.waiting(), ground.fence.writers[0].open, ground.dispatcher.held_bytes) == (
        1,
        False,
        2,
    )
    ground.rdkafka.room = 3
    assert ground.dispatcher.release() == 1
    assert ground.rdkafka.values == [b"a", b"b", b"c"] and ground.fence.writers[0].open


def test_the_lock_is_never_kept_for_a_whole_queue() -> None:
    ground = Ground()
    ground.rdkafka.room = 10_000
    ground.dispatcher.lapse()
    ground.hold(*([b"v"] * 1200))
    ground.dispatcher.renew(monotonic() + 1000)
    assert [ground.dispatcher.release() for _ in range(4)] == [500, 500, 200, 0]


@pytest.mark.parametrize("wrong", [{"value": 3}, {"key": 5}, {"headers": 5}])
def test_a_record_of_the_wrong_type_is_refused_before_it_is_held(wrong: dict[str, Any]) -> None:
    ground = Ground()
    with pytest.raises(TypeError):
        ground.dispatcher.hold(ground.fence, ground.content(**wrong))
    with pytest.raises(TypeError):
        ground.dispatcher.hold_unrouted("other", ground.content(**wrong), -1)
    assert ground.dispatcher.waiting() == 0 and ground.dispatcher.held_bytes == 0


def test_a_strays_own_headers_and_time_are_sent_again() -> None:
    ground = Ground()
    ground.send(b"a", headers=[("h", b"1")], timestamp=9)
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.rdkafka.report(0, offset=5)
    assert ground.dispatcher.release() == 1
    topic, value, key, _, _, _, timestamp, headers = ground.rdkafka.given[1]
    assert (topic, value, key, timestamp) == (SPLIT.subtopic, b"a", b"k", 9)
    assert headers[0] == ("h", b"1") and headers[1][0] == HEADER
    first = ground.rdkafka.given[0][7]
    assert headers[1][1][-8:] == dict(first)[HEADER][-8:], "the sequence number stays"
    ground.rdkafka.report(1, offset=0)
    assert ground.told == [(None, b"a")]


def test_a_rejection_by_a_sealed_topic_waits_for_a_look_at_the_log() -> None:
    ground = Ground()
    split = operated(UNSPLIT, SPLIT, {0: 1})
    ground.fence.observe(split, lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.send(b"a")
    ground.dispatcher.lapse()
    ground.rdkafka.report(0, error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert ground.told == [] and ground.fence.pending() == 1


def test_inside_transactions_a_rejection_is_a_failure() -> None:
    ground = Ground(**{"transactional.id": "t"})
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.send(b"a")
    ground.dispatcher.lapse()
    ground.rdkafka.report(0, error=KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    ground.dispatcher.run_callbacks()
    assert ground.told == [(KafkaError.MSG_SIZE_TOO_LARGE, b"a")]


def test_records_that_wait_too_long_time_out_strays_as_well() -> None:
    ground = Ground(**{"message.timeout.ms": 1000})
    ground.send(b"stray")
    ground.fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.dispatcher.lapse()
    ground.hold(b"held")
    ground.dispatcher.hold_unrouted("other", ground.content(b"unrouted"), -1)
    ground.rdkafka.report(0, offset=5)
    ground.dispatcher.expire(monotonic())
    assert ground.dispatcher.waiting() == 3
    ground.dispatcher.expire(monotonic() + 2)
    ground.dispatcher.run_callbacks()
    assert sorted(ground.told, key=lambda t: t[1]) == [
        (KafkaError._MSG_TIMED_OUT, value) for value in (b"held", b"stray", b"unrouted")
    ]
    assert (ground.dispatcher.unresolved(), ground.dispatcher.held_bytes) == (0, 0)


def test_purge_fails_everything_that_waits() -> None:
    ground = Ground()
    ground.dispatcher.lapse()
    ground.hold(b"held")
    ground.dispatcher.hold_unrouted("other", ground.content(b"unrouted"), 3)
    ground.dispatcher.purge()
    ground.dispatcher.run_callbacks()
    assert ground.told == [(KafkaError._PURGE_QUEUE, b"held"), (KafkaError._PURGE_QUEUE, b"unrouted")]
    assert (ground.dispatcher.unresolved(), ground.dispatcher.held_bytes) == (0, 0)


def test_a_newer_format_fails_everything_and_refuses_everything_from_then_on() -> None:
    ground = Ground()
    ground.send(b"pending")
    ground.send(b"in flight")
    ground.fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    ground.dispatcher.refresh(ground.fence)
    ground.hold(b"held")
    ground.rdkafka.report(0)
    ground.dispatcher.fail_closed(KpsplitError("too new"))
    ground.rdkafka.report(1)
    ground.dispatcher.run_callbacks()
    assert [value for code, value in ground.told if code] == [b"held", b"pending", b"in flight"]
    assert ground.dispatcher.unresolved() == 0
    with pytest.raises(KpsplitError, match="too new"):
        ground.hold(b"more")


def test_every_queued_callback_runs_and_the_first_error_is_raised() -> None:
    ground = Ground()
    seen: list[int] = []

    def fails(number: int) -> None:
        seen.append(number)
        raise ValueError(number)

    for number in range(3):
        ground.dispatcher.callbacks.append((fails, (number,)))
    with pytest.raises(ValueError, match="0"):
        ground.dispatcher.run_callbacks()
    assert seen == [0, 1, 2] and ground.dispatcher.run_callbacks() == 0


def test_two_threads_may_run_queued_callbacks_at_the_same_time() -> None:
    ground = Ground()
    seen: list[int] = []
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        try:
            ground.dispatcher.run_callbacks()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be
            errors.append(error)

    for number in range(20_000):
        ground.dispatcher.callbacks.append((seen.append, (number,)))
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == [] and sorted(seen) == list(range(20_000))


def test_unstamped_records_are_settled_under_a_steady_stream_of_others() -> None:
    """The queue is never empty: later records of other topics are told from the older ones by counting."""
    ground = Ground()
    inside = 0

    def send_plain() -> int:
        nonlocal inside
        ground.dispatcher.send_plain("plain", b"x", None, -1, None, 0, None)
        inside += 1
        return len(ground.rdkafka.given) - 1

    def settled() -> bool:
        return ground.dispatcher.nothing_unstamped(lambda: inside)

    def report(number: int) -> None:
        nonlocal inside
        ground.rdkafka.report(number)
        inside -= 1

    send_plain()  # without a callback nothing is reported for it
    ground.dispatcher.count_plain()
    later = send_plain()
    ground.send(b"stamped")
    inside += 1
    assert not settled()
    inside -= 1  # the first one is through
    report(later)
    later = send_plain()
    assert inside == 2 and settled()


def test_only_errors_are_reported_where_only_errors_are_wanted() -> None:
    ground = Ground(**{"delivery.report.only.error": True})
    ground.send(b"a")
    ground.send(b"b")
    ground.rdkafka.report(0)
    ground.rdkafka.report(1, error=KafkaError(KafkaError._MSG_TIMED_OUT))
    ground.dispatcher.run_callbacks()
    assert ground.told == [(KafkaError._MSG_TIMED_OUT, b"b")]


def test_the_queue_limits_count_what_is_held() -> None:
    ground = Ground(**{"queue.buffering.max.messages": 3})
    ground.dispatcher.lapse()
    ground.hold(b"a", b"b")
    ground.dispatcher.room(0)
    with pytest.raises(BufferError):
        ground.dispatcher.room(1)
    small = Ground(**{"queue.buffering.max.kbytes": 1})
    small.dispatcher.lapse()
    small.hold(b"x" * 2000)
    with pytest.raises(BufferError):
        small.dispatcher.room(0)
