"""Files that are written for users: whole or not at all, and refused before the work is done."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from kpsplit.errors import KpsplitError, UsageError

_READABLE_BY_ALL = 0o666


def check_writable(path: Path, hint: str) -> None:
    """Find out now, not after minutes of work, that ``write_whole`` cannot write a file.

    Raises:
        UsageError: it cannot.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if _is_special(path):  # is not opened: whoever reads a pipe would see it end
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "no right to write there")
            return
        target = path.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def check_new_folder(path: Path, hint: str) -> None:
    """Find out now, not after minutes of work, that a new folder cannot be made.

    Raises:
        UsageError: it cannot, or there is something of its name.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint=hint)
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {path}: {above} is not a folder that can be written", hint=hint)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that nobody ever finds half of it; what was there stays if that fails.

    A link stays one, to the new content. What is no file, a device or a pipe, is simply written to.

    Raises:
        KpsplitError: it cannot be written.
    """
    try:
        if _is_special(path):  # by its own name: what /dev/stdout leads to need not have one
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise KpsplitError(f"cannot write {path}: {error.strerror}") from error


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), _mode(target))
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _mode(path: Path) -> int:
    """Return the mode of the file that is there, or that a new one would have."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return _READABLE_BY_ALL & ~_MASK


_MASK = os.umask(0)  # asked once, when nothing else runs yet: it can only be asked by setting it
os.umask(_MASK)
