"""The compiled versions of the calls that a record costs (``_fast.c``), where this installation has them.

``pip install`` builds them if there is a C compiler, and does without otherwise: each has its version in
Python, which also takes whatever the compiled one does not. The environment variable ``KPSPLIT_COMPILED``
chooses: 0 for Python, 1 for compiled or an error, unset for compiled where it is there.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from types import ModuleType

from kpsplit.clock import monotonic as system_clock
from kpsplit.errors import ConfigurationError

VARIABLE = "KPSPLIT_COMPILED"


def load(wanted: str) -> ModuleType | None:
    """Return the compiled module, None for the versions in Python.

    Raises:
        ConfigurationError: the compiled module must be there and is not, or what is wanted is not clear.
    """
    if wanted not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE} must be 0 or 1, got {wanted!r}", hint=f"unset {VARIABLE}")
    if wanted == "0":
        return None
    try:
        return import_module("kpsplit.producer._fast")
    except ImportError as error:
        if wanted:
            raise ConfigurationError(
                f"{VARIABLE}=1, and kpsplit is installed without its compiled part: {error}",
                hint="install kpsplit where there is a C compiler",
            ) from error
        return None


CLOCK = system_clock
CLOCK_ID: int = system_clock.args[0] if isinstance(system_clock, partial) else -1
"""The number of the system's clock, -1 if it has none: then the compiled part asks the Python function."""

fast = load(os.environ.get(VARIABLE, ""))
"""The compiled module, read whenever a Producer is made."""


def in_use() -> str:
    """Return how people call what is in use."""
    return "in Python" if fast is None else "compiled"
