"""An admin client whose answers come with kpsplit's errors, and where logs begin and end by their leaders.

``while_leaders_move`` asks again: what a broker answers while leaders move says nothing about the log. It
also asks again where the client does not know a partition that exists: librdkafka answers from its memory of
a topic for up to 15 minutes, and does not know partitions that were added meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import (
    AuthorizationError,
    ConfigurationError,
    ConflictError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
    UsageError,
)
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import LEADER_MOVES, MISSING, error_of, is_one_of, translate
from kpsplit.splitter.lineage import PhysicalPartition

ANSWER_SECONDS = 8.0
"""How long any one answer may take: unreachable brokers must be an error within 10 s."""


def answer_within(deadline: Deadline) -> float:
    """Return how long one answer may take of what is left of a call."""
    return max(0.1, min(ANSWER_SECONDS, deadline.left()))


GRACE = 0.5
"""Seconds for which an answer is waited for beyond the time that the brokers were given."""

_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}


class AdminAnswers:
    """Holds the client, waits for its answers, explains its errors. Not thread safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._trouble = _Trouble()
        try:
            self.renew()
        except (KafkaException, ValueError, TypeError) as error:
            raise _refused_setting(error) from None

    def renew(self) -> None:
        """Take a new client; the old one ends, with the questions that nobody has answered."""
        self._client: AdminClient | None = self.connection.open_admin("admin", error_cb=self._trouble.note)

    def close(self) -> None:
        """End the client, with its threads and its connection to every broker."""
        self._client = None

    @property
    def client(self) -> AdminClient:
        """The client itself, for calls that have no method here."""
        if self._client is None:
            self.renew()
        return cast(AdminClient, self._client)

    def answer(
        self, future: Future[Any], what: str, seconds: float = ANSWER_SECONDS, *, writing: bool = False
    ) -> Any:
        """Wait for an answer and return it.

        Raises:
            MissingError, ExistsError, HasPartitionsError: see there.
            UnknownOutcomeError: no answer in time where something is ``writing``. KpsplitError: refused.
        """
        try:
            found = future.result(seconds + GRACE)
        except TimeoutError:
            text = f"could not {what}: no answer in time"
            if writing:
                raise UnknownOutcomeError(f"{text} (outcome unknown)") from None
            raise UnreachableError(text) from None
        except KafkaException as exception:
            error = error_of(exception)
            kind = _SETTLED.get(error.code()) if error else None
            if kind is not None:
                raise kind(translate(error, what).message) from exception
            raise self.explained(error, what, writing=writing) from exception
        self._trouble.refusal = ""  # some broker may have refused us; the one that was asked does not
        return found

    def explained(self, error: KafkaError | None, what: str, *, writing: bool = False) -> Exception:
        """Return kpsplit's error; where brokers do not answer because they refuse us, say so."""
        translated = translate(error, what, writing=writing)
        self.client.poll(0)
        reason = self._trouble.refusal
        if isinstance(translated, UnreachableError) and reason:
            return AuthorizationError(f"could not {what}: {reason}", hint="check the security settings")
        return translated


def _refused_setting(error: Exception) -> ConfigurationError:
    """Return the error for settings that librdkafka refuses; it names the property, never its value."""
    found = re.search(r"propert(?:y|ies)[: ]+[\"']?([a-z][a-z0-9._]+)", str(error))
    name = f" {found[1]}" if found else ""
    return ConfigurationError(
        f"the client library refuses the setting{name}", hint="check -X and --command-config"
    )


class _Trouble:
    """What librdkafka says about its connections, when the client is polled."""

    def __init__(self) -> None:
        self.refusal = ""

    def note(self, error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            self.refusal = "TLS failed" if error.code() == KafkaError._SSL else "authentication failed"


class MissingError(UsageError):
    """There is no such topic or partition."""


class ExistsError(ConflictError):
    """There is such a topic already."""


class HasPartitionsError(ConflictError):
    """The topic has as many partitions already, or more."""


_SETTLED = {
    **dict.fromkeys(MISSING, MissingError),
    KafkaError.TOPIC_ALREADY_EXISTS: ExistsError,
    KafkaError.INVALID_PARTITIONS: HasPartitionsError,
}
"""Refusals that each caller knows what to do about."""


class LostAnswerError(TimeoutError):
    """A leader did not answer: it is slow, gone, or its connection broke."""


def offset_answer(future: Future[Any], seconds: float) -> Any:
    """Return the answer for one partition of ``AdminClient.list_offsets``.

    librdkafka (2.16) reports a request that a leader never answered as a success, with an invalid offset.
    Taken for an end, it says that a log of which nothing was read has been read to its end.

    Raises:
        KafkaException: the broker refused. TimeoutError: no answer in time, or none at all.
    """
    answer = future.result(seconds)
    if answer.offset == OFFSET_INVALID:
        raise LostAnswerError("the leader did not answer")
    return answer


_MOVING = LEADER_MOVES | {KafkaError.NETWORK_EXCEPTION, KafkaError._TRANSPORT}
_FORGOTTEN = {
    KafkaError._NOENT,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_PAUSE = 0.03
_LOOK_SECONDS = 1.0

T = TypeVar("T")


def while_leaders_move(admin: AdminClient, topic: str, ask: Callable[[float], T], seconds: float) -> T:
    """Return the answer of ``ask``, which is given the seconds left; ask again where a leader is gone.

    A partition that the client does not know is asked for once more, if the topic exists.

    Raises:
        KafkaException: another error, or the time is over. TimeoutError: no answer in time.
    """
    end = monotonic() + max(seconds, 0.1)
    looked = False
    while True:
        try:
            return ask(max(end - monotonic(), 0.05))
        except (LostAnswerError, KafkaException) as exception:
            if monotonic() >= end:
                raise
            if not isinstance(exception, LostAnswerError) and not is_one_of(exception, _MOVING):
                # The client itself may just not know the partition.
                if looked or not is_one_of(exception, _FORGOTTEN) or not exists(admin, topic):
                    raise
                looked = True
        time.sleep(_PAUSE)
        learn_leaders(admin, topic, end - monotonic())


def exists(admin: AdminClient, topic: str) -> bool | None:
    """Look whether there is such a topic, None where nobody says so."""
    try:
        return topic_id_of(admin, topic, _LOOK_SECONDS) is not None
    except KpsplitError:
        return None


def topic_id_of(admin: AdminClient, topic: str, seconds: float) -> str | None:
    """Return Kafka's id of a topic, None if the broker that was asked does not know the topic.

    That question, unlike ``learn_leaders``, never creates it.

    Raises:
        KpsplitError: the topic cannot be seen (it may exist), or no broker answered.
    """
    asked = TopicCollection([topic])
    try:
        # The future has no name here: its error refers to this frame, which would refer to the future.
        return str(
            admin.describe_topics(asked, request_timeout=seconds)[topic].result(seconds + GRACE).topic_id
        )
    except TimeoutError:
        raise UnreachableError(f"no broker answered about topic {topic}") from None
    except KafkaException as exception:
        if is_one_of(exception, {KafkaError.UNKNOWN_TOPIC_OR_PART}):
            return None
        raise translate(error_of(exception), f"look at topic {topic}") from exception


def learn_leaders(client: AdminClient | Consumer | Producer, topic: str, seconds: float) -> None:
    with suppress(KafkaException):  # the next answer shows it
        client.list_topics(topic, timeout=max(min(seconds, 1.0), 0.05))


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
        if not is_one_of(exception, {KafkaError._NOENT}):
            raise translate(error_of(exception), what) from exception
        hint = "if there is no such topic, run: kpsplit init"
        raise UnreachableError(f"{topic} has no leader", hint=hint) from exception


_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


Failed = dict[PhysicalPartition, KpsplitError]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends, and the leader epoch in which that was said (None: not known)."""

    offset: int
    leader_epoch: int | None


def log_end(result: Any) -> LogEnd:
    """Return what librdkafka's answer says."""
    epoch = result.leader_epoch
    return LogEnd(int(result.offset), None if epoch is None or epoch < 0 else epoch)


class LogEndQueries(AdminAnswers):
    """Asks for offsets of many partitions at once; asks again while leaders move. Not thread safe."""

    def end_offsets(
        self,
        places: Iterable[PhysicalPartition],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        seconds: float = ANSWER_SECONDS,
        failed: Failed | None = None,
    ) -> dict[PhysicalPartition, LogEnd]:
        """Return where logs end: the high watermark, or the last stable offset if read committed.

        Partitions that do not exist are left out. ``failed`` takes why others did not answer; None: the first
        of them is raised.
        """
        found = self._list_offsets(places, _LATEST, isolation, seconds, failed)
        return {place: log_end(result) for place, result in found.items()}

    def start_offsets(
        self,
        places: Iterable[PhysicalPartition],
        seconds: float = ANSWER_SECONDS,
        failed: Failed | None = None,
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset that logs still have; the rest is as for ``end_offsets``."""
        found = self._list_offsets(places, _EARLIEST, IsolationLevel.READ_UNCOMMITTED, seconds, failed)
        return {place: int(result.offset) for place, result in found.items()}

    def newest_timestamps(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        """Return the greatest timestamp of each log's records, in ms; empty logs are left out."""
        found = self._list_offsets(places, _NEWEST, IsolationLevel.READ_UNCOMMITTED, ANSWER_SECONDS)
        return {place: result.timestamp for place, result in found.items() if result.timestamp > 0}

    def offsets_at(
        self, places: Iterable[PhysicalPartition], timestamp_ms: int
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset of each log whose record is that young; logs without one are left out.

        A time before 1970 is 1970: Kafka takes negative ones for its words (-1 is the end of the log).

        Raises:
            UnreachableError: one of the logs, which are all there, is unknown to the broker that was asked.
        """
        spec: OffsetSpec = OffsetSpec.for_timestamp(max(0, timestamp_ms))
        asked = list(places)
        found = self._list_offsets(asked, spec, IsolationLevel.READ_COMMITTED, ANSWER_SECONDS)
        for place in asked:
            if place not in found:
                raise UnreachableError(
                    f"the brokers do not agree on whether there is a log {place}", hint="retry"
                )
        return {place: result.offset for place, result in found.items() if result.offset >= 0}

    def _list_offsets(
        self,
        places: Iterable[PhysicalPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        seconds: float,
        failed: Failed | None = None,
    ) -> dict[PhysicalPartition, Any]:
        end = monotonic() + max(seconds, 0.05)
        wanted = {TopicPartition(p.topic, p.partition): spec for p in places}
        if not wanted:
            return {}
        futures = self._ask_offsets(wanted, isolation, end)
        found: dict[PhysicalPartition, Any] = {}
        for asked in wanted:
            place = PhysicalPartition(asked.topic, asked.partition)
            try:
                answer = self._one_offset(asked, spec, isolation, futures, end)
            except KpsplitError as error:
                if failed is None:
                    raise
                failed[place] = error
                continue
            if answer is not None:
                found[place] = answer
        return found

    def _one_offset(
        self,
        asked: TopicPartition,
        spec: OffsetSpec,
        isolation: IsolationLevel,
        futures: dict[TopicPartition, Future[Any]],
        end: float,
    ) -> Any:
        """Return one partition's answer, None if it does not exist; ask again while its leader moves."""
        answers = [futures[asked]]

        def ask(left: float) -> Any:
            future = answers.pop() if answers else None
            future = future or self._ask_offsets({asked: spec}, isolation, end)[asked]
            return offset_answer(future, left + GRACE)

        what = f"read the end of {asked.topic}/{asked.partition}"
        try:
            return while_leaders_move(self.client, asked.topic, ask, end - monotonic())
        except TimeoutError:
            raise UnreachableError(f"could not {what}: no answer in time") from None
        except KafkaException as exception:
            # Where none of the partitions that are asked for exists librdkafka says that it found no leaders.
            no_leaders = is_one_of(exception, {KafkaError._NOENT})
            if is_one_of(exception, MISSING) or (no_leaders and exists(self.client, asked.topic) is False):
                return None
            if no_leaders:  # a new topic, or nobody said in time whether there is one: it may be asked again
                raise UnreachableError(f"could not {what}: it has no leader now") from exception
            raise self.explained(error_of(exception), what) from exception

    def _ask_offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel, end: float
    ) -> dict[TopicPartition, Future[Any]]:
        return self.client.list_offsets(
            wanted, isolation_level=isolation, request_timeout=max(end - monotonic(), 0.05)
        )
