"""Whatever a message of the client library can do, those in logical terms and those of processes can."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import Message

from kpsplit.consumer.run.handlers import Record
from kpsplit.kafka.logical_message import LogicalMessage, wrapped_one
from tests.unit.samples import life

SURFACE = {name for name in dir(Message) if not name.startswith("_")}


def raw() -> Message:
    return Message(topic="t", partition=1, offset=7, key=b"k", value=b"v", headers=[("h", b"x")])


def logical() -> LogicalMessage:
    state = life().split
    return wrapped_one(raw(), state.lineage.get(1), state.parent)


@pytest.mark.parametrize("kind", [LogicalMessage, Record])
def test_nothing_is_left_to_an_empty_base_class(kind: type) -> None:
    assert set(vars(kind)) >= SURFACE


def test_what_a_deserialising_program_reads_is_the_wrapped_messages() -> None:
    message = logical()
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
def test_an_application_sees_its_own_headers_and_not_the_stamp(given, own) -> None:
    state = life().split
    plain = Message(topic="t", partition=1, offset=7, key=b"k", value=b"v", headers=given)
    message = wrapped_one(plain, state.lineage.get(1), state.parent)
    assert message.headers() == message.headers() == own
    assert Record.of(message).headers() == own


def test_a_topic_that_is_set_is_told_and_the_place_stays() -> None:
    message = logical()
    place = message.source()
    message.set_topic("other")
    assert (message.topic(), message.source()) == ("other", place)


def test_a_copy_for_a_process_can_be_changed_and_pickled() -> None:
    record = Record.of(logical())
    record.set_value("new")
    again = pickle.loads(pickle.dumps(record))
    assert (again.deserialized_key(), again.value(), again.headers()) == (b"k", "new", [("h", b"x")])
    assert again.source() == record.source()
