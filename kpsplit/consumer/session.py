"""One consumer at work: the engine with everything around it, made when the first call needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaException

from kpsplit.clock import Deadline
from kpsplit.consumer.application_requests import ApplicationRequests
from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient, answer, timed_out
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.commit.offset_queries import OffsetQueries
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.engine import ANSWER_SECONDS, Clients, Engine
from kpsplit.consumer.events import Events, kafka_error
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.gaps import ReadingEvent
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.metadata import Metadata
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection

if TYPE_CHECKING:
    from kpsplit.consumer.state.hooks import StateHooks

T = TypeVar("T")

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
        pulse: Callable[[], int],
        state: StateHooks | None,
    ) -> None:
        self.events = events
        group_offsets = GroupOffsets(connection, query_client, settings.group, settings.reset)
        self.executor = BrokerExecutor("kpsplit-brokers", group_offsets)
        self.questions = OffsetQueries(group_offsets, query_client)
        reader = SlotReader(
            connection,
            settings.fetch,
            self._report,
            on_gap=settings.gap_policy,
            wrap_all=settings.wrap_all,
        )
        metadata = Metadata(connection)
        slots = AssignedSlots(metadata, reader, buffer, StateBinding(state), auto_store=settings.auto_store)
        clients = Clients(group, metadata, reader, query_client, self.executor)
        self.engine = Engine(settings, clients, slots, events, pulse)
        buffer.fetch = self.engine.pull
        self.calls = ApplicationRequests(
            slots, self.engine.committer, self.engine.membership, self.engine.subscribing, buffer
        )
        self.engine.start()

    def _report(self, event: ReadingEvent) -> None:
        self.engine.reading.report(event)  # the engine is made after the reader

    def ask(self, job: Callable[[], T]) -> T:
        """Have something done in the engine's thread and wait for it.

        Raises:
            KafkaException: no answer in time. Exception: what the job raised.
        """
        return self.engine.call(job)

    def look_up(self, job: Callable[[], T], seconds: float) -> T:
        """Have brokers asked in the executor's thread and wait for it.

        Raises:
            KafkaException: no answer in time, or none that helps.
        """
        try:
            return answer(self.executor.run(job), seconds)
        except KpsplitError as error:
            raise KafkaException(kafka_error(error)) from error

    def until_known(self, deadline: Deadline) -> None:
        """Wait until it is known which topics are enrolled.

        Raises:
            KafkaException: it could not be found out in time; the brokers' answer is in it.
        """
        while not self.ask(self.calls.known):
            if deadline.left() <= 0:
                trouble = self.engine.metadata.trouble
                raise timed_out(str(trouble) if trouble else "the cluster has not answered in time")
            self.engine.ended(LOOK_SECONDS)


def with_deadline(seconds: float | None, default: float = ANSWER_SECONDS) -> Deadline:
    """Return the deadline of a call whose timeout an application gave: None or negative is the default."""
    return Deadline(default if seconds is None or seconds < 0 else seconds)
