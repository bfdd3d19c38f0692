"""A network that can be disturbed: TCP proxies on loopback, one before each broker, in a thread of their own.

While a direction is held nothing passes it, and nothing is lost either: as on a real network that comes back,
what was sent meanwhile arrives then. To lose a response for good its connection has to end. Brokers get a
second listener, which is reached only through the proxies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.storage import HOST, PortReservation, configuration

CHUNK = 1 << 16
POLL_SECONDS = 0.02
JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Weather:
    """What the network does.

    ``hold_requests``, ``hold_responses``: nothing passes in that direction. ``delay``: seconds that
    everything takes longer, each way. ``lose_responses``: the broker gets each request; before its response
    comes, the connection ends.
    """

    hold_requests: bool = False
    hold_responses: bool = False
    delay: float = 0.0
    lose_responses: bool = False


FAIR = Weather()


class Network:
    """Proxies that share one weather; a context manager. ``add`` and ``weather`` from any thread.

    ``cut``: the ports of proxies through which nothing passes.
    """

    def __init__(self) -> None:
        self.weather = FAIR
        self.cut: frozenset[int] = frozenset()
        self.lost = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(JOIN_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_SECONDS)
        self._loop.close()

    def add(self, upstream: int) -> int:
        """Open a proxy before a port; return the port of the proxy."""
        opened: Future[int] = asyncio.run_coroutine_threadsafe(self._open(upstream), self._loop)
        return opened.result(JOIN_SECONDS)

    async def _open(self, upstream: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(upstream, port, reader, writer)

        server = await asyncio.start_server(connected, HOST, 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(
        self, upstream: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(HOST, upstream)
        except OSError:  # the broker is away, and the client sees what it would see without a proxy
            writer.close()
            return
        pumps = [
            asyncio.create_task(self._pump(port, reader, to_broker, requests=True)),
            asyncio.create_task(self._pump(port, from_broker, writer, requests=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end_all(pumps)
            for end in (writer, to_broker):
                end.close()

    async def _pump(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, requests: bool
    ) -> None:
        """Hand over what comes, until one side ends or a response is lost."""
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                while self._held(requests) or port in self.cut:
                    await asyncio.sleep(POLL_SECONDS)
                if self.weather.delay:
                    await asyncio.sleep(self.weather.delay)
                if self.weather.lose_responses and not requests:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

    def _held(self, requests: bool) -> bool:
        return self.weather.hold_requests if requests else self.weather.hold_responses

    async def _end(self) -> None:
        await _end_all(task for task in asyncio.all_tasks() if task is not asyncio.current_task())


async def _end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    found = list(tasks)
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


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
