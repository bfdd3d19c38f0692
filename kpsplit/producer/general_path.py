"""What the hot path leaves: other partitioners, records without a key, held records, new topics."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from confluent_kafka import KafkaError, KafkaException

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.messages import Callback, Headers, PendingRecord
from kpsplit.producer.reentry import holds_lock, refuse_reentry
from kpsplit.producer.routes import PASS_THROUGH, TopicRoute
from kpsplit.splitter.key_range import key_hash


class GeneralPath:
    """See the module. ``queued`` is librdkafka's len(); ``start`` starts the library's thread if need be."""

    def __init__(self, dispatcher: Dispatcher, queued: Callable[[], int], start: Callable[[], None]) -> None:
        self._dispatcher = dispatcher
        self._queued = queued
        self._start = start
        self.closed = False

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
        """Send or hold one record.

        Raises:
            BufferError, KafkaException, KpsplitError, TypeError: as ``Producer.produce`` does.
        """
        if isinstance(key, str):
            key = key.encode()
        dispatcher = self._dispatcher
        refuse_reentry(dispatcher.lock, 2)  # this frame, and the hot path's
        if dispatcher.lock.wanted:
            dispatcher.lock.let_pass()
        with dispatcher.lock:
            if self.closed and dispatcher.fatal is None:
                raise KpsplitError("the Producer is closed", hint="make a new one")
            route = dispatcher.routes.get(topic)
            if topic in dispatcher.unrouted:
                route = None  # behind what waits there already
            if route is PASS_THROUGH:
                dispatcher.plain.send(topic, value, key, partition, callback, timestamp, headers)
                return
            self._check_transaction()
            content = PendingRecord(value, key, timestamp, headers, callback, monotonic())
            if isinstance(route, TopicRoute):
                self._enrolled(route, partition, content)
            else:
                self._unrouted(topic, partition, content)

    def _check_transaction(self) -> None:
        """Refuse as librdkafka does; besides, whoever registers has taken its transactional id."""
        dispatcher = self._dispatcher
        if (
            dispatcher.fatal is None
            and dispatcher.settings.transactional_id
            and not dispatcher.in_transaction
        ):
            outside = "a transactional producer sends inside a transaction: begin one"
            raise KafkaException(KafkaError(KafkaError._STATE, outside))

    def _enrolled(self, route: TopicRoute, partition: int, content: PendingRecord) -> None:
        dispatcher = self._dispatcher
        fence = route.choose(content.key, index(partition))
        hashed = None if content.key is None else key_hash(content.key)
        writer = fence.writer_for(hashed, fence.next_sequence)
        if writer.open:
            dispatcher.stamped.send_new(fence, writer, content)
        else:
            dispatcher.held.room(self._queued())
            dispatcher.held.hold(fence, content)

    def _unrouted(self, topic: str, partition: int, content: PendingRecord) -> None:
        """Keep a record until its topic was looked up."""
        dispatcher = self._dispatcher
        if dispatcher.fatal is not None:
            raise dispatcher.fatal
        refusal = dispatcher.refused.get(topic)
        if refusal is not None:
            raise refusal
        dispatcher.held.room(self._queued())
        self._start()  # first: if that fails, nothing is held
        dispatcher.held.hold_unrouted(topic, content, partition)
