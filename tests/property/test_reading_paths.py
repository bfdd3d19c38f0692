"""What readers ask of each record, compiled, has the answers of the version in Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from kpsplit import compiled
from kpsplit.consumer.fetch.record_filter import ReadTally, RecordFilter
from kpsplit.errors import FutureVersionError
from kpsplit.kafka import logical_message
from kpsplit.kafka.logical_message import LogicalMessage, headers_of, physical_offset, relabelled, wrapped
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp
from tests.unit.samples import PARENT, UNSPLIT, life

MESSAGES = compiled.messages
pytestmark = pytest.mark.skipif(MESSAGES is None, reason="the compiled part is not in use")
LIFE = life()
STATES = [UNSPLIT, LIFE.split, LIFE.nested, LIFE.merged]
HOMES = [LIFE.merged.home(segment.source) for segment in LIFE.merged.lineage] + [7]


class Derived(Message):
    """A message of another class: only Python knows it."""


stamps = st.builds(
    Stamp, st.integers(0, 5), st.just(1), st.integers(0, 3), st.one_of(st.none(), st.sampled_from(HOMES))
).map(Stamp.encode)
values = st.one_of(
    stamps,
    stamps.map(lambda stamp: stamp[:-1]),
    stamps.map(lambda stamp: bytes([9]) + stamp[1:]),
    st.sampled_from([None, b"", b"\x02", Marker(MarkerKind.SEAL, PARENT, "s").encode()]),
)
names = st.sampled_from([STAMP_HEADER, STAMP_HEADER, MARKER_HEADER, "h", "kps ", ""])
headers = st.one_of(
    st.none(),
    stamps.map(lambda stamp: [(STAMP_HEADER, stamp)]),
    st.lists(st.tuples(names, values), max_size=3),
)
keys = st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"k", "text", 7, ()]))
places = st.sampled_from([("orders", 0), ("orders", 1), ("orders.split-0-1", 0), (None, -1), ("orders", 300)])
records = st.tuples(
    st.sampled_from([Message, Message, Message, Message, Derived]),
    places,
    keys,
    st.binary(max_size=9),
    headers,
)


def made(given: list[tuple[Any, ...]], *, plain: bool = False) -> list[Message]:
    """Make new records, so that neither path sees what the other did to them."""
    return [
        (Message if plain else kind)(topic, partition, offset, key, value, found)
        for offset, (kind, (topic, partition), key, value, found) in enumerate(given, 1)
    ]


def on(part: ModuleType | None, call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises, with or without the compiled part."""
    compiled.messages = part
    try:
        return call()
    except (FutureVersionError, TypeError, ValueError) as error:
        return type(error)
    finally:
        compiled.messages = MESSAGES


def agree(call: Callable[[], Any]) -> None:
    """Have a call made on both paths."""
    assert on(MESSAGES, call) == on(None, call)


@given(st.lists(records, max_size=6))
@example([(Message, ("orders", 0), b"k" * 9000, b"", None)])
def test_keys_sizes_and_stretches_are_the_same(given: list[tuple[Any, ...]]) -> None:
    agree(lambda: logical_message.all_keyed(made(given)))
    agree(lambda: logical_message.content_bytes(made(given)))
    agree(lambda: logical_message.stretch_ends(made(given), [Message.topic, Message.partition]))


def test_an_error_is_no_record_with_a_key_and_has_no_size() -> None:
    failed = Message(topic="orders", partition=0, offset=3, error=KafkaError(KafkaError._PARTITION_EOF))
    agree(lambda: logical_message.all_keyed([failed]))
    agree(lambda: logical_message.content_bytes([failed]))


def judged(state: PartitionState, segment: Segment, slots: list[OwnedSlot], given: list[Any]) -> Any:
    """What a filter makes of records, with the offsets instead of the records."""
    tally = ReadTally()
    record_filter = RecordFilter(state, segment, dict.fromkeys(slots, 0))
    messages = made(given)
    found = record_filter.sift(messages, logical_message.all_keyed(messages), 3, tally)
    kept = [message.offset() for message in found.kept]
    return kept, found.lookup, found.foreign, tally


@given(
    st.sampled_from(STATES),
    st.integers(0, 9),
    st.lists(st.integers(0, 7), unique=True, min_size=1),
    st.lists(records.filter(lambda record: not isinstance(record[2], str | int | tuple)), max_size=6),
)
def test_the_filter_keeps_and_counts_the_same(
    state: PartitionState, index: int, indexes: list[int], given: list[tuple[Any, ...]]
) -> None:
    segment = list(state.lineage)[index % len(list(state.lineage))]
    own = [slot for i in indexes if (slot := OwnedSlot(PARENT, i, 8)).range.overlaps(segment.range)]
    agree(lambda: judged(state, segment, own, given))


@given(st.lists(records, min_size=1, max_size=6), st.booleans())
def test_records_in_logical_terms_look_the_same(given: list[tuple[Any, ...]], identity: bool) -> None:
    state = UNSPLIT if identity else LIFE.split
    segment = state.lineage.get(0 if identity else 2)
    source = segment.source.topic, segment.source.partition
    given = [(kind, source, *rest) for kind, _, *rest in given]

    def seen() -> list[Any]:
        return [
            (
                *(m.topic(), m.partition(), m.offset(), m.source(), m.segment, m.epoch, m.timestamp()),
                *(m.key(), m.value(), m.headers(), headers_of(m), m.error(), len(m), physical_offset(m)),
            )
            for m in wrapped(made(given), relabelled(segment, PARENT))
            if isinstance(m, LogicalMessage)
        ]

    agree(seen)


def test_keys_that_are_placed_into_a_segment_are_the_same_at_its_bounds() -> None:
    given = [(Message, ("orders", 0), b"%d" % n, b"", None) for n in range(300)]
    for range_ in (*WHOLE.split_evenly(3), WHOLE):
        for bounds in ([], [0, 1 << 32], [0, 1 << 30, 1 << 31, 3 << 30], [range_.lo, range_.hi]):

            def kept(bounds: list[int] = bounds, within: Any = range_) -> list[int | None]:
                found = logical_message.of_key_ranges(made(given), bounds, within)
                return [message.offset() for message in found]

            agree(kept)


def test_what_is_not_wholly_of_the_client_is_left_as_it_is() -> None:
    messages = [Message("t", 0, 1), Derived("t", 0, 2)]
    assert MESSAGES is not None
    assert MESSAGES.relabel(messages, relabelled(LIFE.split.lineage.get(1), PARENT)) is None
    assert [type(message) for message in messages] == [Message, Derived]
    assert MESSAGES.relabel([Message()], Derived) is None, "its objects have a dictionary"
    assert MESSAGES.relabel([Message()], str) is None
    assert MESSAGES.relabel((), relabelled(LIFE.split.lineage.get(1), PARENT)) is None


def test_nothing_stays_of_records_and_of_the_class_of_a_segment() -> None:
    parent = PhysicalPartition("orders", 0)
    kind = relabelled(LIFE.split.lineage.get(1), parent)
    given = [(Message, ("orders", 0), b"k", b"v", [(STAMP_HEADER, Stamp(1, 1, 1, 7).encode())])] * 50
    before = sys.getrefcount(kind)
    for _ in range(3):
        messages = wrapped(made(given), kind)
        assert sys.getrefcount(kind) == before + len(messages)
        messages[0].set_value(messages)  # a cycle, which the collector takes
        messages[1].set_topic("other")
        assert [message.headers() for message in messages] == [None] * 50
        del messages
        gc.collect()
        assert sys.getrefcount(kind) == before
