"""The folder for what is downloaded once and used by every cluster of this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$KPSPLIT_CACHE`, else `kpsplit` under `$XDG_CACHE_HOME`, else under `~/.cache`.

    The folder need not exist.
    """
    if own := environ.get("KPSPLIT_CACHE"):
        return Path(own).expanduser()
    if shared := environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "kpsplit"
    return Path.home() / ".cache" / "kpsplit"
