"""Names and forms: slots, changelog topics, changelog records."""

from __future__ import annotations

import pytest

from kpsplit.consumer.state.changelog import HEADER, check_record, headers_for
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import successor
from kpsplit.errors import CheckFailedError, FutureVersionError, RecordError, UsageError
from kpsplit.splitter.records.keys import changelog_topic, is_topic_name

SLOT = SlotId("orders", 3, 2, 4)


def test_a_slot_has_the_number_of_its_partition_of_the_slots_topic() -> None:
    assert SLOT.number == 14


def test_the_keys_of_a_slot_are_one_range_of_the_store() -> None:
    neighbours = [SlotId("orders", 3, i, 4) for i in range(4)] + [SlotId("orders", 4, 0, 4)]
    edges = sorted(slot.prefix for slot in neighbours)
    end = successor(SLOT.prefix)
    assert end is not None
    assert [edge for edge in edges if SLOT.prefix <= edge < end] == [SLOT.prefix]
    assert SLOT.prefix + b"\xff" * 300 < end


def test_no_prefix_of_a_slot_begins_that_of_another_topic() -> None:
    assert not SlotId("orders2", 0, 0, 1).prefix.startswith(SlotId("orders", 0, 0, 1).prefix[:2])


def test_a_prefix_names_its_slot() -> None:
    assert SlotId.from_prefix(SLOT.prefix) == SLOT
    with pytest.raises(ValueError, match="prefix"):
        SlotId.from_prefix(SLOT.prefix[:-1])


@pytest.mark.parametrize("bad", [("orders", -1, 0, 1), ("orders", 0, 4, 4), ("orders", 0, 0, 65)])
def test_what_is_no_slot_is_refused(bad: tuple[str, int, int, int]) -> None:
    with pytest.raises(UsageError):
        SlotId(*bad)


@pytest.mark.parametrize(("prefix", "after"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff", None), (b"", None)])
def test_a_successor_is_behind_everything_with_the_prefix(prefix: bytes, after: bytes | None) -> None:
    assert successor(prefix) == after


def test_the_changelog_is_named_after_group_and_topic() -> None:
    assert changelog_topic("billing", "eu.orders") == "__kpsplit.changelog.billing.eu.orders"


def test_two_groups_and_topics_never_share_a_changelog() -> None:
    assert changelog_topic("a", "b.c") != changelog_topic("a.b", "c")


@pytest.mark.parametrize("group", ["a/b", "größe", "g" * 300, "", "x y"])
def test_any_group_has_a_changelog_with_a_legal_name(group: str) -> None:
    assert is_topic_name(changelog_topic(group, "orders"))
    assert is_topic_name(changelog_topic(group, "t" * 249))


def test_long_names_differ_where_their_ends_differ() -> None:
    assert changelog_topic("g", "t" * 248 + "a") != changelog_topic("g", "t" * 248 + "b")


def test_a_record_of_the_slot_is_accepted_tombstone_or_not() -> None:
    check_record(SLOT, b"key", headers_for(SLOT))
    check_record(SLOT, b"", headers_for(SLOT))


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("other", b"x")],
        [(HEADER, None)],
        [(HEADER, b"")],
        [(HEADER, b"\x01short")],
        headers_for(SLOT) * 2,
    ],
)
def test_a_record_that_kpsplit_never_writes_is_garbage(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(RecordError) as raised:
        check_record(SLOT, b"key", headers)
    assert not isinstance(raised.value, FutureVersionError)


def test_a_record_without_a_key_or_of_another_slot_is_garbage() -> None:
    with pytest.raises(RecordError):
        check_record(SLOT, None, headers_for(SLOT))
    with pytest.raises(RecordError):
        check_record(SLOT, b"key", headers_for(SlotId("orders", 3, 1, 4)))


def test_a_record_of_a_newer_version_stops_the_reader() -> None:
    with pytest.raises(FutureVersionError, match="newer"):
        check_record(SLOT, b"key", [(HEADER, b"\x02whatever comes")])


def test_a_record_written_with_another_number_of_slots_stops_the_reader() -> None:
    with pytest.raises(CheckFailedError, match="2 slots per partition"):
        check_record(SLOT, b"key", headers_for(SlotId("orders", 3, 1, 2)))
