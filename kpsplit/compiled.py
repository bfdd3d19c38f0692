"""The compiled versions of what a record costs, where this installation has them.

``fast`` (``producer/_fast.c``) is produce(), its reports and ``poll(0)``; ``messages``
(``kafka/_messages.c``) is what readers ask of each record. ``pip install`` builds both if there is a C
compiler, and does without otherwise: each of their calls has a version in Python, which also takes whatever
the compiled one does not. The environment variable ``KPSPLIT_COMPILED`` chooses: 0 for Python, 1 for compiled
or an error, unset for compiled where it is there.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

from kpsplit import clock
from kpsplit.errors import ConfigurationError

VARIABLE = "KPSPLIT_COMPILED"
SYSTEM_CLOCK: tuple[object, int] = (clock.monotonic, getattr(clock.monotonic, "args", (-1,))[0])
"""The clock of leases, and the system's id of it (-1: none) by which C reads it without a call of Python."""
FAST, MESSAGES = "kpsplit.producer._fast", "kpsplit.kafka._messages"


def source_of(name: str) -> Path:
    """Return the C file of a compiled module. There in a source tree; wheels are without it."""
    return Path(__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".c")


def load(name: str, wanted: str, source: Path | None = None) -> ModuleType | None:
    """Return a compiled module, None for the version in Python.

    What was built of another source is not used: beside an editable installation the source may change.

    Raises:
        ConfigurationError: the compiled module must be there and is not, or what is wanted is not clear.
    """
    if wanted not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE} must be 0 or 1, got {wanted!r}", hint=f"unset {VARIABLE}")
    if wanted == "0":
        return None
    source = source or source_of(name)
    try:
        found = import_module(name)
        if source.exists() and found.source != crc32(source.read_bytes()):
            raise ImportError(f"it was built of another {source.name}")
    except ImportError as error:
        if wanted:
            raise ConfigurationError(
                f"{VARIABLE}=1, and kpsplit is installed without its compiled part: {error}",
                hint="install kpsplit (in a source tree: pip install -e .) where there is a C compiler",
            ) from error
        return None
    return found


fast = load(FAST, os.environ.get(VARIABLE, ""))
"""The Producer's compiled calls, read whenever a Producer is made."""
messages = load(MESSAGES, os.environ.get(VARIABLE, ""))
"""What is asked of each record that is read; looked at for each run of records."""


def teach(part: ModuleType | None, *known: object) -> ModuleType | None:
    """Tell a compiled module what it works with; None where this client library's objects are others.

    Raises:
        ImportError: it must be used.
    """
    try:
        if part is not None:
            part.learn(*known)
    except ImportError:
        if os.environ.get(VARIABLE) == "1":
            raise
        return None
    return part


def inside() -> bool:
    """Return whether this thread is in the middle of a compiled call, which has no frame."""
    return fast is not None and fast.inside()


def in_use() -> str:
    """Return how people call what is in use."""
    found = [part is not None for part in (fast, messages)]
    return "compiled" if all(found) else "compiled in part" if any(found) else "in Python"
