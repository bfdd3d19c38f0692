"""A second listener of every broker, which is reached only through the proxies of a network."""

from __future__ import annotations

from pathlib import Path

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.config import HOST, PortReservation
from kpsplit.devcluster.storage import configuration
from tests.fault.chaos.proxy import Network

NAME = "PROXIED"
READY_SECONDS = 180.0


def add_listener(cluster: DevCluster, folder: Path, ports: PortReservation, network: Network) -> str:
    """Give a cluster that was just started such listeners; return ``bootstrap.servers`` of the proxies.

    Each broker has to advertise a port of its own, so its configuration is changed and it starts again.
    """
    proxies = []
    for broker in cluster.brokers:
        broker.kill()
        port = ports.any_free()
        proxy = network.add(port)
        proxies.append(f"{HOST}:{proxy}")
        path = configuration(folder, broker.id)
        path.write_text(with_listener(path.read_text(), port, proxy))
    for broker in cluster.brokers:
        broker.restart(wait=False)
    cluster.wait_ready(READY_SECONDS)
    return ",".join(proxies)


def with_listener(properties: str, port: int, proxy: int) -> str:
    """Return a broker's properties with one more listener, which advertises the port of a proxy."""
    more = {
        "listeners": f"{NAME}://{HOST}:{port}",
        "advertised.listeners": f"{NAME}://{HOST}:{proxy}",
        "listener.security.protocol.map": f"{NAME}:PLAINTEXT",
    }
    lines = []
    for line in properties.splitlines():
        key, _, _value = line.partition("=")
        lines.append(f"{line},{more[key]}" if key in more else line)
    return "\n".join(lines) + "\n"
