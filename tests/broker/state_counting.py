"""Members that keep, per key, how many records they have seen and the sum of their numbers.

As a program it is one member in a process of its own, so that a test can kill or suspend it: it prints one
line per record, when the handler has written its state.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tenacity

from kpsplit import JSON, TEXT, Consumer, Retry, SlotId, StateStore
from kpsplit.demo.endpoints import die_with_parent
from tests.broker.running import config
from tests.broker.state_member import take

Kept = dict[str, list[int]]
"""Per key: count and sum."""

POLICY = Retry(attempts=3, wait=tenacity.wait_fixed(0.01))


def expected(values: Iterable[bytes]) -> Kept:
    """What the state has to be in the end."""
    kept: Kept = {}
    for value in values:
        key = value.split(b":")[-2].decode()
        seen, total = kept.get(key, [0, 0])
        kept[key] = [seen + 1, total + _number(value)]
    return kept


def count(store: StateStore, record: Any) -> None:
    """Count a record."""
    kept, key = store.for_record(record).typed(TEXT, JSON), record.key().decode()
    seen, total = kept.get(key) or [0, 0]
    kept.put(key, [seen + 1, total + _number(record.value())])


def _number(value: bytes) -> int:
    return int(value.split(b":")[-1])


class Handler:
    """Counts; fails, once for every ``fails_every``-th record, when its state is written already."""

    def __init__(self, store: StateStore, seconds: float = 0.0, fails_every: int = 0) -> None:
        self.calls: Counter[bytes] = Counter()
        self._store, self._seconds, self._fails_every = store, seconds, fails_every
        self._lock = threading.Lock()

    def __call__(self, record: Any) -> None:
        count(self._store, record)
        time.sleep(self._seconds)
        with self._lock:
            self.calls[record.value()] += 1
            first = self.calls[record.value()] == 1
        if first and self._fails_every and _number(record.value()) % self._fails_every == 0:
            raise RuntimeError("the first try fails behind its writes")


class Member(threading.Thread):
    """A member in a thread, inside ``run()``. ``extra``: settings; ``callbacks``: of the subscription."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        directory: Path,
        *,
        standbys: int = 0,
        warm_seconds: float = 0.0,
        extra: Mapping[str, Any] = MappingProxyType({}),
        callbacks: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(daemon=True)
        settings = config(bootstrap, group, **extra)
        self.store = StateStore(directory, settings, standbys=standbys, warm_seconds=warm_seconds)
        self.consumer = Consumer(settings, state=self.store)
        self.handler = Handler(self.store, options.pop("seconds", 0.0), options.pop("fails_every", 0))
        self.error: BaseException | None = None
        self._topic, self._callbacks = topic, callbacks
        self._options = {"workers": 4, "on_error": POLICY, "commit_seconds": 0.3, **options}
        self.start()

    def run(self) -> None:
        try:
            with self.store, self.consumer:
                self.consumer.subscribe([self._topic], **self._callbacks)
                self.consumer.run(self._options.pop("handler", self.handler), **self._options)
        except BaseException as error:  # noqa: BLE001 - told by stop()
            self.error = error

    def slots(self) -> dict[str, Any]:
        """What the store tells of the slots that are owned and restored."""
        slots = self.store.stats()["slots"]
        return {name: told for name, told in slots.items() if told["ready"]}

    def stop(self) -> None:
        """End the run, close everything, and tell what went wrong."""
        self.consumer.stop()
        self.join(180)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()


def changelog(
    bootstrap: str, group: str, topic: str, directory: Path, slots: int, partitions: int = 1
) -> Kept:
    """What the group's changelog says, read by a store that nobody else has used."""
    wanted = [SlotId(topic, partition, i, slots) for partition in range(partitions) for i in range(slots)]
    with StateStore(directory, {"bootstrap.servers": bootstrap, "group.id": group}) as store:
        take(store, wanted)
        return dict(pair for slot in wanted for pair in store.slot(slot).typed(TEXT, JSON).items())


def main(bootstrap: str, group: str, topic: str, directory: str) -> None:
    """Run until SIGTERM."""
    settings = config(bootstrap, group, session_timeout_ms=6000)
    with StateStore(directory, settings) as store, Consumer(settings, state=store) as consumer:

        def handle(record: Any) -> None:
            count(store, record)
            print(record.offset(), flush=True)
            time.sleep(0.002)

        consumer.subscribe([topic])
        consumer.run(handle, workers=4, commit_seconds=0.2)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
