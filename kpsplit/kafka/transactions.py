"""Names an open transaction, as far as brokers and kafka-python tell; only to make a message better."""

from __future__ import annotations

from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.python_settings import NotExpressibleError, kafka_python_settings
from kpsplit.splitter.lineage import PhysicalPartition

_ANSWER_MS = 3000


def describe_open_transaction(connection: Connection, place: PhysicalPartition) -> str | None:
    """Return whose transaction is open on a partition, None if that cannot be found out.

    Raises:
        KpsplitError: the brokers could not be asked.
    """
    from kafka import TopicPartition as Place
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError as PythonError

    try:
        settings = kafka_python_settings(connection.properties)
        client = KafkaAdminClient(
            **settings,
            client_id="kpsplit-transactions",
            request_timeout_ms=_ANSWER_MS,
            bootstrap_timeout_ms=_ANSWER_MS,
        )
        try:
            asked = Place(place.topic, place.partition)
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
        finally:
            client.close()
    except NotExpressibleError:
        return None
    except (PythonError, OSError, ValueError, ImportError, AttributeError, KeyError) as error:
        raise KpsplitError(f"producers of {place} cannot be described ({type(error).__name__})") from None
    if names:
        return f"transactional id {names[0]}"
    return f"producer id {min(open_ids)}" if open_ids else None
