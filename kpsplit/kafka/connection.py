"""Connection settings: librdkafka's properties, passed through untouched.

A user's name and password may change while clients are connected (``Credentials``). librdkafka logs in with
what a client was given last, each time it connects: so it is enough to give them to every client.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from weakref import WeakSet, ref

from kpsplit.errors import ConfigurationError
from kpsplit.kafka.settings import LONG, UntranslatableError, translated
from kpsplit.splitter.records.strict_json import is_unicode

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from kpsplit.kafka.following import FollowingConsumer, FollowingProducer


class Client(Protocol):
    """A client that takes other credentials. It must allow weak references, as classes of Python do."""

    def set_sasl_credentials(self, username: str, password: str, /) -> Any:
        """Log in with these from now on."""


C = TypeVar("C", bound=Client)


class Credentials:
    """Thread safe. Clients are known by weak references, so one that is dropped needs no call.

    ``changed``: the properties that replace those of the configuration; empty until the first change.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a client may be collected, and closed, while it is held
        self._clients: WeakSet[Any] = WeakSet()
        self.changed: dict[str, str] = {}

    def follow(self, client: C) -> C:
        """Give a client every change from now on, and one that came while it was made; return it."""
        with self._lock:
            self._clients.add(client)
            self._tell(client)
        return client

    def leave(self, client: Client) -> None:
        """Give a client no more changes. When this returns none is being given to it."""
        with self._lock:
            self._clients.discard(client)

    def change(self, username: str, password: str) -> None:
        """Have all clients, those to come as well, log in with these.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed. Exception: what a
                client raised; all others have the change.
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


# The command line reads properties before it needs a client: `kpsplit --help` must not wait for its library.

SPARSE = "enable.sparse.connections"
"""Off for admin clients, unless the user says otherwise.

With sparse connections librdkafka (2.16) tries to connect to a broker that is down, without a pause, for as
long as a request waits for it: thousands of times a second, which costs a core. Without them it is connected
to every broker, and waits between two tries: no longer than ``TRY_AGAIN_MS``, so that it is found when back.
"""

AUTO_CREATE = "allow.auto.create.topics"
"""Off: librdkafka's producers and admin clients have brokers make a topic again that they once knew, and that
was deleted since (a retired sub-topic), whenever they refresh their metadata."""

TRY_AGAIN_MS = 1000
LONGEST_PAUSE = "reconnect.backoff.max.ms"
FIRST_PAUSE = "reconnect.backoff.ms"
FIRST_PAUSE_MS = 200
"""Between two tries to connect, unless the user says otherwise.

librdkafka (2.16) with sparse connections does not lengthen the pause while a broker accepts connections and
closes them again, as one does that starts: with its default of 100 ms each client then tries some twenty
times a second, and a program of kpsplit has several. Behind TLS that can keep a small broker from starting.
A new client waits for up to half of it before it connects at all, so each start pays it.
"""

LOOK_MS = 1000
"""How often clients that only ask look which brokers there are (librdkafka does so once in 10 s at most)."""
LOOK_AGAIN = {"topic.metadata.refresh.interval.ms": LOOK_MS, "metadata.max.age.ms": 900_000}
"""The settings for it.

librdkafka (2.16) has most questions answered by the one broker that was named the controller (brokers name
any that is alive), and those for offsets by the leaders that it remembers. It waits for them while they are
away, and looks for others only then: by default after 5 minutes. It remembers topics for as long as before.
"""

ANSWER_MS = 10_000
"""How long the clients that read and write kpsplit's own topics wait for an answer before they connect anew.

A broker that stands still keeps its connections open, and loses its partitions after some 9 s; a client that
waits for it any longer (librdkafka: 60 s) does not ask the new leader.
"""
SOCKET_TIMEOUT = "socket.timeout.ms"

_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "socket.", "broker.address.")
_CONNECTION_KEYS = frozenset(
    f"""bootstrap.servers metadata.broker.list client.dns.lookup client.rack connections.max.idle.ms
    {FIRST_PAUSE} {LONGEST_PAUSE} {SPARSE} api.version.request api.version.request.timeout.ms
    broker.version.fallback oauth_cb debug log_level https.ca.location https.ca.pem""".split()
)
_SECRET_WORDS = re.compile(
    r"password|passphrase|secret|ssl\.key\.pem|private\.key|sasl\.jaas\.config|oauthbearer\.config|token",
    re.I,
)

FETCH_WAIT_MS = 100
"""Bounds how late a reader notices the end of a log; a record that arrives is handed over at once."""

MOST_PROPERTIES = 1 << 20
"""Bytes of the largest file of properties."""

FILE_HINT = "give a file of key=value lines"

BROKERS_PROPERTIES = ("bootstrap.servers", "metadata.broker.list")

LINE_END = re.compile(r"\r\n?|\n")
"""As in Kafka's own files: values may hold everything else that Python takes for the end of a line."""

quiet = logging.getLogger("kpsplit.librdkafka")
"""librdkafka's own log lines go here instead of to stderr; attach a handler to see them."""
quiet.addHandler(logging.NullHandler())


class Connection:
    """How to reach a cluster; safe to share between threads. Nothing changes but the SASL credentials.

    Clients that are opened here, or ``follow``, log in with changed credentials from the change on.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        if not names_brokers(properties):
            raise ConfigurationError(
                "no brokers named", hint="give -b HOST:PORT or set KPSPLIT_BOOTSTRAP_SERVER"
            )
        self._given = dict(properties)
        self._credentials = Credentials()
        self._sharing = threading.RLock()  # a signal handler may ask in the middle
        self._shared: tuple[int, Callable[[], AdminClient | None]] = 0, lambda: None

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, Any]]]:
        """Pickle the properties, with the credentials of now: clients stay where they are."""
        return type(self), (self.properties,)

    def __repr__(self) -> str:
        """Name the brokers only: properties may hold secrets."""
        return f"Connection({self.bootstrap!r})"

    @property
    def bootstrap(self) -> str:
        """The brokers named by the user."""
        return str(self._given.get("bootstrap.servers") or self._given["metadata.broker.list"])

    @classmethod
    def of_application(cls, config: Mapping[str, Any]) -> Connection:
        """Return the connection part of an application's client configuration."""
        return cls({k: v for k, v in config.items() if is_connection_property(k)})

    def client(self, role: str, **extra: Any) -> dict[str, Any]:
        """Return the configuration of a client of ours; ``extra`` uses ``_`` for ``.`` in names."""
        ours = {n if n.endswith("_cb") else n.replace("_", "."): value for n, value in extra.items()}
        given = {FIRST_PAUSE: self._first_pause(), **self.properties, AUTO_CREATE: False}
        return {**given, "client.id": f"kpsplit-{role}", "logger": quiet, **ours}

    def reader(self, role: str, **extra: Any) -> dict[str, Any]:
        """Return the configuration of a consumer that is assigned by hand and changes nothing.

        It reads committed and reports the end of each partition unless ``extra`` says otherwise.
        """
        ours: dict[str, Any] = {
            "group_id": "kpsplit-unused",
            "enable_auto_commit": False,
            "enable_auto_offset_store": False,
            "enable_partition_eof": True,
            "isolation_level": "read_committed",
            "fetch_wait_max_ms": FETCH_WAIT_MS,
        }
        return self.client(role, **{**ours, **extra})

    def open_admin(self, role: str, **extra: Any) -> AdminClient:
        """Make an admin client, configured as by ``client``, that is connected to every broker (``SPARSE``).

        Raises:
            KafkaException, ValueError, TypeError: librdkafka refuses a setting.
        """
        from confluent_kafka.admin import AdminClient

        calm = {SPARSE: False, LONGEST_PAUSE: self.longest_pause(TRY_AGAIN_MS), SOCKET_TIMEOUT: ANSWER_MS}
        return self.follow(AdminClient({**LOOK_AGAIN, **calm, **self.client(role, **extra)}))

    def shared_admin(self) -> AdminClient:
        """Return the admin client that all users of this connection share; it ends with the last of them.

        Raises: as ``open_admin``.
        """
        with self._sharing:
            pid, shared = self._shared
            client = shared()
            if client is None or pid != os.getpid():  # a client does nothing in a child of its process
                client = self.open_admin("admin")
                self._shared = os.getpid(), ref(client)
            return client

    def open_producer(self, role: str, **extra: Any) -> FollowingProducer:
        """Make a producer, configured as by ``client``."""
        from kpsplit.kafka.following import FollowingProducer

        return self.follow(FollowingProducer(self.client(role, **extra)))

    def open_consumer(self, role: str, **extra: Any) -> FollowingConsumer:
        """Make a consumer, configured as by ``client``."""
        return self.consumer_of(self.client(role, **extra))

    def open_reader(self, role: str, **extra: Any) -> FollowingConsumer:
        """Make a consumer, configured as by ``reader``."""
        return self.consumer_of(self.reader(role, **extra))

    def consumer_of(self, config: Mapping[str, Any]) -> FollowingConsumer:
        """Make a consumer of a configuration that ``client`` or ``reader`` began."""
        from kpsplit.kafka.following import FollowingConsumer

        return self.follow(FollowingConsumer(dict(config), self._credentials.leave))

    def follow(self, client: C) -> C:
        """Have a client log in with the credentials of this connection, whenever they change; return it."""
        return self._credentials.follow(client)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these whenever a client connects from now on, those that are open as well.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed.
        """
        self._credentials.change(username, password)

    def answer_ms(self) -> int:
        """Return how long clients for kpsplit's own topics wait for an answer; the user may say so."""
        given = self.get(SOCKET_TIMEOUT)
        return ANSWER_MS if given is None else given

    def _first_pause(self) -> int:
        """Return a ``reconnect.backoff.ms`` that does not contradict the user's own longest pause."""
        try:
            return min(FIRST_PAUSE_MS, int(self.get(LONGEST_PAUSE, FIRST_PAUSE_MS)))
        except (TypeError, ValueError):  # librdkafka refuses it, by its name
            return FIRST_PAUSE_MS

    def longest_pause(self, milliseconds: int) -> int:
        """Return a ``reconnect.backoff.max.ms`` that does not contradict the user's own first pause."""
        try:
            return max(milliseconds, int(self.get(FIRST_PAUSE, 0)))
        except (TypeError, ValueError):  # librdkafka refuses it, by its name
            return milliseconds

    @property
    def properties(self) -> dict[str, Any]:
        """A copy of all properties, with the credentials of now; it may hold secrets."""
        return {**self._given, **self._credentials.changed}

    def get(self, name: str, default: Any = None) -> Any:
        """Return one property."""
        return self.properties.get(name, default)


class AdminUse:
    """One user's hold on the admin client of a connection, which ends when its last user lets go of it.

    What is closed must let go: objects that refer to each other are collected late or never, and the client's
    threads and connections to every broker stay until then.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: AdminClient | None = None

    def __call__(self) -> AdminClient:
        """Return the client, made when it is first needed.

        Raises: as ``Connection.open_admin``.
        """
        client = self._client = self._client or self._connection.shared_admin()
        return client

    def close(self) -> None:
        self._client = None


def names_brokers(properties: Mapping[str, Any]) -> bool:
    return any(properties.get(name) for name in BROKERS_PROPERTIES)


def is_connection_property(name: str) -> bool:
    """Return whether a property says how to reach the brokers, rather than what a client does there."""
    return name in _CONNECTION_KEYS or name.startswith(_PREFIXES)


def is_secret(name: str) -> bool:
    return _SECRET_WORDS.search(name) is not None


def read_properties(path: Path) -> dict[str, str]:
    """Read ``key=value`` lines, as Kafka's tools do; ``#`` and ``!`` begin comments.

    Java's names are translated where librdkafka has another one (``java_properties``).

    Raises:
        ConfigurationError: the file cannot be read, a line has no ``=``, or Java's name in it has no
            counterpart; the line itself is never shown.
    """
    found = _assignments(path)
    try:
        return translated({name: value for name, (_, value) in found.items()})
    except UntranslatableError as error:
        line = found[error.name][0]
        raise ConfigurationError(f"{path}, line {line}: {error.message}", hint=error.hint) from None


def line_of(path: Path, name: str) -> int | None:
    """Return the line of a file of properties that sets one of them, None if none does; errors as there."""
    return _assignments(path).get(name, (None, ""))[0]


def _assignments(path: Path) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    lines = iter(enumerate(LINE_END.split(_text_of(path)), 1))
    for number, line in lines:
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise ConfigurationError(f"{path}, line {number}: not a key=value line", hint=FILE_HINT)
        while name in LONG and value.endswith("\\"):
            value = f"{value[:-1]} {next(lines, (0, ''))[1].strip()}"
        found[name] = number, value
    return found


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PROPERTIES + 1)
        if len(data) <= MOST_PROPERTIES:
            return data.decode("utf-8")
        reason = f"more than {MOST_PROPERTIES} bytes"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except ValueError:
        reason = "not UTF-8 text"
    raise ConfigurationError(f"cannot read {path}: {reason}", hint=FILE_HINT)
