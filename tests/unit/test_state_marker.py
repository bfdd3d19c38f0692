"""When a local copy of a changelog may be continued, and when it counts for nothing."""

from __future__ import annotations

import pytest

from kpsplit.consumer.state.storage import ChangelogFacts, RestoreMarker, Wiped, start_from

NOW = 10_000_000
LOG = ChangelogFacts("topic-id", low=10, high=100, delete_retention_ms=1000)


def test_a_slot_without_local_state_is_restored_from_the_start_of_the_log() -> None:
    assert start_from(None, LOG, NOW) == (RestoreMarker("topic-id", 10, NOW), None)


def test_a_copy_that_belongs_to_the_log_is_continued_where_it_is() -> None:
    marker = RestoreMarker("topic-id", 60, NOW - 1)
    assert start_from(marker, LOG, NOW) == (marker, None)


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (RestoreMarker("another-id", 60, NOW), Wiped.OTHER_TOPIC),
        (RestoreMarker("topic-id", 101, NOW), Wiped.AHEAD),
        (RestoreMarker("topic-id", 9, NOW), Wiped.LOG_START),
        (RestoreMarker("topic-id", 60, NOW - 1000), Wiped.TOO_OLD),
        (RestoreMarker("topic-id", 60, NOW + 1), Wiped.TOO_OLD),
    ],
)
def test_a_copy_that_does_not_belong_to_the_log_is_wiped_and_restored_from_the_start(
    marker: RestoreMarker, reason: Wiped
) -> None:
    assert start_from(marker, LOG, NOW) == (RestoreMarker("topic-id", 10, NOW), reason)


def test_an_old_copy_that_has_missed_nothing_is_kept_however_old_it_is() -> None:
    marker = RestoreMarker("topic-id", 100, 0)
    assert start_from(marker, LOG, NOW) == (marker, None)


def test_a_marker_is_read_back_as_it_was_written() -> None:
    marker = RestoreMarker("1oSbVLGNSnKHXR4H3-bqbg", 1 << 40, NOW)
    assert RestoreMarker.decode(marker.encode()) == marker


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02" + bytes(30), bytes(17)])
def test_bytes_that_are_no_marker_are_as_good_as_none(data: bytes) -> None:
    assert RestoreMarker.decode(data) is None
