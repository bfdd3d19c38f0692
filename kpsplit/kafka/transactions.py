"""Names an open transaction, as far as brokers and kafka-python tell; only to make a message better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.python_settings import KafkaPythonError, NotExpressibleError, ask_kafka_python
from kpsplit.splitter.lineage import PhysicalPartition

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

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
