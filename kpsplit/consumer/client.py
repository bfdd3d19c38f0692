"""The drop-in Consumer and DeserializingConsumer (protocol, section 10)."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.consumer.broker_executor import QueryClient, answer
from kpsplit.consumer.config import split_config
from kpsplit.consumer.events import Events, Rebalanced
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.polling import Poller
from kpsplit.consumer.session import CLOSE_SECONDS, ConsumerSession
from kpsplit.consumer.slots.assigned_slots import MemberSlot, StateBinding
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import Place, headers_of

if TYPE_CHECKING:
    from kpsplit.consumer.run.policies import RunOptions
    from kpsplit.consumer.run.work_queue import RunStats
    from kpsplit.consumer.state.slots import StateHooks

COMMIT_SECONDS = 60.0

K = TypeVar("K")
V = TypeVar("V")


class Consumer(confluent_kafka.Consumer):
    """Drop-in for ``confluent_kafka.Consumer``; changing the import is the whole migration.

    Topics that were enrolled with kpsplit are read along their lineage, through every split and merge; their
    partitions are shared by key range, so that a group may have more members than partitions. Topics that
    are not enrolled, and clusters without kpsplit, are read as ever. Topic, partition and offset are the
    logical ones.

    Settings of its own: ``kpsplit.fetch.buffer.bytes`` (64 MiB), ``kpsplit.revocation.timeout.ms`` (30 s),
    ``kpsplit.revocation.policy`` (retry-then-leave, leave, retry), ``kpsplit.gap.policy`` (error,
    skip-and-report), ``kpsplit.messages`` (auto, logical). Differences from the original:
    ``partition.assignment.strategy`` is cooperative-sticky unless set otherwise, and records count as
    processed when the next ``poll()`` asks for more.

    Like the original it may be used from several threads, one of them polling.

    Args:
        config: the application's configuration; further positional arguments and keywords as in the original.
        state: a ``kpsplit.StateStore``. It follows the slots: none of their records is handed
            out before their state is there, and what handlers write is committed with their positions. The
            application closes it, after the Consumer.

    Raises:
        ConfigurationError: a ``kpsplit.`` setting is unknown or malformed, or the state is another group's.
        UsageError: another Consumer uses the state. KafkaException: librdkafka refused a setting.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *args: Any,
        state: StateHooks | None = None,
        **kwargs: Any,
    ) -> None:
        # The base class is here for isinstance(); its own client is never made.
        merged = {**(config or {}), **{k: v for k, v in kwargs.items() if k != "logger"}}
        self._buffer = FetchBuffer()
        self._events = Events(self._buffer.ask_attention)
        self._poller = Poller(self._buffer, self._events)
        callbacks = {n: merged[n] for n in ("error_cb", "throttle_cb", "stats_cb") if callable(merged.get(n))}
        later = {name: self._events.in_application(callback) for name, callback in callbacks.items()}
        rdkafka, settings = split_config({**merged, **later})
        self._events.error_cb = merged.get("error_cb")
        extra = {"logger": kwargs["logger"]} if "logger" in kwargs else {}
        self._group = GroupConsumer(rdkafka, incremental=settings.incremental, **extra)
        self._connection = Connection.of_application(merged)
        self._query_client = QueryClient(self._connection, settings.group)
        self._settings = settings
        self._session: ConsumerSession | None = None
        self._first_call = threading.RLock()  # again in a signal handler
        self._beginning = False
        self._state: StateHooks | None = None
        self._keep(state)
        self._stops: queue.SimpleQueue[bool] = queue.SimpleQueue()
        if type(self).poll is Consumer.poll:
            self.__dict__["poll"] = self._poller.poll  # one call less per record

    # -- subscription ------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Subscribe to topics and ``^patterns``; this replaces an earlier subscription.

        The callbacks get logical partitions: on_assign those of which a slot arrives where there was none,
        on_revoke those of which a slot leaves. Where other slots of such a partition stay, on_assign
        follows at once.
        """
        if not isinstance(topics, list) or not all(isinstance(t, str) for t in topics):
            raise TypeError("expected list of topic unicode strings")
        for callback in (on_assign, on_revoke, on_lost):
            if callback is not None and not callable(callback):
                raise TypeError("on_assign, on_revoke and on_lost expect a callable")
        session = self._running()

        def subscribe() -> None:
            session.calls.subscribe(topics)  # first: it may refuse
            session.engine.membership.callbacks.use(self, on_assign, on_revoke, on_lost)

        session.ask(subscribe)

    def unsubscribe(self) -> None:
        """Give up the subscription; a revocation follows."""
        session = self._running()
        session.ask(session.engine.subscribing.leave)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions, whole, without a group; in on_assign: where to start."""
        self._known_session().assign(partitions, more=False)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too; in on_assign: where to start."""
        self._known_session().assign(partitions, more=True)

    def assign_slots(self, slots: Sequence[tuple[str, int, int]], bookmarks: Iterable[str] = ()) -> None:
        """Read single slots (topic, partition, index of the key range) without a group: your own assignment.

        ``bookmarks`` (of ``slots()``) say where they start; keys without one start as ever. Of several for a
        key the furthest counts. In on_assign: where slots that arrive start; it is then called for every one.

        Nothing fences two owners of one slot from each other. A group with members refuses the commits.

        Raises:
            UsageError: a topic has no such slot, or the bookmarks are of another topic of the same name.
            RecordError: a bookmark is malformed, or a newer kpsplit's.
        """
        self._known_session().assign_slots(slots, bookmarks)

    def unassign(self) -> None:
        """Let go of partitions that were assigned by hand; in on_revoke this is done already."""
        if not self._events.inside_callback():
            session = self._running()
            self._buffer.processed()
            session.ask(lambda: session.calls.let_go(list(session.engine.slots)))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let go of some partitions that were assigned by hand; in on_revoke this is done already."""
        if not self._events.inside_callback():
            session = self._running()
            self._buffer.processed()
            session.ask(lambda: session.calls.unassign(partitions))

    def assignment(self) -> list[TopicPartition]:
        """Return the logical partitions of which at least one slot is assigned."""
        self._poller.check_open()
        session = self._session
        return [] if session is None else session.ask(session.calls.assignment)

    # -- records -----------------------------------------------------------------------------------

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return the next record or error event, None if there is none in time; run callbacks.

        Everything that was returned before counts as processed from now on.

        Raises:
            KpsplitError: a newer kpsplit writes its topics. Exception: what a callback raised.
        """
        return self._poller.poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Return up to so many records and error events, those that come in time; run callbacks.

        What was found is returned early where a slot that is taken away waits for it, and by the next call
        where a callback raises.

        Raises:
            ValueError: ``num_messages`` is not between 0 and 1000000. Others: as ``poll``.
        """
        if not 0 <= num_messages <= 1_000_000:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        return self._poller.consume(num_messages, timeout)

    # -- commits -----------------------------------------------------------------------------------

    def commit(  # type: ignore[override]
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit what was handed out, or everything up to a message, or below logical offsets.

        Synchronous: returns what was committed. Asynchronous: ``on_commit`` is called.

        Raises:
            KafkaException: nothing to commit (_NO_OFFSET), the slots are another member's
                (ILLEGAL_GENERATION), or the brokers did not take it.
        """
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None and message.error() is not None:
            raise KafkaException(message.error())
        session = self._known_session()
        if message is None and offsets is None:
            self._buffer.processed()
        mark = self._buffer.mark()
        future: Future[list[TopicPartition]] | None = None if asynchronous else Future()

        def commit() -> None:
            session.calls.commit(session.calls.chosen(message, offsets, mark), future)

        session.ask(commit)
        return None if future is None else answer(future, COMMIT_SECONDS)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Say what is processed, for the next commit; with ``enable.auto.offset.store=false``.

        Raises:
            KafkaException: the partition is not assigned, or offsets are stored automatically.
        """
        if (message is None) == (offsets is None):
            raise ValueError("expected either message or offsets")
        if self._settings.auto_store:
            reason = "enable.auto.offset.store must be set to False when using this API"
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, reason))
        session = self._known_session()
        mark = self._buffer.mark()
        session.ask(lambda: session.calls.store(session.calls.chosen(message, offsets, mark)))

    def committed(
        self, partitions: list[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the group's committed logical offsets: everything below is processed."""
        return self._known_session(timeout).committed(partitions, timeout)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the next logical offset per partition; OFFSET_INVALID where nothing was handed out."""
        session, mark = self._running(), self._buffer.mark()
        return session.ask(lambda: session.calls.positions(partitions, mark))

    def seek(self, partition: TopicPartition) -> None:
        """Read a partition's slots from a logical offset, OFFSET_BEGINNING or OFFSET_END."""
        self._running().seek(partition)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Hand out nothing of partitions until ``resume``."""
        session = self._running()
        session.ask(lambda: session.calls.pause(partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Hand out records of partitions again."""
        session = self._running()
        session.ask(lambda: session.calls.resume(partitions))

    # -- questions ---------------------------------------------------------------------------------

    def get_watermark_offsets(  # type: ignore[override]
        self, partition: TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """Return the least logical offset that can be read, and one more than the greatest."""
        return self._known_session(timeout).watermarks(partition, timeout)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the least logical offset whose record is not older than the time given as an offset."""
        return self._known_session(timeout).at_times(partitions, timeout)

    def list_topics(self, *args: Any, **kwargs: Any) -> Any:
        """Return the cluster's topics, as ``confluent_kafka.Consumer.list_topics`` does."""
        self._poller.check_open()
        return self._query_client.client.list_topics(*args, **kwargs)

    def cluster_id(self, *args: Any, **kwargs: Any) -> Any:
        """Return the cluster's id."""
        self._poller.check_open()
        return self._query_client.client.cluster_id(*args, **kwargs)

    def memberid(self) -> Any:
        """Return the member's id in the group."""
        self._poller.check_open()
        return self._of_group(self._group.memberid)

    def consumer_group_metadata(self) -> Any:
        """Return who this consumer is in its group, for a producer's transaction."""
        self._poller.check_open()
        return self._of_group(self._group.metadata)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these from now on, with every client of this consumer: see the producer's.

        So does its state store, if it logs in as the same user.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed.
            RuntimeError: it is closed.
        """
        self._poller.check_open()
        before = self._connection.get("sasl.username")
        self._connection.set_sasl_credentials(username, password)
        if self._state is not None:
            self._state.user_changed(before, username, password)
        self._of_group(lambda: self._group.set_sasl_credentials(username, password))

    def place(self, message: Message) -> Place | None:
        """Return where a message is stored: segment, epoch, real topic, partition and offset."""
        session = self._running()
        return session.ask(lambda: session.calls.place(message))

    def slots(self) -> list[MemberSlot]:
        """Return the key ranges that this member has: how far each is handed out, and what is committed."""
        session, mark = self._running(), self._buffer.mark()
        return session.ask(lambda: session.calls.slots(mark))

    def stats(self) -> Mapping[str, Any]:
        """Return what the member does now, its slots, and how often things have happened."""
        session = self._running()
        return session.ask(session.engine.statistics)

    # -- workers -----------------------------------------------------------------------------------

    def run(self, handler: Callable[[Any], Any], **options: Unpack[RunOptions]) -> RunStats:
        """Call a handler with each record, several at once, until ``stop()``, Ctrl-C or SIGTERM.

        Each worker works on another key range: keys keep their order, and a slow or failing key holds up its
        own range only. Records count as processed when the handler returns; that is committed every
        ``auto.commit.interval.ms``, whatever ``enable.auto.commit`` says. Callbacks run in this thread.

        Raises:
            HandlerError: a handler failed, and the policy is to stop. UsageError: the options do not fit.
        """
        from kpsplit.consumer.run.runner import run

        return run(self, handler, **options)

    def stop(self) -> None:
        """Make ``run()`` finish what is being worked on, commit and return; from any thread or handler."""
        self._stops.put(True)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Hand everything over, leave the group, end; callbacks run meanwhile.

        In a signal handler that interrupts ``poll()`` this returns at once, and ``poll()`` closes before it
        ends.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised first, after all ran.
        """
        if self._poller.closed:
            return
        if self._events.inside_callback():
            raise KpsplitError("close() was called inside a callback", hint="return from it first")
        with self._first_call:
            session = self._session
            if session is None:
                self._close_unused()
                return
        if session.engine.reads_here():
            self._poller.before_end = self.close
            self._buffer.attention = True  # without its lock, which this thread may hold
            return
        raised = session.close()
        self._poller.end()
        self._let_go_of_state()
        if raised is not None:
            raise raised

    def __enter__(self) -> Self:
        """Return self; ``close`` is called at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # -- inside ------------------------------------------------------------------------------------

    def _keep(self, state: StateHooks | None) -> None:
        """Keep state in a store from now on; before the first session."""
        if state is not None:
            state.bind(self._settings.group, self._connection)
            self._state = state

    def _close_unused(self) -> None:
        """Close before any call has begun a session; one that is being begun around us ends by itself."""
        self._poller.end()
        if not self._beginning:
            self._group.close()
            self._query_client.close()
            self._let_go_of_state()

    def _let_go_of_state(self) -> None:
        if self._state is not None:
            self._state.unbind()

    def _of_group(self, question: Callable[[], Any]) -> Any:
        """Ask the group consumer, in the thread that owns it."""
        self._poller.check_open()
        return question() if self._session is None else self._session.ask(question)

    def _running(self) -> ConsumerSession:
        self._poller.check_open()
        if self._session is not None:
            return self._session
        with self._first_call:
            return self._session or self._begun_session()

    def _begun_session(self) -> ConsumerSession:
        """Begin the session, under the lock, which a signal handler passes in the thread that holds it."""
        self._poller.check_open()
        if self._beginning:
            raise KpsplitError(
                "this call came inside the first call, from a signal handler", hint="set a flag there"
            )
        self._beginning = True
        try:
            session = self._made_session()
        finally:
            self._beginning = False
        if self._poller.closed:  # by a signal handler
            session.engine.close()
            session.engine.ended(CLOSE_SECONDS)
            self._let_go_of_state()
            self._poller.check_open()
        self._session = session
        return session

    def _made_session(self) -> ConsumerSession:
        session = ConsumerSession(
            self._connection,
            self._settings,
            self._group,
            self._query_client,
            self._buffer,
            self._events,
            self._poller.pulse,
            StateBinding(self._state),
        )
        self._poller.reads_here = session.engine.reads_here
        weakref.finalize(self, session.engine.close)
        return session

    def _known_session(self, timeout: float | None = None) -> ConsumerSession:
        session = self._running()
        session.until_known(timeout)
        return session


class _ReadableHeaders(Consumer):
    """Hands out records whose headers deserialisers can ask for."""

    def poll(self, timeout: float | None = -1) -> Message | None:
        message = super().poll(timeout)
        if message is not None:
            headers_of(message)
        return message


class DeserializingConsumer(  # type: ignore[misc]
    confluent_kafka.DeserializingConsumer, _ReadableHeaders, Generic[K, V]
):
    """Drop-in for ``confluent_kafka.DeserializingConsumer``, with the same deserialiser settings.

    Args:
        conf: the application's configuration.
        state: as for ``Consumer``. A key that was deserialised does not tell the record's slot: handlers of
            ``run()`` find their state, whoever polls uses ``Consumer``.
    """

    def __init__(self, conf: dict[str, Any], *, state: StateHooks | None = None) -> None:
        super().__init__(conf)
        self._keep(state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        """Close."""
        self.close()
