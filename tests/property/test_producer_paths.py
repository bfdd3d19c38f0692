"""The compiled calls of the Producer do what those in Python do, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from kpsplit import compiled
from kpsplit.clock import monotonic
from kpsplit.errors import KpsplitError
from kpsplit.producer import sending
from kpsplit.producer.polling import Polling
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import PASS_THROUGH, RouteWriter
from kpsplit.splitter.key_range import WHOLE, key_hash, ranges_between
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from tests.unit.samples import fenced, operated, split_attempt
from tests.unit.test_producer_state import LONE, UNSPLIT, Ground

FAST = compiled.fast
pytestmark = pytest.mark.skipif(FAST is None, reason="the compiled part is not in use")
SECOND = PhysicalPartition("orders", 1)
SECOND_UNSPLIT = PartitionState.unsplit(SECOND, "id")
FIRSTS = [key for key in (b"1" * n for n in range(1, 80)) if crc32(key) % 2 == 0]
"""Keys of the first partition, which is split: the hash of one of them is the bound."""
SPLIT = split_attempt(UNSPLIT, 0, ranges_between([WHOLE.lo, key_hash(FIRSTS[0]), WHOLE.hi]))
HALVES = operated(UNSPLIT, SPLIT, {0: 3})
QUARTERS = operated(HALVES, split_attempt(HALVES, 2, SPLIT.ranges[0].split_evenly(2), "t"), {2: 2})
VIEWS = [UNSPLIT, fenced(UNSPLIT, SPLIT), HALVES, QUARTERS]


class Text(str):
    """Text that is no str."""


class Callback:
    """Notes what it is told; may raise."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def __call__(self, error: Any, message: Any) -> None:
        where = message.topic(), message.partition(), message.offset()
        self._world.seen.append((self._name, error and error.code(), message.value(), where))
        if message.value() == b"raises":
            raise LookupError(self._name)


class World:
    """A producer of two partitions, one of which is split, whose clock the test sets."""

    def __init__(self, fast: ModuleType | None, *, only_errors: bool) -> None:
        before, compiled.fast = compiled.fast, fast
        try:
            self.ground = ground = Ground()
            ground.state.settings = replace(ground.state.settings, only_errors=only_errors)
            ground.stamped = ground.held._stamped = sending.StampedSender(ground.state)
            ground.plain = ground.held._plain = sending.PassThroughSender(ground.state)
            ground.rdkafka.given = Given()
            self.second: Any = PartitionSendState(
                SECOND_UNSPLIT, lambda s: RouteWriter(s, SECOND), ground.state.tally
            )
            ground.state.routes["orders"].extend([self.second])  # type: ignore[union-attr]
            ground.state.routes["plain"] = PASS_THROUGH
            ground.state.renew(monotonic() + 1000)
            self.seen: list[Any] = []
            self.produce = ground.producing(ground.held.produce, Callback(self, "default"))
            self.callbacks = {"own": Callback(self, "own"), "none": None}
            self.view = 0
            self.reported = 0
            polling = Polling(ground.state)
            self.poll = polling.at_once(self._serve, lambda seconds: polling.serve(self._serve, seconds))
        finally:
            compiled.fast = before

    def _serve(self, _: float) -> int:
        self.reported += 1
        error = self._error
        self.ground.rdkafka.report(self.reported - 1, self.reported, error and KafkaError(error))
        return 1

    def do(self, kind: str, *given: Any) -> None:
        """Do one step, and note what it raises."""
        try:
            getattr(self, f"_do_{kind}")(*given)
        except (
            ArithmeticError,
            BufferError,
            KafkaException,
            KpsplitError,
            LookupError,
            TypeError,
            ValueError,
        ) as e:
            said = str(e.args[0]) if isinstance(e, KafkaException) else str(e)
            self.seen.append((type(e).__name__, said))

    def _do_produce(self, how: str, topic: Any, value: Any, key: Any, callback: str, more: Any) -> None:
        given = dict(more)
        if callback in self.callbacks:
            given["callback" if value == b"a" else "on_delivery"] = self.callbacks[callback]
        if how == "names":
            self.produce(**{"topic": topic, "value": value, "key": key, **given})
        else:
            self.produce(topic, value, key, **given)

    def _do_report(self, error: int | None, timeout: Any) -> None:
        if self.reported < len(self.ground.rdkafka.given):
            self._error = error
            self.seen.append(self.poll(timeout))

    def _do_collect(self) -> None:
        if self.reported < len(self.ground.rdkafka.given):
            self._error = None
            self.ground.poll = lambda _: self._serve(0)
            self.ground.state.collect()

    def _do_next_view(self) -> None:
        if self.view + 1 < len(VIEWS):
            self.view += 1
            self.ground.observe(VIEWS[self.view], lease_valid=self.ground.state.lease_valid())
            self.ground.held.release()

    def _do_lapse(self) -> None:
        self.ground.state.lapse()

    def _do_expire(self) -> None:
        """Let the lease end without the library's thread having seen it."""
        self.ground.state.lease_until = self.ground.state.report_lease.until = 0.0

    def _do_renew(self) -> None:
        self.ground.state.renew(monotonic() + 1000)
        self.ground.state.routes["plain"] = PASS_THROUGH
        self.ground.held.release()

    def _do_room(self, room: int) -> None:
        self.ground.rdkafka.room = len(self.ground.rdkafka.given) + room

    def _do_refuse(self) -> None:
        self.ground.rdkafka.refuse = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def books(self) -> list[Any]:
        """Return all that can be seen of it."""
        found: list[Any] = [*self.seen, self.ground.state.tally.count, len(self.ground.state.callbacks)]
        for send_state in self.ground.state.send_states():
            found += [
                send_state.next_sequence,
                send_state.statistics.failed.numbers(),
                send_state.delivered(),
            ]
            for w in send_state.all_writers():
                found.append((w.topic, w.sent, w.done, w.slow, w.last_number, w.last_offset, w.open))
        return found


topics = st.sampled_from(["orders", "orders", "orders", "plain", "other", Text("orders"), LONE, 3, None])
keys = st.one_of(
    st.sampled_from([b"k", "k", "schlüssel", b"", "", None, LONE, 7, bytearray(b"k"), Text("k"), b"x" * 200]),
    st.binary(max_size=70),
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.sampled_from([-1, -1, 0, 1, 2, -(2**70), 1.5, True, None]),
        "timestamp": st.sampled_from([0, 9, 2**63, None]),
        "headers": st.sampled_from(
            [None, {}, [], {"h": b"1"}, [("h", b"1"), ("i", None)], (("h", b"1"),), 5]
        ),
        "key": st.just(b"again"),
        "unknown": st.just(1),
    },
)
producing = st.tuples(
    st.just("produce"),
    st.sampled_from(["names", "places"]),
    topics,
    st.sampled_from([b"a", b"b", b"raises", b"bad", "text", None]),
    keys,
    st.sampled_from(["own", "none", "default"]),
    extras,
)
usual = st.tuples(
    st.just("produce"),
    st.sampled_from(["names", "places"]),
    st.sampled_from(["orders", "orders", "plain"]),
    st.sampled_from([b"a", b"b", b"raises"]),
    st.sampled_from([*FIRSTS[:6], FIRSTS[0], *FIRSTS[-3:], b"k", "k", b""]),
    st.sampled_from(["own", "own", "none", "default"]),
    st.sampled_from([{}, {}, {"headers": {"h": b"1"}}, {"headers": [("h", b"1")]}, {"partition": 1}]),
)
reporting = st.tuples(
    st.just("report"),
    st.sampled_from([None, None, None, KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE]),
    st.sampled_from([0, 0, 0.0, False, 0.01]),
)
others = st.sampled_from([("collect",), ("next_view",), ("lapse",), ("expire",), ("renew",), ("refuse",)])
steps = st.lists(
    st.one_of(
        usual,
        usual,
        usual,
        producing,
        reporting,
        reporting,
        reporting,
        others,
        st.tuples(st.just("room"), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=60,
)


class Given(list[Any]):
    """What was sent, without what the tests' clock and functions differ in."""

    def append(self, arguments: Any) -> None:
        """Keep the headers as they are now."""
        *others, headers = arguments
        super().append((*others, list(headers.items()) if isinstance(headers, dict) else headers))

    def plainly(self) -> list[Any]:
        """Return what can be compared: reports are functions, and records that were held have a time."""
        return [
            (*given[:4], given[4] is None, given[5], given[6] > 10**12 or given[6], given[7])
            for given in self
        ]


@settings(max_examples=4 * settings().max_examples)
@given(steps, st.integers(0, len(VIEWS) - 1), st.booleans())
def test_both_paths_do_the_same(steps: list[Any], view: int, only_errors: bool) -> None:
    worlds = [World(fast, only_errors=only_errors) for fast in (None, FAST)]
    for world in worlds:
        for _ in range(view):
            world.do("next_view")
    for step in steps:
        for world in worlds:
            world.do(*step)
        in_python, in_c = (world.books() for world in worlds)
        assert in_c == in_python, step
        in_python, in_c = (world.ground.rdkafka.given.plainly() for world in worlds)
        assert in_c == in_python, step
