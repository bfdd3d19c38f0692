"""Files that are written for users: whole or not at all, and refused before the work is done."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kpsplit.errors import UsageError

_READABLE_BY_ALL = 0o666


def check_writable(path: Path, hint: str) -> None:
    """Find out now, not after minutes of work, that a file cannot be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that nobody ever finds half of it; what was there stays if that fails.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), _mode(path))
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _mode(path: Path) -> int:
    """Return the mode of the file that is there, or that a new one would have."""
    try:
        return path.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return _READABLE_BY_ALL & ~mask
