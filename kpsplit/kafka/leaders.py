"""Co-location: the leaders of closing segments move to the broker of the parent's (protocol, section 8.1).

It makes a merge depend on one broker; it is not part of the proof, so what goes wrong here is reported and
the merge goes on. The replica sets stay the same, only their order changes, so nothing is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, PartitionFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.kafka_python import KafkaPythonError, NotExpressibleError, ask_kafka_python
from kpsplit.splitter.lineage import PhysicalPartition

LONGEST = 15.0
"""Seconds after which the merge goes on with the leaders where they are."""

_PAUSE = 0.05
_LONGEST_PAUSE = 3.0
_MARGIN = 0.2

Report = Callable[[str], None]


def reordered(replicas: Sequence[int], first: int) -> list[int]:
    """Return the same replicas with one of them first."""
    return [first, *(r for r in replicas if r != first)]


class Leaders:
    """Moves leaders. Not thread safe."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin

    def co_locate(
        self,
        parent: PhysicalPartition,
        sources: Iterable[PhysicalPartition],
        deadline: Deadline,
        report: Report,
    ) -> None:
        """Move the leaders of ``sources`` to the parent's leader as far as that is possible; never fail."""
        limit = Deadline(min(LONGEST, deadline.left() / 2))
        try:
            target = self._partitions([parent])[parent].leader
            found = self._partitions(sources)
            away = {p: f for p, f in found.items() if f.leader != target}
            movable = {p: f for p, f in away.items() if target is not None and target in f.replicas}
            if len(movable) < len(away):
                report(f"{len(away) - len(movable)} leaders stay: no replica on broker {target}")
            if target is not None and movable:
                self._move(movable, target, limit, report)
        except (KpsplitError, NotExpressibleError, KafkaException) as error:
            report(f"leaders stay where they are: {_reason(error)}")

    def _move(
        self,
        movable: Mapping[PhysicalPartition, PartitionFacts],
        target: int,
        limit: Deadline,
        report: Report,
    ) -> None:
        lists = {p: reordered(f.replicas, target) for p, f in movable.items()}
        changed = {p: wanted for p, wanted in lists.items() if wanted != list(movable[p].replicas)}
        if changed:
            reassign(self._admin.connection, changed, limit)
        self._await(lists, limit, lambda facts, wanted: list(facts.replicas) == wanted)
        self._elect(lists, limit)
        left = self._await(lists, limit, lambda facts, _wanted: facts.leader == target)
        moved = len(lists) - len(left)
        if moved:
            time.sleep(self._followers_pause(target))
        report(f"{moved} of {len(lists)} leaders moved to broker {target}")

    def _elect(self, places: Iterable[PhysicalPartition], limit: Deadline) -> None:
        # No keyword arguments: with a timeout confluent-kafka 2.16 raises SystemError here.
        partitions = [TopicPartition(p.topic, p.partition) for p in places]
        future = self._admin.client.elect_leaders(ElectionType.PREFERRED, partitions)
        try:
            future.result(max(0.1, limit.left()))
        except TimeoutError:
            raise KpsplitError("the election was not answered in time") from None

    def _followers_pause(self, target: int) -> float:
        """Return how long to let the writers recover: followers that asked the new leader too early pause.

        Until they are back no write with acks=all is acknowledged; what piled up takes about as long again
        to be worked off. Waiting here costs nobody anything, inside the fence it would.
        """
        try:
            backoff = self._admin.broker_config(target).get("replica.fetch.backoff.ms", "1000")
        except KpsplitError:
            backoff = "1000"
        return min(2 * int(backoff) / 1000, _LONGEST_PAUSE) + _MARGIN

    def _await(
        self,
        lists: Mapping[PhysicalPartition, list[int]],
        limit: Deadline,
        reached: Callable[[PartitionFacts, list[int]], bool],
    ) -> list[PhysicalPartition]:
        """Wait until all are as wanted; return those that are not when the time is over."""
        while True:
            now = self._partitions(lists)
            left = [p for p, wanted in lists.items() if p not in now or not reached(now[p], wanted)]
            if not left or limit.left() <= 0:
                return left
            time.sleep(_PAUSE)

    def _partitions(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, PartitionFacts]:
        found = {}
        wanted = list(places)
        for topic in {p.topic for p in wanted}:
            layout = self._admin.layout(topic)
            for p in wanted:
                if layout and p.topic == topic and p.partition < len(layout.partitions):
                    found[p] = layout.partitions[p.partition]
        return found


def reassign(connection: Connection, lists: Mapping[PhysicalPartition, list[int]], limit: Deadline) -> None:
    """Set replica lists, by means of kafka-python: confluent-kafka has no such call.

    Raises:
        NotExpressibleError: kafka-python cannot be given these security settings.
        KpsplitError: it could not be done.
    """
    from kafka import TopicPartition as Place

    seconds = max(0.5, min(ANSWER_SECONDS, limit.left()))
    asked = {Place(p.topic, p.partition): brokers for p, brokers in lists.items()}
    try:
        results = ask_kafka_python(
            connection.properties,
            "kpsplit-reassign",
            seconds,
            lambda client: client.alter_partition_reassignments(asked, timeout_ms=int(seconds * 1000)),
        )
    except KafkaPythonError as error:
        raise KpsplitError(f"replica lists cannot be set ({error})") from None
    refused = {error.__name__ for error in results.values() if error is not None}
    if refused:
        raise KpsplitError(f"replica lists cannot be set ({', '.join(sorted(refused))})")


def _reason(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return translate(error_of(error), "elect leaders").message
    if isinstance(error, NotExpressibleError):
        return f"kafka-python cannot be given {error}"
    return str(error)
