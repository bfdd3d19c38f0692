"""Names of a package that are imported on first use (PEP 562), so that importing the package loads little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str], extra: str | None = None) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose names live in other modules.

    Args:
        package: ``__name__`` of the package.
        homes: the full name of the module that holds each name.
        extra: what pip installs the modules with that they need.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if extra is None or missing == "kpsplit":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs {missing}; run: pip install 'kpsplit[{extra}]'", name=error.name
            ) from error
        setattr(sys.modules[package], name, value)
        return value

    return get
