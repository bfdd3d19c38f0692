"""Where the demo is played, and as whom: a cluster that is given, or an embedded one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kpsplit.demo.narrator import Narrator
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import BROKERS_PROPERTIES, Connection, names_brokers

BROKERS = 3
ROLES = ("producer", "consumer", "verifier")
"""Who may have connection settings of their own; the operator has those of the whole demo."""

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ground:
    """How everybody connects: who splits and merges, the writers, the group, who reads everything back."""

    operator: Connection
    producer: Connection
    consumer: Connection
    verifier: Connection


@contextmanager
def ground(properties: Properties, roles: Mapping[str, Properties], narrator: Narrator) -> Iterator[Ground]:
    """Yield connections to the given cluster, or to an embedded one if no brokers are named.

    Args:
        properties: for everybody.
        roles: what a role's connection has instead, by the role's name.
        narrator: is told of an embedded cluster.

    Raises:
        KpsplitError: there is no Java, or the cluster does not come up.
    """
    if names_brokers(properties):
        yield _connected(properties, roles)
        return
    from kpsplit.devcluster.cluster import DevCluster

    began = monotonic()
    narrator.say(f"starting an embedded cluster of {BROKERS} brokers …")
    with DevCluster(brokers=BROKERS) as cluster:
        narrator.say(f"    {cluster.bootstrap} after {monotonic() - began:.1f} s")
        yield _connected({**properties, "bootstrap.servers": cluster.bootstrap}, roles)


def _connected(properties: Properties, roles: Mapping[str, Properties]) -> Ground:
    brokers = {name: properties[name] for name in BROKERS_PROPERTIES if name in properties}
    others = {role: Connection({**properties, **roles.get(role, {}), **brokers}) for role in ROLES}
    return Ground(operator=Connection(properties), **others)
