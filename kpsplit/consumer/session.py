"""One consumer at work: the engine with everything around it, made when the first call needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.consumer.application_requests import ApplicationRequests, OffsetQueries, SlotName, with_offsets
from kpsplit.consumer.broker_executor import BrokerExecutor, GroupMembers, QueryClient, answer, timed_out
from kpsplit.consumer.commit.group_offsets import ANSWER_SECONDS as BROKER_SECONDS
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.engine import ANSWER_SECONDS, Clients, Engine
from kpsplit.consumer.events import Events, kafka_error
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer, part_of
from kpsplit.consumer.metadata import Metadata
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.records.offsets import Bookmark, decode_bookmark

T = TypeVar("T")

LOOK_SECONDS = 0.01
SERVE_SECONDS = 0.05
CLOSE_SECONDS = 60.0
_NO_ANSWER = "the cluster has not answered in time"
_UNSETTLED = (
    "it is not known which slots there are; nothing was changed: an enrolment is not settled, or the cluster "
    "has not answered in time; try again"
)
_BEYOND = "bookmarks name segments that the control topic does not have: are they of another cluster?"
PLACE_SECONDS = 60.0
"""For the logs to say where offsets are that an application named."""


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
        state: StateBinding,
    ) -> None:
        self._events, self._buffer = events, buffer
        group_offsets = GroupOffsets(connection, query_client, settings.group, settings.reset)
        self.executor = BrokerExecutor("kpsplit-brokers", group_offsets)
        self.questions = OffsetQueries(group_offsets, query_client)
        reader = SlotReader(
            connection,
            settings.fetch,
            lambda event: self.engine.reading.report(event),  # noqa: PLW0108 - the engine is made later
            on_gap=settings.gap_policy,
            wrap_all=settings.wrap_all,
        )
        metadata = Metadata(connection)
        slots = AssignedSlots(metadata, reader, buffer, state, auto_store=settings.auto_store)
        members = BrokerExecutor("kpsplit-members", GroupMembers(connection, settings.group))
        members.run(query_client.connect)  # while the control topic is read
        clients = Clients(group, reader, query_client, self.executor, members)
        self.engine = Engine(settings, clients, slots, events, pulse)
        buffer.fetch = self.engine.pull
        # Where the application stores offsets itself it may need more records before it does.
        if settings.auto_commit and settings.auto_store and (store := state.store) is not None:
            buffer.full = lambda: store.room().holds
        self.calls = ApplicationRequests(
            slots, self.engine.committer, self.engine.membership, self.engine.subscribing, buffer
        )
        self.engine.start()

    def ask(self, job: Callable[[], T]) -> T:
        """Have something done in the engine's thread and wait for it.

        Raises:
            KafkaException: no answer in time. Exception: what the job raised.
        """
        return self.engine.call(job)

    def assign(self, parts: Sequence[TopicPartition], *, more: bool) -> None:
        """Read partitions, whole, from the offsets given; inside on_assign: begin there."""
        arriving = self._events.inside_callback()
        wanted = self.ask(lambda: self.calls.wanted(parts, anew=not arriving))
        places = [(w, p.offset) for w, p in zip(wanted, parts, strict=True)]
        cursors = self.look_up(
            lambda: {w.lineage.parent: self.questions.cursor_at(w, at) for w, at in places}, PLACE_SECONDS
        )
        if arriving:
            at_start = [w.lineage.parent for w, at in places if at == OFFSET_BEGINNING]
            self.ask(lambda: self.calls.start(cursors, at_start))
            return
        self._buffer.processed()
        self.ask(lambda: self.calls.assign(cursors, more=more))

    def assign_slots(self, names: Sequence[SlotName], bookmarks: Iterable[str]) -> None:
        """Read single slots, from bookmarks where there are some; inside on_assign: begin there.

        Raises:
            RecordError: a bookmark is malformed, or a newer kpsplit's. UsageError: it is of another topic.
            KafkaException: the control topic does not have what it names.
        """
        named = {(topic, number) for topic, number, _ in names}
        read = map(decode_bookmark, bookmarks)
        saved = [b for b in read if (b.parent.topic, b.parent.partition) in named]
        arriving = self._events.inside_callback()
        self.until_known(None, saved, () if arriving else names)
        if arriving:
            self.ask(lambda: self.calls.start_slots(names, saved))
            return
        self._buffer.processed()
        self.ask(lambda: self.calls.assign_slots(names, saved))

    def seek(self, part: TopicPartition) -> None:
        """Read a partition's slots from a logical offset, OFFSET_BEGINNING or OFFSET_END."""
        wanted = self.ask(lambda: self.calls.assigned(part))
        cursor = self.look_up(lambda: self.questions.cursor_at(wanted, part.offset), PLACE_SECONDS)
        if cursor is None:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"cannot seek to {part.offset}"))
        self.ask(lambda: self.calls.seek(wanted.lineage.parent, cursor))

    def committed(self, parts: Sequence[TopicPartition], timeout: float | None) -> list[TopicPartition]:
        """Return the group's committed logical offsets with their metadata."""
        wanted, seconds = self.ask(lambda: self.calls.wanted(parts)), _seconds_of(timeout)
        found = self.look_up(lambda: self.questions.committed(wanted, seconds), seconds + 1.0)
        pairs = zip(wanted, found, strict=True)
        return [part_of(w.lineage.parent, offset, metadata) for w, (offset, metadata) in pairs]

    def watermarks(self, part: TopicPartition, timeout: float | None) -> tuple[int, int]:
        """Return the least logical offset that can be read, and one more than the greatest."""
        (wanted,), seconds = self.ask(lambda: self.calls.wanted([part])), _seconds_of(timeout)
        return self.look_up(lambda: self.questions.watermarks(wanted.lineage, seconds), seconds + 1.0)

    def at_times(self, parts: Sequence[TopicPartition], timeout: float | None) -> list[TopicPartition]:
        """Return the least logical offset whose record is not older than the time given as an offset."""
        wanted, seconds = self.ask(lambda: self.calls.wanted(parts)), _seconds_of(timeout)

        def ask() -> list[int]:
            pairs = zip(wanted, parts, strict=True)
            return [self.questions.at_times(w.lineage, p.offset, seconds) for w, p in pairs]

        return with_offsets(parts, self.look_up(ask, seconds * max(1, len(parts)) + 1.0))

    def close(self) -> Exception | None:
        """Hand everything over and end; callbacks run meanwhile. Return what one of them raised first."""
        raised: Exception | None = None
        self._buffer.processed()
        self.engine.close()
        deadline, more = Deadline(CLOSE_SECONDS), True
        while more and deadline.left() > 0:
            more = not self.engine.ended(SERVE_SECONDS)
            try:
                self._events.serve()  # also what the engine reported last
            except Exception as error:  # noqa: BLE001 - a callback's; it goes back to the application below
                raised, more = raised or error, True
        return raised

    def look_up(self, job: Callable[[], T], seconds: float) -> T:
        """Have brokers asked in the executor's thread and wait for it.

        Raises:
            KafkaException: no answer in time, or none that helps.
        """
        try:
            return answer(self.executor.run(job), seconds)
        except KpsplitError as error:
            raise KafkaException(kafka_error(error)) from error

    def until_known(
        self, timeout: float | None, bookmarks: Sequence[Bookmark] = (), names: Sequence[SlotName] = ()
    ) -> None:
        """Wait until it is known what is enrolled, what slots are, and what bookmarks name.

        ``timeout``: None or negative is the default.

        Raises:
            KafkaException: it could not be found out in time; the brokers' answer is in it.
        """
        deadline = Deadline(ANSWER_SECONDS if timeout is None or timeout < 0 else timeout)
        while not self.ask(lambda: self.calls.known(bookmarks, names)):
            if deadline.left() <= 0:
                trouble = self.engine.metadata.trouble
                if trouble is None and not self.ask(lambda: self.calls.known((), names)):
                    raise timed_out(_UNSETTLED if names else _NO_ANSWER)
                raise timed_out(str(trouble) if trouble else _BEYOND)
            self.engine.ended(LOOK_SECONDS)


def _seconds_of(timeout: float | None) -> float:
    return BROKER_SECONDS if timeout is None or timeout < 0 else float(timeout)
