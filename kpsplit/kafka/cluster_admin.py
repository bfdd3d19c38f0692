"""Plain questions and orders to the cluster: topics, their settings, the ends of their logs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kpsplit.errors import AuthorizationError, ConfigurationError, UnreachableError, UsageError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.retries import while_leaders_move
from kpsplit.splitter.lineage import PhysicalPartition

ANSWER_SECONDS = 8.0
"""How long any one answer may take: unreachable brokers must be an error within 10 s."""

_GRACE = 0.5
_PATIENCE = 1.5
_PAUSE = 0.1
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition's replicas; ``leader`` is None while it has none."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def in_sync(self) -> bool:
        """Tell whether there is a leader and every replica is in sync."""
        return self.leader is not None and set(self.isr) == set(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. ``config`` is what is in force, ``explicit`` what was set on the topic itself."""

    name: str
    topic_id: str
    partitions: tuple[PartitionFacts, ...]
    config: dict[str, str] = field(default_factory=dict)
    explicit: dict[str, str] = field(default_factory=dict)

    @property
    def replication(self) -> int:
        """The smallest replication factor of its partitions."""
        return min((len(p.replicas) for p in self.partitions), default=0)

    @property
    def compacted(self) -> bool:
        """Tell whether records are removed by key."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def min_insync(self) -> int:
        """The value of ``min.insync.replicas`` in force."""
        return int(self.config.get("min.insync.replicas", "1"))


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends, and the leader epoch in which that was said (None: not known)."""

    offset: int
    leader_epoch: int | None


class ClusterAdmin:
    """Admin calls with kpsplit's errors. Not thread safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._trouble = _Trouble()
        try:
            self._client = AdminClient(connection.client("admin", error_cb=self._trouble.note))
        except (KafkaException, ValueError, TypeError) as error:
            raise _refused_setting(error) from None

    @property
    def client(self) -> AdminClient:
        """The client itself, for calls that have no method here."""
        return self._client

    def brokers(self, seconds: float = ANSWER_SECONDS) -> dict[int, str]:
        """Return the address of every broker by its id."""
        metadata = self._listed(seconds)
        return {b.id: f"{b.host}:{b.port}" for b in metadata.brokers.values()}

    def topics(self) -> dict[str, int]:
        """Return the partition count of every topic by its name."""
        return {name: len(topic.partitions) for name, topic in self._listed().topics.items()}

    def find(self, topic: str) -> TopicFacts | None:
        """Return a topic with its settings, None if there is none of that name."""
        found = self.known(topic)
        if found is None:
            return None
        entries = self._config_entries(topic)
        return TopicFacts(
            found.name,
            found.topic_id,
            found.partitions,
            _values(entries),
            _values({name: e for name, e in entries.items() if _set_on_topic(e)}),
        )

    def describe(self, topic: str) -> TopicFacts:
        """Return a topic with its settings.

        Raises:
            UsageError: there is none of that name.
        """
        found = self.find(topic)
        if found is None:
            raise UsageError(f"there is no topic {topic}", hint="check the name and the right to describe it")
        return found

    def known(self, topic: str) -> TopicFacts | None:
        """Return a topic without its settings; None only if it stays unknown for a while.

        A broker that has just started, or not heard of a new topic yet, does not know it.
        """
        end = monotonic() + _PATIENCE
        while (found := self.layout(topic)) is None and monotonic() < end:
            time.sleep(_PAUSE)
        return found

    def layout(self, topic: str) -> TopicFacts | None:
        """Return a topic without its settings, None if the broker that is asked knows none of that name."""
        futures = self._client.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS)
        try:
            found = self._answer(futures[topic], f"describe topic {topic}")
        except _MissingError:
            return None
        partitions = tuple(
            PartitionFacts(
                None if p.leader is None or p.leader.id < 0 else p.leader.id,
                tuple(node.id for node in p.replicas),
                tuple(node.id for node in p.isr),
            )
            for p in sorted(found.partitions, key=lambda p: p.id)
        )
        return TopicFacts(found.name, str(found.topic_id), partitions)

    def create(
        self,
        topic: str,
        config: Mapping[str, str],
        *,
        partitions: int = 1,
        replication: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> bool:
        """Create a topic; return False if there is one of that name already."""
        if assignment is not None:
            replicas = [list(brokers) for brokers in assignment]
            new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=dict(config))
        else:
            new = NewTopic(topic, partitions, replication, config=dict(config))
        futures = self._client.create_topics([new], operation_timeout=seconds, request_timeout=seconds)
        try:
            self._answer(futures[topic], f"create topic {topic}", seconds, writing=True)
        except _ExistsError:
            return False
        return True

    def delete(self, topic: str, seconds: float = ANSWER_SECONDS) -> bool:
        """Delete a topic; return False if there is none of that name."""
        futures = self._client.delete_topics([topic], operation_timeout=seconds, request_timeout=seconds)
        try:
            self._answer(futures[topic], f"delete topic {topic}", seconds, writing=True)
        except _MissingError:
            return False
        return True

    def config(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic that are in force."""
        return _values(self._config_entries(topic))

    def set_config(self, topic: str, name: str, value: str, seconds: float = ANSWER_SECONDS) -> bool:
        """Set one of a topic's settings; return False if there is no such topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures = self._client.incremental_alter_configs([resource], request_timeout=seconds)
        try:
            self._answer(futures[resource], f"set {name} of topic {topic}", seconds, writing=True)
        except _MissingError:
            return False
        return True

    def end_offsets(
        self,
        places: Iterable[PhysicalPartition],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        seconds: float = ANSWER_SECONDS,
    ) -> dict[PhysicalPartition, LogEnd]:
        """Return where logs end: the high watermark, or the last stable offset if read committed.

        Partitions that do not exist are left out.
        """
        return self._offsets(places, _LATEST, isolation, seconds)

    def start_offsets(
        self, places: Iterable[PhysicalPartition], seconds: float = ANSWER_SECONDS
    ) -> dict[PhysicalPartition, int]:
        """Return the first offset that logs still have; partitions that do not exist are left out."""
        found = self._offsets(places, _EARLIEST, IsolationLevel.READ_UNCOMMITTED, seconds)
        return {place: end.offset for place, end in found.items()}

    def newest_timestamps(self, places: Iterable[PhysicalPartition]) -> dict[PhysicalPartition, int]:
        """Return the greatest timestamp of each log's records, in ms; empty logs are left out."""
        found = self._list_offsets(places, _NEWEST, IsolationLevel.READ_UNCOMMITTED, ANSWER_SECONDS)
        return {place: result.timestamp for place, result in found.items() if result.timestamp > 0}

    def _offsets(
        self,
        places: Iterable[PhysicalPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        seconds: float,
    ) -> dict[PhysicalPartition, LogEnd]:
        found = self._list_offsets(places, spec, isolation, seconds)
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
    ) -> dict[PhysicalPartition, Any]:
        end = monotonic() + max(seconds, 0.05)
        wanted = {TopicPartition(p.topic, p.partition): spec for p in places}
        if not wanted:
            return {}
        futures = self._ask_offsets(wanted, isolation, end)
        found: dict[PhysicalPartition, Any] = {}
        for asked in wanted:
            place = PhysicalPartition(asked.topic, asked.partition)
            answer = self._one_offset(asked, spec, isolation, futures, end)
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
            return future.result(left + _GRACE)

        what = f"read the end of {asked.topic}/{asked.partition}"
        try:
            return while_leaders_move(self._client, asked.topic, ask, end - monotonic())
        except TimeoutError:
            raise UnreachableError(f"could not {what}: no answer in time") from None
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() in _MISSING:
                return None
            raise self._explained(error, what) from exception

    def _ask_offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel, end: float
    ) -> dict[TopicPartition, Future[Any]]:
        return self._client.list_offsets(
            wanted, isolation_level=isolation, request_timeout=max(end - monotonic(), 0.05)
        )

    def broker_config(self, broker: int) -> dict[str, str]:
        """Return the settings of a broker that are in force."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        return _values(self._described(resource, f"read the settings of broker {broker}"))

    def _config_entries(self, topic: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            return self._described(resource, f"read the settings of topic {topic}")
        except _MissingError:
            raise UsageError(f"there is no topic {topic}") from None

    def _described(self, resource: ConfigResource, what: str) -> dict[str, ConfigEntry]:
        futures = self._client.describe_configs([resource], request_timeout=ANSWER_SECONDS)
        entries: dict[str, ConfigEntry] = self._answer(futures[resource], what)
        return entries

    def _listed(self, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return self._client.list_topics(timeout=seconds)
        except KafkaException as exception:
            raise self._explained(error_of(exception), "read the cluster's topics") from exception

    def _answer(
        self, future: Future[Any], what: str, seconds: float = ANSWER_SECONDS, *, writing: bool = False
    ) -> Any:
        try:
            return future.result(seconds + _GRACE)
        except TimeoutError:
            raise UnreachableError(f"could not {what}: no answer in time") from None
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() in _MISSING:
                raise _MissingError from exception
            if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise _ExistsError from exception
            raise self._explained(error, what, writing=writing) from exception

    def _explained(self, error: KafkaError | None, what: str, *, writing: bool = False) -> Exception:
        """Return kpsplit's error; where brokers do not answer because they refuse us, say so."""
        translated = translate(error, what, writing=writing)
        self._client.poll(0)
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


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {name: e.value for name, e in entries.items() if e.value is not None}


def _set_on_topic(entry: ConfigEntry) -> bool:
    source = getattr(entry.source, "value", entry.source)  # an int, whatever the annotation says
    return bool(source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


class _Trouble:
    """What librdkafka says about its connections, when the client is polled."""

    def __init__(self) -> None:
        self.refusal = ""

    def note(self, error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            self.refusal = "TLS failed" if error.code() == KafkaError._SSL else "authentication failed"


class _MissingError(Exception):
    """There is no such topic or partition."""


class _ExistsError(Exception):
    """There is such a topic already."""
