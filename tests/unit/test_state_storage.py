"""The local store: a RocksDB directory in which each slot is one range of keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker, Storage
from kpsplit.errors import ConfigurationError, ConflictError, FutureVersionError

SLOT, NEXT = SlotId("orders", 3, 1, 4), SlotId("orders", 3, 2, 4)
MARKER = RestoreMarker("id", 7, 1)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "state", "g")
    yield opened
    opened.close()


def test_values_and_their_marker_are_there_after_opening_again(storage: Storage, tmp_path: Path) -> None:
    storage.apply(SLOT, {b"a": b"1", b"": b"empty key", b"b": b""}, MARKER)
    storage.close()
    again = Storage(tmp_path / "state", "g")
    assert [again.get(SLOT, key) for key in (b"a", b"", b"b", b"c")] == [b"1", b"empty key", b"", None]
    assert again.markers() == {SLOT: MARKER}
    again.close()


def test_a_directory_of_ones_own_making_is_for_nobody_else(storage: Storage, tmp_path: Path) -> None:
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_wiping_a_slot_leaves_its_neighbours_alone(storage: Storage) -> None:
    for slot in (SLOT, NEXT):
        storage.apply(slot, {b"a": b"1", b"\xff\xff": b"2"}, MARKER)
    storage.wipe(SLOT)
    assert list(storage.items(SLOT, b"", None)) == []
    assert storage.marker(SLOT) is None
    assert list(storage.items(NEXT, b"", None)) == [(b"a", b"1"), (b"\xff\xff", b"2")]
    assert storage.marker(NEXT) == MARKER


def test_the_state_of_slots_that_did_not_come_back_is_forgotten(storage: Storage) -> None:
    storage.apply(SLOT, {b"a": b"1"}, RestoreMarker("id", 7, 1999))
    storage.apply(NEXT, {b"a": b"1"}, RestoreMarker("id", 7, 2000))
    storage.forget_older(2000)
    assert storage.markers() == {NEXT: RestoreMarker("id", 7, 2000)}
    assert storage.get(SLOT, b"a") is None
    assert storage.get(NEXT, b"a") == b"1"


def test_items_are_in_order_end_before_the_upper_key_and_do_not_change_under_the_reader(
    storage: Storage,
) -> None:
    storage.apply(SLOT, {bytes([i]): b"old" for i in range(10)}, MARKER)
    found = storage.items(SLOT, b"\x03", b"\x06")
    storage.apply(SLOT, {b"\x04": b"new", b"\x05": None}, MARKER)
    assert list(found) == [(b"\x03", b"old"), (b"\x04", b"old"), (b"\x05", b"old")]


def test_a_second_store_in_the_directory_is_refused_in_this_process_and_in_another(
    storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(ConflictError, match="in use by another process"):
        Storage(tmp_path / "state", "g")
    script = (
        "import sys, pathlib; from kpsplit.consumer.state.storage import Storage;"
        "Storage(pathlib.Path(sys.argv[1]), 'g')"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state")], capture_output=True, text=True, timeout=60
    )
    assert "ConflictError" in child.stderr
    assert "in use by another process" in child.stderr


def test_the_directory_of_another_group_is_refused(storage: Storage, tmp_path: Path) -> None:
    storage.close()
    with pytest.raises(ConfigurationError, match="group 'g', not of 'other'"):
        Storage(tmp_path / "state", "other")


def test_the_directory_of_a_newer_version_is_refused(storage: Storage, tmp_path: Path) -> None:
    storage._db.put(b"f", b'{"v": 2, "group": "g"}')
    storage.close()
    with pytest.raises(FutureVersionError, match="newer"):
        Storage(tmp_path / "state", "g")


def test_a_directory_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used as a state store"):
        Storage(tmp_path / "file", "g")


def test_a_damaged_directory_is_refused_with_the_remedy(storage: Storage, tmp_path: Path) -> None:
    storage.close()
    (tmp_path / "state" / "CURRENT").write_text("nonsense\n")
    with pytest.raises(ConfigurationError, match="restored from the changelog"):
        Storage(tmp_path / "state", "g")
