"""A cluster that knows its users and allows only what its access lists say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.splitter.rights import Resource, Right

ADMIN = "admin"
USERS = ("operator", "producer", "consumer", "verifier")
SECONDS = 20.0
_TYPES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Resource.CLUSTER: ResourceType.BROKER,
}


def password_of(user: str) -> str:
    """A user's password in these tests."""
    return f"secret-of-{user}"


def client(bootstrap: str, user: str) -> dict[str, Any]:
    """How a user connects."""
    return {"bootstrap.servers": bootstrap, **_credentials(user)}


def _credentials(user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password_of(user),
    }


@contextmanager
def guarded_cluster() -> Iterator[DevCluster]:
    """One broker with an authorizer; only the admin may do anything unless an entry allows it."""
    users = " ".join(f'user_{user}="{password_of(user)}"' for user in (ADMIN, *USERS))
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{ADMIN}" password="{password_of(ADMIN)}" {users};'
    )
    properties = {
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
    }
    with DevCluster(1, extra_properties=properties, client_config=_credentials(ADMIN)) as cluster:
        yield cluster


class AccessLists:
    """Gives and takes rights, as the admin."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(client(bootstrap, ADMIN))

    def give(self, user: str, rights: Iterable[Right]) -> None:
        """Allow a user these."""
        for future in self._admin.create_acls([_binding(user, right) for right in rights]).values():
            future.result(SECONDS)

    def take(self, user: str, right: Right) -> None:
        """Allow it no more."""
        b = _binding(user, right)
        wanted = AclBindingFilter(
            b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type
        )
        for future in self._admin.delete_acls([wanted]).values():
            assert len(future.result(SECONDS)) == 1, f"{right} was not there"


def _binding(user: str, right: Right) -> AclBinding:
    everything = right.prefixed and not right.name
    return AclBinding(
        _TYPES[right.resource],
        "*" if everything else right.name,
        ResourcePatternType.PREFIXED if right.prefixed and not everything else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[right.operation.name],
        AclPermissionType.ALLOW,
    )
