"""Calls that confluent-kafka lacks, made with kafka-python; librdkafka's security properties in its words."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kpsplit.clock import AbandonedError, Deadline, bounded, in_thread
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_ends import ANSWER_SECONDS
from kpsplit.splitter.lineage import PhysicalPartition

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

_SIMPLE = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
_CONVERT: dict[str, Callable[[str], Any]] = {
    "security.protocol": str.upper,
    "sasl.mechanism": str.upper,
    "sasl.mechanisms": str.upper,
    "ssl.endpoint.identification.algorithm": lambda value: value.lower() == "https",
    "ssl.ca.location": lambda value: None if value == "probe" else value,
}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb", "https.")
_HARMLESS = {
    "sasl.kerberos.min.time.before.relogin",
    "enable.ssl.certificate.verification",
    "ssl.providers",
    "https.ca.location",
    "https.ca.pem",
}


T = TypeVar("T")

_FAILURES = (OSError, ValueError, ImportError, AttributeError, LookupError, TypeError, RuntimeError)
"""What kafka-python raises besides its own errors where a setting, library or answer is not as it expects."""


class NotExpressibleError(KpsplitError):
    """These settings cannot be said to kafka-python; the message names the property, never its value."""

    def __init__(self, name: str) -> None:
        super().__init__(f"kafka-python cannot be given {name}")


class KafkaPythonError(Exception):
    """A call of kafka-python failed. Only the kind of the error is kept: its text may quote settings."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


def ask_kafka_python(
    properties: Mapping[str, Any], client_id: str, seconds: float, question: Callable[[KafkaAdminClient], T]
) -> T:
    """Ask the same brokers something by means of kafka-python, with a client of its own.

    In a thread, and given up when the time is over: kafka-python (3.0) waits for ever for a TLS handshake
    that a broker does not answer. It also goes on with its own thread and its files when it found no broker.
    So what it makes them with is ended here, whatever came of the question.

    Raises:
        NotExpressibleError: a security property has no counterpart.
        KafkaPythonError: it failed, or was not answered in time: the outcome is unknown then.
    """
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    settings = kafka_python_settings(properties)
    answer_ms = int(seconds * 1000)
    made: list[Any] = []

    def connections(**config: Any) -> Any:
        made.append(KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**config))
        return made[-1]

    def end() -> None:
        for one in made:
            one.close()

    def call() -> T:
        try:
            client = KafkaAdminClient(
                **settings,
                client_id=client_id,
                request_timeout_ms=answer_ms,
                bootstrap_timeout_ms=answer_ms,
                kafka_client=connections,
            )
            return question(client)
        finally:
            end()

    def give_up() -> None:
        in_thread(end, client_id)  # it waits for a thread that may look for a name

    try:
        return bounded(call, seconds, client_id, give_up)
    except AbandonedError:
        raise KafkaPythonError(TimeoutError) from None
    except (KafkaError, *_FAILURES) as error:
        raise KafkaPythonError(type(error)) from None


def kafka_python_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return kafka-python's settings for the same brokers with the same security.

    Raises:
        NotExpressibleError: a security property has no counterpart.
    """
    settings: dict[str, Any] = {"bootstrap_servers": _servers(properties)}
    for name, value in properties.items():
        if name.startswith(_SECURITY):
            settings.update(_one(name, value))
    mechanism = settings.get("sasl_mechanism")
    if mechanism is not None and mechanism not in _MECHANISMS:
        raise NotExpressibleError(f"sasl.mechanism {mechanism}")
    return settings


def _one(name: str, value: Any) -> dict[str, Any]:
    if name in _SIMPLE and value is not None:
        text = str(value)
        return {_SIMPLE[name]: _CONVERT[name](text) if name in _CONVERT else text}
    if name == "enable.ssl.certificate.verification" and str(value).lower() != "true":
        raise NotExpressibleError(name)
    if name in _HARMLESS or value is None:
        return {}
    raise NotExpressibleError(name)


def _servers(properties: Mapping[str, Any]) -> list[str]:
    """Return the brokers without the protocol that librdkafka allows before each (``SSL://host:9093``)."""
    listed = str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list") or "")
    return [server.strip().rpartition("://")[2] for server in listed.split(",") if server.strip()]


def reassign(connection: Connection, lists: Mapping[PhysicalPartition, list[int]], limit: Deadline) -> None:
    """Set replica lists.

    Raises:
        KpsplitError: it could not be done, or kafka-python cannot be given these security settings.
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


def topic_ids(connection: Connection, topic: str) -> dict[int, str]:
    """Return the id that each broker, asked by itself, names for a topic; "" where it names none.

    librdkafka asks one broker of its own choice. Of kafka-python this takes what is not public.

    Raises:
        UnreachableError: a broker did not answer. KpsplitError: kafka-python cannot be given these settings.
    """
    from kafka.protocol.metadata import MetadataRequest

    named = MetadataRequest.MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[named], allow_auto_topic_creation=False)

    def question(client: KafkaAdminClient) -> dict[int, str]:
        manager: Any = client._manager

        async def ask() -> dict[int, str]:
            found: dict[int, str] = {}
            known: set[int] = set()
            for broker in [b.node_id for b in manager.cluster.brokers()]:
                answer = await manager.send(request, node_id=broker)
                known |= {b.node_id for b in answer.brokers}
                found[broker] = next((_text(t.topic_id) for t in answer.topics if not t.error_code), "")
            return dict.fromkeys(known, "") | found

        return manager.run(ask)  # type: ignore[no-any-return]

    try:
        return ask_kafka_python(connection.properties, "kpsplit-topic-ids", ANSWER_SECONDS, question)
    except NotExpressibleError as error:
        hint = "make the topic under another name and enroll that"
        raise KpsplitError(
            f"not every broker can be asked which topic {topic} is: {error}", hint=hint
        ) from None
    except KafkaPythonError as error:
        raise UnreachableError(f"not every broker said which topic {topic} is ({error})") from None


def refuse_another_topic(connection: Connection, topic: str, topic_id: str) -> None:
    """Raise UnreachableError unless every broker, asked by itself, names this id: one may be stale."""
    ids = topic_ids(connection, topic)
    if set(ids.values()) != {topic_id}:
        other = sorted(broker for broker, id_ in ids.items() if id_ != topic_id)
        raise UnreachableError(
            f"the brokers do not agree which topic {topic} is: it may be the one that is enrolled "
            f"(broker {', '.join(map(str, other)) or 'unknown'})",
            hint="wait until all brokers are up, then retry",
        )


def _text(topic_id: UUID | None) -> str:
    """Return a topic's id as librdkafka writes it."""
    return b64encode(topic_id.bytes).decode().rstrip("=") if topic_id else ""


_SECONDS = 6.0


def describe_open_transaction(connection: Connection, place: PhysicalPartition) -> str | None:
    """Return whose transaction is open on a partition, None if that cannot be found out.

    Raises:
        KpsplitError: the brokers could not be asked.
    """
    from kafka import TopicPartition as Place

    asked = Place(place.topic, place.partition)

    def question(client: KafkaAdminClient) -> tuple[set[int], list[str]]:
        open_ids = {
            producer.producer_id
            for producer in client.describe_producers([asked])[asked].active_producers
            if producer.current_transaction_start_offset >= 0
        }
        names = [
            listing.transactional_id
            for listings in client.list_transactions().values()
            for listing in listings
            if listing.producer_id in open_ids
        ]
        return open_ids, names

    try:
        open_ids, names = ask_kafka_python(connection.properties, "kpsplit-transactions", _SECONDS, question)
    except NotExpressibleError:
        return None
    except KafkaPythonError as error:
        raise KpsplitError(f"producers of {place} cannot be described ({error})") from None
    if names:
        return f"transactional id {names[0]}"
    return f"producer id {min(open_ids)}" if open_ids else None
