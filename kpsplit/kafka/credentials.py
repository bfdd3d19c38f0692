"""A user's name and password that may change while clients are connected, and the clients that go by them.

librdkafka logs in with what a client was told last, each time it connects: telling every client is all there
is to do.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from kpsplit.splitter.records.strict_json import is_unicode


class Client(Protocol):
    """What can be told other credentials; it must allow weak references, as classes of Python do."""

    def set_sasl_credentials(self, username: str, password: str, /) -> Any:
        """Log in with these from now on."""


C = TypeVar("C", bound=Client)


class Credentials:
    """Thread safe. Clients are known by weak references: whoever drops one need not say so.

    ``changed``: the properties that replace those of the configuration; empty until the first change.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a client may be collected, and closed, while it is held
        self._clients: WeakSet[Any] = WeakSet()
        self.changed: dict[str, str] = {}

    def follow(self, client: C) -> C:
        """Tell a client of every change from now on, and of one that came while it was made; return it."""
        with self._lock:
            self._clients.add(client)
            self._tell(client)
        return client

    def leave(self, client: Client) -> None:
        """Tell a client no more; behind this call nothing is in the middle of telling it."""
        with self._lock:
            self._clients.discard(client)

    def change(self, username: str, password: str) -> None:
        """Have all clients, those to come as well, log in with these.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed. Exception: what a
                client raised; all others were told.
        """
        for value in (username, password):
            if not isinstance(value, str):
                raise TypeError("SASL credentials must be str")
            if "\0" in value or not is_unicode(value):
                raise ValueError("SASL credentials hold a character that cannot be sent")
        with self._lock:
            self.changed = {"sasl.username": username, "sasl.password": password}
            raised: Exception | None = None
            for client in list(self._clients):
                try:
                    self._tell(client)
                except Exception as error:  # noqa: BLE001 - raised below, when everybody knows
                    raised = raised or error
        if raised is not None:
            raise raised

    def _tell(self, client: Client) -> None:
        if self.changed:
            with suppress(RuntimeError):  # it was closed
                client.set_sasl_credentials(self.changed["sasl.username"], self.changed["sasl.password"])
