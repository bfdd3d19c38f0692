"""Files for users are written whole, and found to be impossible beforehand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kpsplit.errors import KpsplitError, UsageError
from kpsplit.files import check_writable, write_whole


def test_a_file_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    check_writable(new, "")
    check_writable(old, "")
    assert not new.exists()
    assert old.read_text() == "kept"


@pytest.mark.parametrize("path", ["missing/page.html", "."])
def test_a_file_that_cannot_be_written_is_one_clear_line(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write .*: .+") as caught:
        check_writable(tmp_path / path, "choose another --html")
    assert caught.value.hint == "choose another --html"


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KpsplitError, match="cannot write .*: No space"):
        write_whole(file, b"after")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("page.html", b"before")]


def test_a_link_stays_a_link_to_the_new_content(tmp_path: Path) -> None:
    file, link = tmp_path / "page.html", tmp_path / "latest.html"
    link.symlink_to(file)
    for content in (b"first", b"second"):
        check_writable(link, "")
        write_whole(link, content)
        assert link.is_symlink() and file.read_bytes() == content


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(pipe, "")
    write_whole(pipe, b"content")
    assert os.read(reader, 100) == b"content"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_file_is_replaced_with_the_mode_that_it_had(tmp_path: Path) -> None:
    file, other = tmp_path / "page.html", tmp_path / "other"
    file.write_bytes(b"before")
    file.chmod(0o640)
    write_whole(file, b"after")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"after", 0o640)
    other.touch()
    write_whole(tmp_path / "new", b"x")
    assert (tmp_path / "new").stat().st_mode == other.stat().st_mode
