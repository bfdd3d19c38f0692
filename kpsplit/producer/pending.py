"""What becomes of a record that the fast path does not take: it is sent, or held.

Held records are kept in order, sent when they may be, failed when they must be.
Those of an enrolled topic wait in its send states; those of a topic that was not looked up yet, or whose look
is stale, wait by topic (``ProducerState.unrouted``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import index
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.errors import KpsplitError
from kpsplit.producer.finality import Outgoing
from kpsplit.producer.locks import holds_lock, refuse_reentry
from kpsplit.producer.messages import Callback, Headers, PendingRecord, Unrouted, failed_message
from kpsplit.producer.sending import PassThroughSender, StampedSender
from kpsplit.producer.state import PASS_THROUGH, PassThrough, ProducerState, SendState, TopicRoute
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition

_NOT_FINAL_IN_TIME = KafkaError(
    KafkaError._MSG_TIMED_OUT,
    "not known to be final within the message timeout: it may have been written, and is not sent again",
)
_NOT_FINAL_AT_THE_END = KafkaError(
    KafkaError._PURGE_INFLIGHT,
    "not known to be final when the producer was closed: it may have been written",
)

RELEASED_AT_ONCE = 500
"""How many held records one turn sends with the lock taken, so that produce() never waits for long."""


class HeldRecords:
    """See the module. ``bytes``: what records hold that librdkafka was never given.

    ``start`` starts the library's thread if need be.
    """

    def __init__(
        self,
        state: ProducerState,
        stamped: StampedSender,
        plain: PassThroughSender,
        start: Callable[[], None],
    ) -> None:
        self._state = state
        self._stamped = stamped
        self._plain = plain
        self._start = start
        self.bytes = 0

    # -- what comes in -----------------------------------------------------------------------------

    @holds_lock
    def produce(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        callback: Callback | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Send or hold one record; raises what ``Producer.produce`` does."""
        if isinstance(key, str):
            key = key.encode()
        state = self._state
        refuse_reentry(state.lock, 2)  # this frame, and the fast path's
        if state.lock.wanted:
            state.lock.let_pass()
        with state.lock:
            if not state.accepting and state.fatal is None:
                raise KpsplitError("the Producer is closed", hint="make a new one")
            route = state.route(topic)
            if topic in state.unrouted:
                route = None  # after what waits there already
            if route is PASS_THROUGH:
                self._plain.send(topic, value, key, partition, callback, timestamp, headers)
                return
            self._check_transaction()
            content = PendingRecord(value, key, timestamp, headers, callback, monotonic())
            if isinstance(route, TopicRoute):
                self._enrolled(route, partition, content)
            else:
                self._unrouted(topic, partition, content)

    def _check_transaction(self) -> None:
        """Refuse as librdkafka does. A producer takes its transactional id before it registers."""
        state = self._state
        if state.fatal is None and state.settings.transactional_id and not state.in_transaction:
            outside = "a transactional producer sends inside a transaction: begin one"
            raise KafkaException(KafkaError(KafkaError._STATE, outside))

    def _enrolled(self, route: TopicRoute, partition: int, content: PendingRecord) -> None:
        send_state = route.choose(content.key, index(partition))
        hashed = None if content.key is None else key_hash(content.key)
        writer = send_state.writer_for(hashed, send_state.next_sequence)
        if writer.open:
            self._stamped.send_new(send_state, writer, content)
        else:
            self.room()
            self.hold(send_state, content)

    def _unrouted(self, topic: str, partition: int, content: PendingRecord) -> None:
        state = self._state
        if state.fatal is not None:
            raise state.fatal
        refusal = state.refused.get(topic)
        if refusal is not None:
            raise refusal[1]
        self.room()
        self._start()  # first: if that fails, nothing is held
        self.hold_unrouted(topic, content, partition)

    def room(self) -> None:
        """Raise BufferError when the queue limits are reached, as librdkafka does (``lock`` held)."""
        settings = self._state.settings
        queued = self._state.rdkafka.queued()
        if queued + self._state.tally.count >= settings.queue_messages or self.bytes > settings.queue_bytes:
            raise BufferError("Local: Queue full")

    def hold(self, send_state: SendState, content: PendingRecord) -> None:
        """Keep a record until its segment opens (``lock`` held); raises what ``PendingRecord.check`` does."""
        content.check()
        if self._state.fatal is not None:
            raise self._state.fatal
        self.bytes += content.size()
        send_state.hold(None if content.key is None else key_hash(content.key), content)
        self._state.wake.set()

    def hold_unrouted(self, topic: str, content: PendingRecord, partition: int) -> None:
        """Keep a record until its topic is looked up (``lock`` held); raises as ``hold`` does."""
        content.check()
        if not isinstance(topic, str):
            raise TypeError("topic must be a str")
        topic.encode()
        partition = index(partition)
        if not -(2**31) <= partition < 2**31:
            raise OverflowError("the partition does not fit into 32 bits")
        item = Unrouted(content, partition)
        self.bytes += content.size()
        keep = self._state.unrouted.setdefault(topic, deque()).append
        self._state.tally.count += 1  # a signal handler may raise after any call
        keep(item)
        self._state.wake.set()

    # -- what may be sent --------------------------------------------------------------------------

    def route(self, topic: str) -> None:
        """Give the records of a topic that was just looked up to its send states (``lock`` held)."""
        route = self._state.route(topic)
        queue = self._state.unrouted.get(topic)
        if route is None or queue is None:
            return
        while queue:
            item = queue[0]
            try:
                self._route_one(topic, route, item)
            except BufferError:
                return
            except Exception as error:  # noqa: BLE001 - this record is refused; those after it go on
                self._fail(_place(topic, item), item.content, kafka_error(error))
            queue.popleft()
            self._state.tally.count -= 1
        del self._state.unrouted[topic]

    def release(self) -> int:
        """Send what may be sent now, in order, but not very much at once (``lock`` held); return how many."""
        return sum(self._release_fence(f) for f in self._state.active() if f.waiting())

    # -- what fails --------------------------------------------------------------------------------

    def fail_unrouted(self, topic: str, error: Any) -> None:
        """Fail the waiting records of a topic whose lookup failed (``lock`` held)."""
        for item in self._state.unrouted.pop(topic, ()):
            self._state.tally.count -= 1
            self._fail(_place(topic, item), item.content, error)

    def fail_all(self, error: Any) -> None:
        for send_state in self._state.send_states():
            for record in send_state.drop_waiting():
                self._fail(send_state.state.parent, record.payload, error)
        for topic in list(self._state.unrouted):
            self.fail_unrouted(topic, error)

    def expire(self, now: float) -> None:
        """Fail records that have waited longer than the message timeout (``lock`` held).

        Those that wait to be sent, and those that the broker acknowledged and that are not final since: they
        may have been written, and are never sent again.
        """
        oldest = now - self._state.settings.message_timeout
        error = KafkaError(KafkaError._MSG_TIMED_OUT)
        for send_state in self._state.active():
            if send_state.waiting():
                for record in send_state.drop_waiting(lambda r: r.payload.accepted_at > oldest):
                    self._fail(send_state.state.parent, record.payload, error)
        for topic, queue in self._state.unrouted.items():
            while queue and queue[0].content.accepted_at <= oldest:
                item = queue.popleft()
                self._state.tally.count -= 1
                self._fail(_place(topic, item), item.content, error)
        for send_state in self._state.active():
            if send_state.pending():
                late = send_state.give_up_pending(lambda record: record.payload.accepted_at > oldest)
                self._state.report(send_state, late, _NOT_FINAL_IN_TIME)

    def purge(self) -> None:
        self.fail_all(KafkaError(KafkaError._PURGE_QUEUE))

    def fail_rest(self) -> None:
        """Fail everything that waits or is not final (``lock`` held): the producer is closed."""
        self.purge()
        for send_state in self._state.send_states():
            self._state.report(send_state, send_state.give_up_pending(), _NOT_FINAL_AT_THE_END)

    def fail_closed(self, error: KpsplitError) -> None:
        """Fail everything that is not final, and refuse everything from now on (``lock`` held)."""
        self._state.lapse()
        self._state.fatal = error
        self.fail_all(kafka_error(error))
        for send_state in self._state.send_states():
            self._state.report(send_state, send_state.give_up_pending())

    # -- inside ------------------------------------------------------------------------------------

    def _route_one(self, topic: str, route: TopicRoute | PassThrough, item: Unrouted) -> None:
        content = item.content
        if isinstance(route, TopicRoute):
            send_state = route.choose(content.key, item.partition)
            send_state.hold(None if content.key is None else key_hash(content.key), content)
            return
        self._plain.send(
            topic, content.value, content.key, item.partition, content.callback, content.timestamp,
            content.headers,
        )  # fmt: skip
        self.bytes -= content.size()

    def _release_fence(self, send_state: SendState) -> int:
        gone: list[Outgoing[PendingRecord]] = []
        try:
            for writer, record in send_state.sendable(RELEASED_AT_ONCE):
                content = record.payload
                try:
                    self._stamped.send(send_state, writer, record.sequence, content)
                except BufferError:
                    break  # librdkafka's queue is full: those after it keep their order, and wait
                except Exception as error:  # noqa: BLE001 - this record is refused; those after it go on
                    gone.append(record)
                    send_state.refuse(record)
                    self._fail(send_state.state.parent, content, kafka_error(error))
                else:
                    gone.append(record)
                    if content.message is None:
                        self.bytes -= content.size()
        finally:
            if gone:  # also after an exception: what librdkafka took must never be sent again
                send_state.sent(gone)
                self._state.refresh(send_state)
        return len(gone)

    def _fail(self, parent: PhysicalPartition, content: PendingRecord, error: Any) -> None:
        self._state.failures += 1
        if content.message is None:
            self.bytes -= content.size()
        if content.callback is not None:
            self._state.callbacks.put(content.callback, error, failed_message(parent, content, error))


def kafka_error(error: Exception) -> Any:
    """Return librdkafka's error of an exception, as delivery reports carry it."""
    if isinstance(error, KafkaException) and error.args:
        return error.args[0]
    text = str(error).encode(errors="backslashreplace").decode()  # an error's text cannot hold everything
    return KafkaError(KafkaError._INVALID_ARG, text)


def _place(topic: str, item: Unrouted) -> PhysicalPartition:
    return PhysicalPartition(topic, max(item.partition, 0))
