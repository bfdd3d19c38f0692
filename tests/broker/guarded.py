"""A cluster behind TLS that knows its users by SCRAM and allows only what its access lists say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.splitter.rights import Resource, Right
from tests.broker.producing import eventually

ADMIN = "admin"
USERS = ("operator", "producer", "consumer", "verifier")
SECONDS = 60.0
_TYPES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Resource.CLUSTER: ResourceType.BROKER,
}


def password_of(user: str) -> str:
    """A user's password in these tests."""
    return f"secret-of-{user}"


class Guarded(NamedTuple):
    """The cluster, and the certificate of who signed its brokers' ones."""

    cluster: DevCluster
    authority: Path

    def client(self, user: str) -> dict[str, Any]:
        """How a user connects."""
        return {"bootstrap.servers": self.cluster.bootstrap, **_credentials(self.authority, user)}


def _credentials(authority: Path, user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority),
        "sasl.mechanism": "PLAIN" if user == ADMIN else "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password_of(user),
    }


@contextmanager
def guarded_cluster(folder: Path, brokers: int = 1) -> Iterator[Guarded]:
    """Brokers with an authorizer; only the admin may do anything unless an entry allows it.

    The admin and the brokers use PLAIN: SCRAM's users are in the cluster, which has to be there first.
    """
    authority, store = _certificates(folder)
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{ADMIN}" password="{password_of(ADMIN)}" user_{ADMIN}="{password_of(ADMIN)}";'
    )
    properties = {
        "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": jaas,
        "listener.name.broker.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
    }
    admin = _credentials(authority, ADMIN)
    with DevCluster(brokers, extra_properties=properties, client_config=admin) as cluster:
        guarded = Guarded(cluster, authority)
        _make_users(AdminClient(guarded.client(ADMIN)))
        for user in USERS:
            await_login(guarded.client(user))
        yield guarded


def await_login(config: Mapping[str, Any]) -> None:
    """Return when every broker has let a client with this configuration in."""
    for broker in config["bootstrap.servers"].split(","):
        AdminClient({**config, "bootstrap.servers": broker}).list_topics(timeout=SECONDS)


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Make an authority and a broker's certificate; return the authority's file, and that of the broker."""
    maker = trustme.CA()
    broker = maker.issue_cert("127.0.0.1")
    authority, store = folder / "authority.pem", folder / "broker.pem"
    maker.cert_pem.write_to_path(str(authority))
    key = serialization.load_pem_private_key(broker.private_key_pem.bytes(), None)
    store.write_bytes(
        key.private_bytes(  # the only form of a key that Kafka reads
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + b"".join(blob.bytes() for blob in broker.cert_chain_pems)
    )
    return authority, store


def _make_users(admin: AdminClient) -> None:
    set_passwords(admin, {user: password_of(user) for user in USERS})


def set_passwords(admin: AdminClient, passwords: Mapping[str, str]) -> None:
    """Make users, or give them other passwords; the brokers hear of it a moment later."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = [UserScramCredentialUpsertion(u, info, password.encode()) for u, password in passwords.items()]
    for future in admin.alter_user_scram_credentials(wanted).values():
        future.result(SECONDS)


class AccessLists:
    """Gives and takes rights, as the admin; returns when those brokers that were asked go by it."""

    def __init__(self, guarded: Guarded) -> None:
        config = guarded.client(ADMIN)
        self._admins = [
            AdminClient({**config, "bootstrap.servers": broker})
            for broker in guarded.cluster.bootstrap.split(",")
        ]
        self._admin = self._admins[0]

    def give(
        self, user: str, rights: Iterable[Right], kind: AclPermissionType = AclPermissionType.ALLOW
    ) -> None:
        """Allow a user these, or deny them."""
        wanted = [_binding(user, right, kind) for right in rights]
        for future in self._admin.create_acls(wanted).values():
            future.result(SECONDS)
        for binding in wanted:
            self._wait_until(_filter(binding), 1)

    def take(self, user: str, right: Right, kind: AclPermissionType = AclPermissionType.ALLOW) -> None:
        """Allow it no more, or deny it no more."""
        wanted = _filter(_binding(user, right, kind))
        for future in self._admin.delete_acls([wanted]).values():
            assert len(future.result(SECONDS)) == 1, f"{right} was not there"
        self._wait_until(wanted, 0)

    def _wait_until(self, wanted: AclBindingFilter, count: int) -> None:
        """The controller has answered; a broker's authorizer, which answers here, follows it."""
        eventually(
            lambda: all(len(a.describe_acls(wanted).result(SECONDS)) == count for a in self._admins),
            f"{count} of {wanted}",
            SECONDS,
        )


def _filter(b: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type
    )


def _binding(user: str, right: Right, kind: AclPermissionType) -> AclBinding:
    everything = right.prefixed and not right.name
    return AclBinding(
        _TYPES[right.resource],
        "*" if everything else right.name,
        ResourcePatternType.PREFIXED if right.prefixed and not everything else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[right.operation.name],
        kind,
    )
