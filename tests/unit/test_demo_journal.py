"""A writer's journal gives back what was put in, and what a killed writer left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit.demo.records import JournalWriter, read_journal
from kpsplit.errors import RecordError
from kpsplit.testing import SendOutcome


def test_a_journal_gives_back_sends_and_reports_in_the_order_of_sending(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal:
        journal.sent(0, b"\xff\n\x00k", 3, 1.0)
        journal.sent(1, None, 2, 1.5)
        journal.sent(2, b"k", 3, 2.0)
        journal.reported(2, True, 3, 1 << 40, 2.25)
        journal.reported(0, False, None, None, 2.5)
    first, second, third = read_journal(path)
    assert (first.key, first.outcome, first.reported_partition, first.offset) == (
        b"\xff\n\x00k",
        SendOutcome.FAILED,
        None,
        None,
    )
    assert (second.key, second.outcome, second.reported_at, second.latency) == (
        None,
        SendOutcome.UNKNOWN,
        None,
        None,
    )
    assert (third.outcome, third.partition, third.reported_partition, third.offset) == (
        SendOutcome.OK,
        3,
        3,
        1 << 40,
    )
    assert (third.sent_at, third.reported_at, third.latency) == (2.0, 2.25, 0.25)


def test_offsets_that_mean_nothing_are_none(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal:
        journal.sent(0, b"k", 0, 1.0)
        journal.reported(0, False, -1, -1001, 2.0)
    assert read_journal(path)[0][5:7] == (None, None)


def test_any_torn_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal:
        journal.sent(0, b"first-key", 0, 1.0)
        journal.reported(0, True, 0, 5, 2.0)
        journal.sent(1, b"second-key", 0, 3.0)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert len(read_journal(path)) <= 1
    path.write_bytes(whole)
    assert len(read_journal(path)) == 2


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"something else\n")
    with pytest.raises(RecordError, match="not the journal of a writer"):
        read_journal(path)
