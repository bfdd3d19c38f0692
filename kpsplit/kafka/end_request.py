"""A question for the ends of some partitions of a topic, asked without waiting for the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.offset_answers import offset_answer

OFFSET_REQUEST_SECONDS = 5.0
MIN_REQUEST_SECONDS = 0.1
_GRACE_SECONDS = 1.0
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class EndRequest:
    """A question for the ends of partitions: last stable offsets if read committed, else high watermarks.

    ``asked`` is the monotonic time at which the question was asked: what the answer says held then or later.
    ``failed`` says that ``result`` raised.
    """

    def __init__(
        self,
        admin: AdminClient,
        topic: str,
        partitions: Iterable[int],
        isolation: IsolationLevel,
        seconds: float,
    ) -> None:
        self.asked = monotonic()
        self.failed = False
        self._topic = topic
        self._seconds = max(seconds, MIN_REQUEST_SECONDS)
        wanted = {TopicPartition(topic, p): _LATEST for p in partitions}
        self._futures: dict[TopicPartition, Future[Any]] = (
            admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._seconds)
            if wanted
            else {}
        )

    def done(self) -> bool:
        """Tell whether the answer is there."""
        return all(future.done() for future in self._futures.values())

    def answer(self) -> dict[int, int]:
        """Return the end of each partition, waiting for it if need be.

        Raises:
            KafkaException: the broker refused. TimeoutError: no answer in time, or none at all.
        """
        end = monotonic() + self._seconds + _GRACE_SECONDS
        return {
            place.partition: int(offset_answer(future, max(0.0, end - monotonic())).offset)
            for place, future in self._futures.items()
        }

    def each(self) -> dict[int, int | KpsplitError]:
        """Return the end of each partition, or why it has none, waiting for the answers."""
        end = monotonic() + self._seconds + _GRACE_SECONDS
        return {
            place.partition: self._one(future, max(0.0, end - monotonic()))
            for place, future in self._futures.items()
        }

    def _one(self, future: Future[Any], seconds: float) -> int | KpsplitError:
        try:
            with answered(self._topic):
                return int(offset_answer(future, seconds).offset)
        except KpsplitError as error:
            return error

    def result(self) -> dict[int, int]:
        """Return the ends like ``answer``, with kpsplit's errors.

        Raises:
            KpsplitError: the broker could not be asked.
        """
        self.failed = True
        with answered(self._topic):
            ends = self.answer()
        self.failed = False
        return ends


@contextmanager
def answered(topic: str) -> Iterator[None]:
    """Turn what goes wrong with a question for the ends of a topic into kpsplit's errors."""
    what = f"read the end of {topic}"
    try:
        yield
    except TimeoutError:
        raise UnreachableError(f"could not {what} in time") from None
    except KafkaException as exception:
        error = error_of(exception)
        if error is None or error.code() != KafkaError._NOENT:
            raise translate(error, what) from exception
        hint = "if there is no such topic, run: kpsplit init"
        raise UnreachableError(f"{topic} has no leader", hint=hint) from exception
