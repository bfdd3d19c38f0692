"""Folders of jars in the cache: fetched with Apache Ivy, which PySpark ships, verified, put in place at once.

Of several processes one fetches, and the others wait for it. A folder is there as a whole, or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from kpsplit.devcluster.java import Java
from kpsplit.devcluster.progress import Progress
from kpsplit.devcluster.truststore import java_trust_options
from kpsplit.errors import KpsplitError

LIST = "jars.sha256"
"""The checksums of jars that were trusted as they were fetched, in their own folder."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be fetched.

    Attributes:
        name: for people.
        descriptor: Ivy's file that names it.
        needed_by: who needs PySpark's Ivy for it, and the extra of kpsplit that brings it.
        count: how many jars there will be, None if that is not known.
        properties: what the descriptor asks for as ``${name}``.
        next_step: for people, when it fails.
    """

    name: str
    descriptor: Path
    needed_by: tuple[str, str]
    count: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    next_step: str = "check the network, then try again"


def read_list(path: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each jar by its name, from a file of checksums; empty if there is none."""
    if not path.is_file():
        return {}
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines())}


def write_list(jars: Path) -> None:
    """Write the checksums of all jars in a folder into it."""
    lines = [f"{_sha256(jar)}  {jar.name}\n" for jar in sorted(jars.glob("*.jar"))]
    (jars / LIST).write_text("".join(lines))


def faults(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the jars in a folder, one sentence each; empty when all is well.

    What the list does not name is wrong too: nothing that was put there later is ever run.
    """
    there = {path.name for path in folder.iterdir()} - {LIST} if folder.is_dir() else set()
    found = [f"{name} is not in the list of checksums" for name in sorted(there - expected.keys())]
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif (actual := _sha256(path)) != digest:
            found.append(f"{name} has SHA-256 {actual[:16]}… instead of {digest[:16]}…")
    return found


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock that stands beside a folder; the system releases it if this process dies."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def put_in_place(folder: Path, make: Callable[[Path], None]) -> None:
    """Replace a folder by what ``make`` leaves in ``jars`` of a temporary folder beside it."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(work)
        if folder.exists():
            os.rename(folder, work / "replaced")
        os.rename(work / "jars", folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch(wanted: Wanted, java: Java, work: Path) -> None:
    """Let Ivy put the jars into ``work``/jars, and everything of its own into ``work``/ivy.

    With the machine's certificate authorities where a bundled Java does not know them.

    Raises:
        KpsplitError: no PySpark, or Ivy failed, with its reason.
    """
    ivy = ivy_jar(wanted)
    code, log = _run(wanted, java, ivy, work, [])
    if code and java.bundled and (options := java_trust_options(work)):
        sys.stderr.write("trying again with the certificate authorities of this machine\n")
        code, log = _run(wanted, java, ivy, work, options)
    if code:
        hint = "install a system Java, or " if java.bundled else ""
        raise KpsplitError(f"fetching {wanted.name} failed:\n{_reason(log)}", hint=hint + wanted.next_step)


def ivy_jar(wanted: Wanted) -> Path:
    """Return Ivy's own jar, among PySpark's.

    Raises:
        KpsplitError: PySpark is not installed, or brings none.
    """
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        who, extra = wanted.needed_by
        raise KpsplitError(
            f"{who} needs PySpark, whose Ivy fetches {wanted.name}",
            hint=f"run: pip install 'kpsplit[{extra}]'",
        )
    return found[-1]


def _run(wanted: Wanted, java: Java, ivy: Path, work: Path, options: Sequence[str]) -> tuple[int, list[str]]:
    """Run Ivy once; return its exit code and what it wrote."""
    # Both types: some of the jars are published as OSGi bundles. No repository is named: Ivy has a default.
    command = [
        *(str(java.path), *options, *(f"-D{name}={value}" for name, value in wanted.properties.items())),
        *(f"-Divy.default.ivy.user.dir={work / 'ivy'}", "-jar", str(ivy), "-m2compatible"),
        *("-ivy", str(wanted.descriptor), "-confs", "default", "-types", "jar", "bundle"),
        *("-retrieve", f"{work / 'jars'}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log: list[str] = []
    with (
        Progress(f"fetching {wanted.name}", total=wanted.count) as progress,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            log.append(line.rstrip())
            if "[SUCCESSFUL ]" in line:
                progress.step()
    return process.returncode, log


def _reason(log: list[str]) -> str:
    """Return what Ivy says was wrong: its summary of problems, or else the end of what it wrote."""
    starts = [number for number, line in enumerate(log) if "problems summary" in line]
    summary = [line.strip() for line in log[starts[-1] :] if line.strip()] if starts else []
    return "\n".join(list(dict.fromkeys(summary))[1:12] or log[-12:])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
