"""What a run asks of the brokers beyond kpsplit: who leads the quorum, replicas in sync, moved leaders."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit.clock import Deadline
from kpsplit.control.subtopics import reordered
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import KafkaPythonError, ask_kafka_python, reassign
from kpsplit.splitter.lineage import PhysicalPartition

ASK_SECONDS = 5.0
POLL_SECONDS = 0.2
QUIET = {"log_level": 0}


class Brokers:
    """Looks at a cluster, and moves its leaders. Not thread safe."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connection = Connection({"bootstrap.servers": bootstrap})

    def active_controller(self, seconds: float) -> int:
        """Return the node that leads the quorum.

        Raises:
            DeadlineExceededError: none does, or nobody says so, in time.
        """
        deadline = Deadline(seconds)
        while (leader := self._quorum_leader()) is None:
            deadline.check("an active controller")
            deadline.pause(POLL_SECONDS)
        return leader

    def leader_of(self, topic: str, seconds: float) -> int:
        """Return the broker that leads partition 0 of a topic.

        Raises:
            DeadlineExceededError: nobody says so in time.
        """
        deadline = Deadline(seconds)
        while True:
            with suppress(KafkaException, KeyError):
                found = self._client().list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions[0]
                if found.leader >= 0:
                    return found.leader
            deadline.check(f"a leader of {topic}")
            deadline.pause(POLL_SECONDS)

    def _quorum_leader(self) -> int | None:
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError as PythonError

        try:
            client = KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))
            try:
                found: dict[str, Any] = client.describe_metadata_quorum()
            finally:
                client.close()
        except (PythonError, OSError):
            return None
        leader = int(found["topics"][0]["partitions"][0]["leader_id"])
        return leader if leader >= 0 else None

    def throttle(self, bytes_per_second: int | None, seconds: float, client_id: str | None = None) -> None:
        """Set, or take away (None), the quota of a client, or of each; ask again until a broker has done it.

        Raises:
            DeadlineExceededError: none does in time.
        """
        deadline = Deadline(seconds)
        while (refused := self._set_quotas(bytes_per_second, client_id)) is not None:
            deadline.check(f"quotas to be set ({refused})")
            deadline.pause(POLL_SECONDS)

    def _set_quotas(self, bytes_per_second: int | None, client_id: str | None) -> str | None:
        """Ask a broker for it; return why it did not. kafka-python has the request, no method for it."""
        from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

        data = AlterClientQuotasRequest.EntryData
        change = {"remove": True} if bytes_per_second is None else {"value": float(bytes_per_second)}
        names = ("producer_byte_rate", "consumer_byte_rate")
        whose = data.EntityData(entity_type="client-id", entity_name=client_id)
        entry = data(entity=[whose], ops=[data.OpData(key=name, **change) for name in names])
        request = AlterClientQuotasRequest(entries=[entry], validate_only=False)

        def question(client: Any) -> Any:
            async def ask() -> Any:
                return await client._manager.send(request)

            return client._manager.run(ask)

        try:
            answer = ask_kafka_python(self._connection.properties, "chaos-quotas", ASK_SECONDS, question)
        except KafkaPythonError as error:
            return str(error)
        codes = [found.error_code for found in answer.entries if found.error_code]
        return f"error {codes[0]}" if codes else None

    def await_in_sync(self, replicas: int, seconds: float) -> None:
        """Return when every partition has a leader and all its replicas.

        Raises:
            DeadlineExceededError: not in time.
        """
        deadline = Deadline(seconds)
        while not self._in_sync(replicas):
            deadline.check("all replicas to be in sync")
            deadline.pause(POLL_SECONDS)

    def shuffle_leaders(self, random: Random) -> None:
        """Have any replica of each partition lead it; with it the coordinators of groups move."""
        lists = {place: reordered(replicas, random.choice(replicas)) for place, replicas in self._replicas()}
        with suppress(KpsplitError):  # a topic is gone, or the operator moves it at the same time
            reassign(self._connection, lists, Deadline(ASK_SECONDS))
        partitions = [TopicPartition(p.topic, p.partition) for p in lists]
        with suppress(KafkaException, TimeoutError):
            self._client().elect_leaders(ElectionType.PREFERRED, partitions).result(ASK_SECONDS)

    def _in_sync(self, replicas: int) -> bool:
        try:
            topics = self._client().list_topics(timeout=ASK_SECONDS).topics.values()
        except KafkaException:
            return False
        found = [p for topic in topics for p in topic.partitions.values()]
        return bool(found) and all(p.leader >= 0 and len(p.isrs) >= replicas for p in found)

    def _replicas(self) -> Iterable[tuple[PhysicalPartition, list[int]]]:
        try:
            topics = self._client().list_topics(timeout=ASK_SECONDS).topics
        except KafkaException:
            return []
        return [
            (PhysicalPartition(name, number), sorted(p.replicas))
            for name, topic in topics.items()
            for number, p in topic.partitions.items()
        ]

    def _client(self) -> AdminClient:
        """Return a new client: one that has learnt of dead brokers might ask those."""
        return AdminClient({**QUIET, "bootstrap.servers": self._bootstrap})
