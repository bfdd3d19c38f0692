"""The file that holds a verified state: read whole, replaced whole, never by two runs at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kpsplit.errors import ConflictError, FutureVersionError, KpsplitError, RecordError, UsageError
from kpsplit.files import write_whole
from kpsplit.spark_jobs.verification.state import State
from kpsplit.spark_jobs.verification.state_json import MOST_BYTES, decode_state, encode_state


class StateFile:
    """One run's use of the file: ``load`` first, ``save`` at the end, if the run could judge."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded: bytes | None = None

    def load(self) -> State | None:
        """Return the state in the file, None if there is no file.

        Raises:
            UsageError: the file cannot be read, or is no state. FutureVersionError: of a newer kpsplit.
        """
        self._loaded = self._content()
        if self._loaded is None:
            if not self._path.parent.is_dir():
                raise UsageError(f"there is no folder {self._path.parent}", hint="make it first")
            return None
        try:
            return decode_state(self._loaded)
        except FutureVersionError:
            raise
        except RecordError as error:
            raise UsageError(
                f"{self._path} is no state of a verification: {error.message}",
                hint="give another file, or remove this one to begin anew",
            ) from None

    def save(self, state: State) -> None:
        """Replace the file at once, or leave it as it was.

        Raises:
            ConflictError: another run wrote it since ``load``.
            KpsplitError: it cannot be written.
        """
        data = encode_state(state)
        try:
            with self._alone():
                if self._content() != self._loaded:
                    raise ConflictError(
                        f"another verification wrote {self._path} meanwhile; it was left as it is",
                        hint="let one verification at a time use a state",
                        changed=False,
                    )
                write_whole(self._path, data)
        except OSError as error:
            raise KpsplitError(
                f"cannot write {self._path}: {error.strerror}; it was left as it is", changed=False
            ) from error
        self._loaded = data

    def _content(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock on the folder; the system releases it if this process dies."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
