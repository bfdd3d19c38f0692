"""Where logs begin and end, asked of their leaders."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka.admin_answers import ANSWER_SECONDS, GRACE, AdminAnswers
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.error_map import MISSING, error_of
from kpsplit.kafka.offset_answers import offset_answer
from kpsplit.kafka.retries import exists, while_leaders_move
from kpsplit.splitter.lineage import PhysicalPartition

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


Failed = dict[PhysicalPartition, KpsplitError]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends, and the leader epoch in which that was said (None: not known)."""

    offset: int
    leader_epoch: int | None


class LogEnds(AdminAnswers):
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
        return self._offsets(places, _LATEST, isolation, seconds, failed)

    def start_offsets(
        self,
        places: Iterable[PhysicalPartition],
        seconds: float = ANSWER_SECONDS,
        failed: Failed | None = None,
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset that logs still have; the rest is as for ``end_offsets``."""
        found = self._offsets(places, _EARLIEST, IsolationLevel.READ_UNCOMMITTED, seconds, failed)
        return {place: end.offset for place, end in found.items()}

    def newest_timestamps(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        """Return the greatest timestamp of each log's records, in ms; empty logs are left out."""
        found = self._list_offsets(places, _NEWEST, IsolationLevel.READ_UNCOMMITTED, ANSWER_SECONDS)
        return {place: result.timestamp for place, result in found.items() if result.timestamp > 0}

    def offsets_at(
        self, places: Iterable[PhysicalPartition], timestamp_ms: int
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset of each log whose record is that young; logs without one are left out."""
        spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
        found = self._list_offsets(places, spec, IsolationLevel.READ_COMMITTED, ANSWER_SECONDS)
        return {place: result.offset for place, result in found.items() if result.offset >= 0}

    def _offsets(
        self,
        places: Iterable[PhysicalPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        seconds: float,
        failed: Failed | None,
    ) -> dict[PhysicalPartition, LogEnd]:
        found = self._list_offsets(places, spec, isolation, seconds, failed)
        return {
            place: LogEnd(r.offset, None if r.leader_epoch is None or r.leader_epoch < 0 else r.leader_epoch)
            for place, r in found.items()
        }

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
            return while_leaders_move(self._client, asked.topic, ask, end - monotonic())
        except TimeoutError:
            raise UnreachableError(f"could not {what}: no answer in time") from None
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and self._is_missing(asked.topic, error):
                return None
            raise self.explained(error, what) from exception

    def _is_missing(self, topic: str, error: KafkaError) -> bool:
        """Tell whether an error says that there is no such partition.

        Where none of those that are asked for is there librdkafka says only that it found no leaders.
        """
        if error.code() == KafkaError._NOENT:
            return exists(self._client, topic) is False
        return error.code() in MISSING

    def _ask_offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel, end: float
    ) -> dict[TopicPartition, Future[Any]]:
        return self._client.list_offsets(
            wanted, isolation_level=isolation, request_timeout=max(end - monotonic(), 0.05)
        )
