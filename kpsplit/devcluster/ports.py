"""Ports that nobody else can take between their choice and their use.

A port that is chosen by binding and then released may be gone when the broker binds it, seconds later, or
while a killed broker is down. So the reservation is never released: a socket stays bound to the port,
without listening, for the life of the cluster. Linux lets the broker bind and listen on it all the same,
because both sides set SO_REUSEADDR (Java does for server sockets), and gives the port to nobody who asks
for any free one. Where the system does not share ports like this, the socket is closed just before the
broker starts, and the cluster starts again on other ports if the broker reports that its port was taken.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Self

from kpsplit.devcluster.config import HOST, NodeAddress
from kpsplit.errors import ConflictError


class PortReservation:
    """Bound sockets that do not listen, one for each port."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def any_free(self) -> int:
        """Reserve a port of the system's choice."""
        return self._hold(0)

    def exactly(self, port: int) -> int:
        """Reserve `port`.

        Raises:
            ConflictError: another process has it.
        """
        try:
            return self._hold(port)
        except OSError as error:
            raise ConflictError(
                f"port {port}, which this cluster had when it was stopped, is used by another process",
                hint="end that process, or start the cluster with another data folder",
            ) from error

    def before_start(self, node: NodeAddress) -> None:
        """A broker is about to bind its ports: make way where the system demands it."""
        if not can_share():
            self._close((node.port, node.controller_port))

    def release(self) -> None:
        """Give up all ports."""
        self._close(list(self._held))

    def _hold(self, port: int) -> int:
        held = _bound(port)
        chosen: int = held.getsockname()[1]
        self._held[chosen] = held
        return chosen

    def _close(self, ports: Iterable[int]) -> None:
        for port in ports:
            if held := self._held.pop(port, None):
                held.close()


@cache
def can_share() -> bool:
    """Whether a server may listen on a port that a silent socket of another process is bound to."""
    with _bound(0) as held:
        try:
            with _bound(held.getsockname()[1]) as server:
                server.listen()
        except OSError:
            return False
    return True


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise
    return bound
