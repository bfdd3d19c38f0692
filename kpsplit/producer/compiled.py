"""The compiled version of what a record costs (``_fast.c``), where this installation has it.

``pip install`` builds it if there is a C compiler, and does without otherwise: each of its calls has a
version in Python, which also takes whatever the compiled one does not. The environment variable
``KPSPLIT_COMPILED`` chooses: 0 for Python, 1 for compiled or an error, unset for compiled where it is there.
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
SOURCE = Path(__file__).with_name("_fast.c")
"""There in a source tree; wheels are without it."""


def load(wanted: str, source: Path = SOURCE) -> ModuleType | None:
    """Return the compiled module, None for the version in Python.

    What was built of another source is not used: beside an editable installation the source may change.

    Raises:
        ConfigurationError: the compiled module must be there and is not, or what is wanted is not clear.
    """
    if wanted not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE} must be 0 or 1, got {wanted!r}", hint=f"unset {VARIABLE}")
    if wanted == "0":
        return None
    try:
        found = import_module("kpsplit.producer._fast")
        if source.exists() and found.source != crc32(source.read_bytes()):
            raise ImportError("it was built of another _fast.c")
    except ImportError as error:
        if wanted:
            raise ConfigurationError(
                f"{VARIABLE}=1, and kpsplit is installed without its compiled part: {error}",
                hint="install kpsplit (in a source tree: pip install -e .) where there is a C compiler",
            ) from error
        return None
    return found


fast = load(os.environ.get(VARIABLE, ""))
"""The compiled module, read whenever a Producer is made."""


def inside() -> bool:
    """Return whether this thread is in the middle of a compiled call, which has no frame."""
    return fast is not None and fast.inside()


def in_use() -> str:
    """Return how people call what is in use."""
    return "in Python" if fast is None else "compiled"
