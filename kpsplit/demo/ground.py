"""Where the demo is played: a cluster that is given, or an embedded one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kpsplit.demo.narrator import Narrator
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection

BROKERS = 3


@contextmanager
def ground(properties: Mapping[str, Any], narrator: Narrator) -> Iterator[Connection]:
    """Yield a connection to the given cluster, or to an embedded one if no brokers are named.

    Raises:
        KpsplitError: there is no Java, or the cluster does not come up.
    """
    if properties.get("bootstrap.servers") or properties.get("metadata.broker.list"):
        yield Connection(properties)
        return
    from kpsplit.devcluster.cluster import DevCluster

    began = monotonic()
    narrator.say(f"starting an embedded cluster of {BROKERS} brokers …")
    with DevCluster(brokers=BROKERS) as cluster:
        narrator.say(f"    {cluster.bootstrap} after {monotonic() - began:.1f} s")
        yield Connection({**properties, "bootstrap.servers": cluster.bootstrap})
