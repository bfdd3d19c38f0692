"""Which process a number means: process ids are used again, so the start time belongs to the identity."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_AFTER_NAME = 19  # index of the start time among the fields of /proc/PID/stat that follow the name


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for as long as it lives.

    Attributes:
        pid: its number.
        started: when it was started, in whatever form this system tells it; compared, never interpreted.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this number now; None if there is none."""
        started = _started(pid)
        return cls(pid, started) if started else None

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return _started(self.pid) == self.started


def _started(pid: int) -> str | None:
    """Start time of a process that runs; None for one that does not exist or has ended unreaped."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name in parentheses may hold blanks
        return None if fields[0] in "ZX" else fields[_AFTER_NAME]
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
