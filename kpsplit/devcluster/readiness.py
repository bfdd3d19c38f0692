"""When a cluster is ready: every broker answers, and its metadata lists all brokers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.devcluster.config import HOST, NodeAddress
from kpsplit.kafka.clock import Deadline

_POLL = 0.05  # seconds between attempts to connect
_ASK = 2.0  # seconds for one answer

ConfigValue = str | int | float | bool

_QUIET: Mapping[str, ConfigValue] = {
    "log_level": 0,  # refused connections are what is expected here
    "log.connection.close": False,
    "socket.connection.setup.timeout.ms": 2000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
}


def wait_until_listed(
    asked: Sequence[NodeAddress],
    expected: Collection[int],
    client_config: Mapping[str, ConfigValue],
    deadline: Deadline,
    check: Callable[[], None],
) -> None:
    """Return when each broker of `asked` serves metadata that lists all of `expected`.

    Args:
        asked: the brokers to ask.
        expected: node ids.
        client_config: how to connect (TLS, SASL), when that is not plain.
        deadline: of the whole wait.
        check: called between attempts; raises when waiting has no point any more.

    Raises:
        DeadlineExceededError: not in time.
    """
    for node in asked:
        while not (_listens(node) and _lists(node, expected, client_config, deadline)):
            check()
            deadline.check(f"broker {node.id} of the embedded cluster to list brokers {sorted(expected)}")
            deadline.pause(_POLL)


def _listens(node: NodeAddress) -> bool:
    try:
        socket.create_connection((HOST, node.port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _lists(
    node: NodeAddress, expected: Collection[int], client_config: Mapping[str, ConfigValue], deadline: Deadline
) -> bool:
    # A new client each time: one that has learnt of other brokers might ask those.
    admin = AdminClient({**_QUIET, **client_config, "bootstrap.servers": node.client_address})
    try:
        metadata = admin.list_topics(timeout=max(0.1, min(_ASK, deadline.left())))
    except KafkaException:
        return False
    return set(expected) <= set(metadata.brokers)
