"""Topics that are changed or deleted in the middle of a test."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kpsplit.kafka.cluster_admin import ask_every_broker
from kpsplit.kafka.connection import Connection
from tests.broker.producing import eventually

SECONDS = 60.0


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Set one setting; return when every broker tells it, since brokers follow the controller one by one."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([change])[change].result(SECONDS)
    brokers = list(admin.list_topics(timeout=SECONDS).brokers)
    eventually(
        lambda: all(told(admin, broker, topic, name) == value for broker in brokers),
        f"every broker to tell {name}={value}",
        SECONDS,
    )


def await_gone(bootstrap: str, topic: str) -> None:
    """Return when no broker knows a topic that was deleted: they follow the controller one by one."""
    connection = Connection({"bootstrap.servers": bootstrap})
    eventually(
        lambda: ask_every_broker(connection).all_lack(topic), f"every broker to know no {topic}", SECONDS
    )


def told(admin: AdminClient, broker: int, topic: str, name: str) -> str | None:
    """What a broker says a setting is: a question for its own settings too is sent to no other broker."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    its_own = ConfigResource(ResourceType.BROKER, str(broker))
    entry: ConfigEntry = admin.describe_configs([resource, its_own])[resource].result(SECONDS)[name]
    return entry.value
