"""One consumer at work: the engine with everything around it, made when the first call needs it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.application_requests import ApplicationRequests
from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.commit.offset_queries import OffsetQueries
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.context import Context, Notice
from kpsplit.consumer.engine import Engine, timed_out
from kpsplit.consumer.events import Events, kafka_error, named
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.gaps import EndReached, ForeignFound, GapFound, ReadingEvent, Unreadable
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.metadata import Metadata
from kpsplit.consumer.slots.state_binding import StateBinding
from kpsplit.control.slots_topic import GrowingSlots
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.ports import Deadline as DeadlinePort
from kpsplit.splitter.reading import GapReason

if TYPE_CHECKING:
    from kpsplit.consumer.state.hooks import StateHooks

T = TypeVar("T")

ENGINE_SECONDS = 60.0
"""The engine answers within milliseconds; longer, and something is wrong."""
LOOK_SECONDS = 0.01


class ConsumerSession:
    """One consumer at work: the engine with everything around it, made when the first call needs it.

    Made and used by the application's thread; what it holds has owners of its own.
    """

    def __init__(
        self,
        connection: Connection,
        settings: ConsumerSettings,
        group: GroupConsumer,
        query_client: QueryClient,
        buffer: FetchBuffer,
        events: Events,
        pulse: Callable[[], int | None],
        state: StateHooks | None,
    ) -> None:
        self.connection = connection
        self.events = events
        self.executor = BrokerExecutor("kpsplit-brokers")
        group_offsets = GroupOffsets(self.connection, query_client, settings.group, settings.reset)
        self.questions = OffsetQueries(group_offsets, query_client)
        reader = SlotReader(
            self.connection,
            settings.fetch,
            lambda event: report(context, event),
            on_gap=settings.gap_policy,
            wrap_all=settings.wrap_all,
        )
        metadata = Metadata(self.connection)
        context = Context(
            settings=settings,
            group=group,
            metadata=metadata,
            reader=reader,
            sink=buffer,
            events=events,
            executor=self.executor,
            query_client=query_client,
            group_offsets=group_offsets,
            growing=GrowingSlots(metadata.admin, settings.metadata_refresh),
            state_binding=StateBinding(state),
        )
        self.context = context
        self.engine = Engine(context, pulse)
        self.calls = ApplicationRequests(self.engine, buffer)
        self.engine.start()

    def ask(self, job: Callable[[], T]) -> T:
        """Have something done in the engine's thread and wait for it.

        Raises:
            KafkaException: no answer in time. Exception: what the job raised.
        """
        return answer(self.engine.ask(job), ENGINE_SECONDS)

    def look_up(self, job: Callable[[], T], seconds: float) -> T:
        """Have brokers asked in the executor's thread and wait for it.

        Raises:
            KafkaException: no answer in time, or none that helps.
        """
        try:
            return answer(self.executor.run(job), seconds)
        except KpsplitError as error:
            raise KafkaException(kafka_error(error)) from error

    def until_known(self, deadline: DeadlinePort) -> None:
        """Wait until it is known which topics are enrolled.

        Raises:
            KafkaException: it could not be found out in time; the brokers' answer is in it.
        """
        while not self.ask(self.calls.known):
            if deadline.left() <= 0:
                trouble = self.context.metadata.trouble
                raise timed_out(str(trouble) if trouble else "the cluster has not answered in time")
            self.engine.ended(LOOK_SECONDS)


def answer(future: Future[T], seconds: float) -> T:
    """Return a future's result.

    Raises:
        KafkaException: it was not there in time.
    """
    try:
        return future.result(seconds)
    except FutureTimeoutError:
        raise timed_out("no answer in time") from None


def with_deadline(seconds: float | None, default: float = ENGINE_SECONDS) -> Deadline:
    """Return the deadline of a call whose timeout an application gave: None or negative is the default."""
    return Deadline(default if seconds is None or seconds < 0 else seconds)


log = logging.getLogger(__name__)

_BEGINNINGS = {"earliest", "latest"}
_OUTSIDE = {GapReason.EXPIRED, GapReason.CUT_OFF}


def report(context: Context, event: ReadingEvent) -> None:
    """Count it, and tell the application of it, or begin anew where ``auto.offset.reset`` says."""
    if _resets(context, event):
        return
    if isinstance(event, GapFound):
        context.counts["gaps"] += 1
        context.counts["gap_records"] += event.records
        _tell_gap(context, event)
    elif isinstance(event, ForeignFound):
        context.counts["foreign_records"] += event.count
    elif isinstance(event, EndReached):
        context.ends[event.parent] = event.offset
    else:
        context.counts["unreadable"] += 1
        context.trouble = event.error
        context.events.tell(kafka_error(event.error), **named(event.parent))


def _resets(context: Context, event: ReadingEvent) -> bool:
    """Have a partition begin anew whose offset is outside its log; tell whether it does. As the original.

    Only where the topic is not enrolled: there is no lineage that says what is missing.
    """
    if context.settings.reset not in _BEGINNINGS or isinstance(event, ForeignFound | EndReached):
        return False
    stops = isinstance(event, Unreadable) or event.error is not None
    reason = event.gap.reason if isinstance(event, GapFound) else event.reason
    if event.parent is None or not stops or reason not in _OUTSIDE:
        return False
    assigned_slots = [h for h in context.assigned_slots.of(event.parent) if h.mode is Mode.PLAIN]
    for assigned in assigned_slots:
        assigned.reset = True
        context.counts["offsets_reset"] += 1
        log.warning("kpsplit: %s; it begins anew at the %s offset", event.error, context.settings.reset)
    return bool(assigned_slots)


def _tell_gap(context: Context, event: GapFound) -> None:
    if event.error is not None:
        context.events.tell(
            KafkaError(KafkaError._AUTO_OFFSET_RESET, str(event.error)), **named(event.parent)
        )
        return
    what = f"{event.parent}: {event.gap}"
    log.warning("kpsplit: %s; it is skipped", what)
    callback = context.events.warn(KafkaError(KafkaError._AUTO_OFFSET_RESET, what))
    context.notices.append(Notice(event.parent, event.gap, callback))
