"""Delivery reports in logical terms."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from kpsplit.kafka.logical_message import LogicalMessage, WrappedMessage, is_identity
from kpsplit.producer.messages import (
    PendingRecord,
    failed_message,
    logical_message,
)
from kpsplit.producer.sending import timestamp_of
from kpsplit.splitter.lineage import PhysicalPartition
from tests.unit.samples import PARENT, UNSPLIT, life, phantom


def physical(
    place: PhysicalPartition, offset: int, error: Any = None, stamp: tuple[int, int] = (1, 99)
) -> Any:
    return Message(
        topic=place.topic,
        partition=place.partition,
        offset=offset,
        key=b"k",
        value=b"v",
        timestamp=stamp,
        latency=0.25,
        error=error,
    )


def content(**more: Any) -> PendingRecord:
    return PendingRecord(
        **{"value": b"v", "key": b"k", "timestamp": 5}
        | {"headers": None, "callback": None, "accepted_at": 0.0}
        | more
    )


def test_reports_of_a_partition_that_was_never_split_are_kafkas_own() -> None:
    segment = UNSPLIT.lineage.get(0)
    assert is_identity(segment, PARENT)
    message = physical(PARENT, 17)
    assert logical_message(message, segment, PARENT) is message


def test_reports_of_a_phantom_name_the_logical_place_and_tell_the_physical_one() -> None:
    segment = life().split.lineage.get(4)
    told = logical_message(physical(phantom(2), 7), segment, PARENT)
    assert isinstance(told, LogicalMessage)
    assert (told.topic(), told.partition(), told.offset()) == ("orders", 3, 1038)
    assert (told.key(), told.value(), told.timestamp(), told.latency()) == (b"k", b"v", (1, 99), 0.25)
    assert told.error() is None
    assert told.source() == ("orders.split-3-1", 2, 7)


def test_a_reopened_parent_has_offsets_of_its_own() -> None:
    segment = life().merged.lineage.get(9)
    assert not is_identity(segment, PARENT)
    told = logical_message(physical(PARENT, segment.start + 3), segment, PARENT)
    assert told.offset() == segment.progression.base + 3


def test_a_record_found_in_the_log_is_reported_as_delivered() -> None:
    segment = life().split.lineage.get(4)
    failed = physical(phantom(2), -1001, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    told = logical_message(failed, segment, PARENT, 7)
    assert (told.error(), told.offset()) == (None, 1038)


@pytest.mark.parametrize("split", [False, True])
def test_an_offset_that_was_looked_up_is_reported_where_the_acknowledgement_told_none(split: bool) -> None:
    segment = life().split.lineage.get(4) if split else UNSPLIT.lineage.get(0)
    raw = physical(segment.source, -1001)
    assert raw.offset() is None
    told = logical_message(raw, segment, PARENT, 7)
    assert (told.error(), told.offset()) == (None, segment.logical(7))
    assert told.source() == (segment.source.topic, segment.source.partition, 7)
    assert (told.topic(), told.partition(), told.segment) == ("orders", 3, segment.id)
    assert (told.key(), told.value(), told.timestamp()) == (b"k", b"v", (1, 99))


@pytest.mark.parametrize("split", [False, True])
def test_an_offset_that_the_acknowledgement_told_needs_no_other_one(split: bool) -> None:
    """Most records that a lease or a fence kept waiting: their messages are those of any report."""
    segment = life().split.lineage.get(4) if split else UNSPLIT.lineage.get(0)
    told = logical_message(physical(segment.source, 7), segment, PARENT, 7)
    assert told.offset() == segment.logical(7)
    assert type(told) is (WrappedMessage if split else Message)


def test_a_failure_keeps_its_error_and_has_no_offset() -> None:
    segment = life().split.lineage.get(4)
    failed = physical(phantom(2), -1001, KafkaError(KafkaError._MSG_TIMED_OUT))
    told = logical_message(failed, segment, PARENT)
    assert told.error().code() == KafkaError._MSG_TIMED_OUT
    assert (told.offset(), told.source()[2]) == (None, None)  # as librdkafka reports it


def test_a_record_that_was_never_sent_has_a_report_like_any_other() -> None:
    error = KafkaError(KafkaError._PURGE_QUEUE)
    told = failed_message(PARENT, content(value="text"), error)
    assert (told.topic(), told.partition(), told.offset()) == ("orders", 3, None)
    assert (told.key(), told.value(), told.timestamp()) == (b"k", b"text", (1, 5))
    assert told.error() is error and told.source() == ("orders", 3, None)


def test_only_times_that_the_application_gave_are_sent_again() -> None:
    assert timestamp_of(physical(PARENT, 0, stamp=(1, 42))) == 42
    assert timestamp_of(physical(PARENT, 0, stamp=(2, 42))) == 0
    assert timestamp_of(physical(PARENT, 0, stamp=(0, -1))) == 0


@pytest.mark.parametrize(
    "wrong", [{"value": 3}, {"key": bytearray(b"k")}, {"headers": 5}, {"headers": "ab"}, {"timestamp": "1"}]
)
def test_a_record_is_refused_when_it_is_produced_not_when_it_is_released(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        content(**wrong).check()


def test_a_record_that_waits_keeps_the_time_at_which_it_was_produced() -> None:
    waiting = content(timestamp=0)
    waiting.check()
    assert waiting.timestamp > 1_600_000_000_000
    given = content(timestamp=7)
    given.check()
    assert given.timestamp == 7
