"""Fetches Kafka's jars once, into the cache folder, and verifies them.

How it is done:

1. Hold a lock file, so that of several processes one downloads and the others wait for it.
2. If the folder holds every jar of the committed list, with its SHA-256, nothing else happens.
3. Otherwise Apache Ivy, which PySpark ships, resolves `ivy.xml` into a temporary folder beside it.
4. The temporary folder is verified like any other, and renamed into place.

`python -m kpsplit.devcluster.jars` does this from a shell and prints the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kpsplit.devcluster.cache import cache_folder
from kpsplit.devcluster.java import Java, find_java
from kpsplit.devcluster.progress import Progress
from kpsplit.devcluster.truststore import java_trust_options
from kpsplit.errors import KpsplitError

KAFKA_VERSION = "4.1.1"

_HERE = Path(__file__).parent
_NEXT_STEP = "check the network, then run `python -m kpsplit.devcluster.jars` again"


def expected_jars() -> Mapping[str, str]:
    """Name of each jar → its SHA-256, from the list that is part of the package."""
    lines = (_HERE / f"kafka-{KAFKA_VERSION}.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def ensure_jars(java: Java | None = None, cache: Path | None = None) -> Path:
    """The folder with Kafka's jars, downloaded first if that is needed.

    Args:
        java: the runtime that runs Ivy; found when not given.
        cache: parent of the folder; the user's cache folder when not given.

    Raises:
        KpsplitError: no Java, no PySpark, no network, or not the jars that the list names.
    """
    parent = cache or cache_folder()
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"kafka-{KAFKA_VERSION}"
    with _locked(parent / f"{folder.name}.lock"):
        wrong = faults(folder, expected_jars())
        if wrong and folder.exists():
            sys.stderr.write(f"kpsplit: Kafka's jars are fetched again: {'; '.join(wrong[:3])}\n")
        if wrong:
            _install(java or find_java(), folder)
    return folder


def faults(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """What is wrong with the jars in `folder`, one sentence each; empty when all is well."""
    found = []
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif (actual := _sha256(path)) != digest:
            found.append(f"{name} has SHA-256 {actual[:16]}… instead of {digest[:16]}…")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(java: Java, folder: Path) -> None:
    """Download beside `folder`, verify, and rename into place."""
    ivy = _ivy_jar()
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _resolve(java, ivy, work)
        if wrong := faults(work / "jars", expected_jars()):
            raise KpsplitError(
                f"Kafka's jars are not the expected ones: {'; '.join(wrong[:3])}",
                hint=f"a proxy or mirror may have altered them; {_NEXT_STEP}",
            )
        if folder.exists():
            os.rename(folder, work / "replaced")
        os.rename(work / "jars", folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _ivy_jar() -> Path:
    """Ivy's own jar, among PySpark's."""
    spec = find_spec("pyspark")
    origin = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(origin.glob("jars/ivy-*.jar")) if origin else []
    if not found:
        raise KpsplitError(
            "the embedded cluster needs PySpark, whose Ivy fetches Kafka's jars",
            hint="run: pip install 'kpsplit[demo]'",
        )
    return found[-1]


def _resolve(java: Java, ivy: Path, work: Path) -> None:
    """Run Ivy; jars end up in `work`/jars, everything of Ivy's own in `work`/ivy."""
    code, log = _run_ivy(java, ivy, work, options=[])
    if code and java.bundled and (options := java_trust_options(work)):
        sys.stderr.write("trying again with the certificate authorities of this machine\n")
        code, log = _run_ivy(java, ivy, work, options)
    if code:
        hint = "install a system Java, or " if java.bundled else ""
        raise KpsplitError(f"fetching Kafka's jars failed:\n{_reason(log)}", hint=hint + _NEXT_STEP)


def _run_ivy(java: Java, ivy: Path, work: Path, options: Sequence[str]) -> tuple[int, list[str]]:
    """Run Ivy once; its exit code and what it wrote."""
    # Both types: some of the jars are published as OSGi bundles. No repository is named: Ivy has a default.
    command = [
        *(str(java.path), *options, f"-Divy.default.ivy.user.dir={work / 'ivy'}", "-jar", str(ivy)),
        *("-m2compatible", "-ivy", str(_HERE / "ivy.xml"), "-confs", "default", "-types", "jar", "bundle"),
        *("-retrieve", f"{work / 'jars'}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log: list[str] = []
    with (
        Progress(f"fetching Kafka {KAFKA_VERSION}", total=len(expected_jars())) as progress,
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
    """What Ivy says was wrong: its summary of problems, or else the end of what it wrote."""
    starts = [number for number, line in enumerate(log) if "problems summary" in line]
    summary = [line.strip() for line in log[starts[-1] :] if line.strip()] if starts else []
    return "\n".join(list(dict.fromkeys(summary))[1:12] or log[-12:])


def main() -> int:
    """Fetch the jars and print their folder; 1 with one line on stderr if that fails."""
    try:
        sys.stdout.write(f"{ensure_jars()}\n")
    except KpsplitError as error:
        sys.stderr.write(f"kpsplit: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
