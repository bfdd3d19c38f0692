"""Whatever a message of the client library can do, those in logical terms and those of processes can."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from confluent_kafka import Message

from kpsplit import compiled
from kpsplit.consumer.run.handlers import Record
from kpsplit.kafka.logical_message import (
    LogicalMessage,
    WrappedMessage,
    physical_offset,
    relabelled,
    segment_of,
    wrapped,
    wrapped_one,
)
from tests.unit.samples import life

SURFACE = {name for name in dir(Message) if not name.startswith("_")}


def raw() -> Message:
    return Message(topic="t", partition=1, offset=7, key=b"k", value=b"v", headers=[("h", b"x")])


Made = Callable[[Message], LogicalMessage]


def one_of_a_list(message: Message) -> LogicalMessage:
    state = life().split
    (made,) = wrapped([message], relabelled(state.lineage.get(1), state.parent))
    assert isinstance(made, LogicalMessage)
    return made


def a_report(message: Message) -> LogicalMessage:
    state = life().split
    return wrapped_one(message, state.lineage.get(1), state.parent)


@pytest.fixture(params=[one_of_a_list, a_report])
def made(request: pytest.FixtureRequest, both_paths: None) -> Made:
    """Makes a message in logical terms of the client's."""
    return request.param


@pytest.mark.parametrize("kind", [WrappedMessage, Record])
def test_nothing_is_left_to_an_empty_base_class(kind: type) -> None:
    own = {name for base in kind.__mro__ if base not in (Message, object) for name in vars(base)}
    assert own >= SURFACE


def test_a_list_of_records_is_relabelled_where_the_compiled_part_is_in_use(made: Made) -> None:
    given = raw()
    as_it_is = made(given) is given
    assert as_it_is is (made is one_of_a_list and compiled.messages is not None)


def test_place_and_offset_are_the_logical_ones(made: Made) -> None:
    state = life().split
    message = made(raw())
    assert (message.topic(), message.partition()) == (state.parent.topic, state.parent.partition)
    assert message.offset() == state.lineage.get(1).logical(7)
    assert (message.segment, message.epoch) == (1, state.lineage.get(1).opened_epoch)
    source = state.lineage.get(1).source
    assert message.source() == (source.topic, source.partition, 7)
    assert (physical_offset(message), segment_of(message)) == (7, state.lineage.get(1))
    assert made(Message()).offset() is None


def test_what_a_deserialising_program_reads_is_the_wrapped_messages(made: Made) -> None:
    message = made(raw())
    assert (message.deserialized_key(), message.deserialized_value()) == (b"k", b"v")
    message.set_key("key")
    message.set_value({"a": 1})
    assert (message.deserialized_key(), message.deserialized_value()) == ("key", {"a": 1})
    assert (message.key(), message.value()) == ("key", {"a": 1})
    assert message.delivery_count() == raw().delivery_count()


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (None, None),
        ([], []),
        ([("kps", b"stamp")], None),
        ([("h", b"x"), ("h", None), ("kps", b"stamp")], [("h", b"x"), ("h", None)]),
        ([("kps", b"of a copy"), ("h", b"x"), ("kps", b"stamp")], [("h", b"x")]),
    ],
)
def test_an_application_sees_its_own_headers_and_not_the_stamp(made: Made, given, own) -> None:
    message = made(Message(topic="t", partition=1, offset=7, key=b"k", value=b"v", headers=given))
    assert message.headers() == message.headers() == own
    assert Record.of(message).headers() == own


def test_a_topic_that_is_set_is_told_and_the_place_stays(made: Made) -> None:
    message, other = made(raw()), made(raw())
    place, partition = message.source(), message.partition()
    message.set_topic("other")
    assert (message.topic(), message.partition(), message.source()) == ("other", partition, place)
    assert other.topic() != "other"


def test_a_copy_for_a_process_can_be_changed_and_pickled(made: Made) -> None:
    record = Record.of(made(raw()))
    record.set_value("new")
    again = pickle.loads(pickle.dumps(record))
    assert (again.deserialized_key(), again.value(), again.headers()) == (b"k", "new", [("h", b"x")])
    assert again.source() == record.source()
