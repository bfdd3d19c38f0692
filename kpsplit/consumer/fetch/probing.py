"""Asks brokers about a physical partition without waiting for the answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.consumer.fetch.gaps import Found
from kpsplit.consumer.fetch.physical_reader import LogBounds
from kpsplit.errors import AuthorizationError, KpsplitError
from kpsplit.kafka.admin_answers import Absence
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.error_map import MISSING, error_of, translate
from kpsplit.kafka.log_ends import offset_answer
from kpsplit.splitter.lineage import PhysicalPartition

REQUEST_SECONDS = 5.0
ASK_AGAIN_SECONDS = 0.2
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class LogProbe:
    """One question, repeated until it is answered: Kafka's id of the topic, and, if wanted, the log's bounds.

    Not thread safe. ``found`` is the answer; ``error`` why it cannot be had (a missing right). ``position``:
    where reading stood when it was asked; an answer says nothing of any other place. ``retired``: the
    control topic says that the topic is deleted, so the first "no" is believed. ``rest``: how many seconds
    pass before it is asked.
    """

    def __init__(
        self,
        admin: AdminClient,
        source: PhysicalPartition,
        position: int,
        *,
        with_bounds: bool,
        holds_up: bool,
        retired: bool = False,
        rest: float = 0.0,
    ) -> None:
        self.source = source
        self.position = position
        self.holds_up = holds_up
        """Whether the physical partition is not read until the answer is there."""
        self.found: Found | None = None
        self.error: KpsplitError | None = None
        self._admin = admin
        self._with_bounds = with_bounds
        self._absence = Absence()
        self._retired = retired
        self._again: Deadline | None = None
        self._asked: list[Future[Any]] = []
        if rest:
            self._again = Deadline(rest)
        else:
            self._ask()

    def done(self) -> bool:
        """Look whether the answer is there; ask again if it has to be."""
        if self.found is not None or self.error is not None:
            return True
        if self._again is not None:
            if self._again.left() <= 0:
                self._again = None
                self._ask()
            return False
        if not all(future.done() for future in self._asked):
            return False
        try:
            self.found = _answer(*self._asked)
        except KafkaException as exception:
            self._take_error(error_of(exception))
        except TimeoutError:
            self._absence.doubted()
            self._again = Deadline(ASK_AGAIN_SECONDS)
        return self.found is not None or self.error is not None

    def _take_error(self, error: KafkaError | None) -> None:
        if error is not None and error.code() in MISSING:
            if self._retired or self._absence.denied():
                self.found = Found(None, None)
                return
        else:
            self._absence.doubted()
        translated = translate(error, f"look at {self.source}")
        if isinstance(translated, AuthorizationError):
            self.error = translated
        self._again = Deadline(ASK_AGAIN_SECONDS)

    def _ask(self) -> None:
        topics = TopicCollection([self.source.topic])
        describing = self._admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)
        self._asked = [describing[self.source.topic]]
        if self._with_bounds:
            self._asked += [
                self._offsets(_EARLIEST, IsolationLevel.READ_UNCOMMITTED),
                self._offsets(_LATEST, IsolationLevel.READ_UNCOMMITTED),
                self._offsets(_LATEST, IsolationLevel.READ_COMMITTED),
            ]

    def _offsets(self, spec: OffsetSpec, isolation: IsolationLevel) -> Future[Any]:
        place = TopicPartition(self.source.topic, self.source.partition)
        asked: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            {place: spec},
            isolation_level=isolation,
            request_timeout=REQUEST_SECONDS,
        )
        return asked[place]


def _answer(described: Future[Any], *offsets: Future[Any]) -> Found:
    bounds = LogBounds(*(int(offset_answer(asked, 0).offset) for asked in offsets)) if offsets else None
    return Found(str(described.result(0).topic_id), bounds)
