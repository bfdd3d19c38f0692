"""Fetches Kafka's jars once, into the cache folder, and verifies them.

How it is done:

1. Hold a lock file, so that of several processes one downloads and the others wait for it.
2. If the folder holds every jar of the committed list, with its SHA-256, nothing else happens.
3. Otherwise Apache Ivy, which PySpark ships, resolves `ivy.xml` into a temporary folder beside it.
4. The temporary folder is verified like any other, and renamed into place.

`python -m kpsplit.devcluster.jars` does this from a shell and prints the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from kpsplit.devcluster.cache import cache_folder
from kpsplit.devcluster.ivy import Wanted, faults, fetch, locked, put_in_place, read_list
from kpsplit.devcluster.java import Java, find_java
from kpsplit.errors import KpsplitError

KAFKA_VERSION = "4.1.2"

_HERE = Path(__file__).parent
_NEXT_STEP = "check the network, then run `python -m kpsplit.devcluster.jars` again"


def expected_jars() -> Mapping[str, str]:
    """Name of each jar → its SHA-256, from the list that is part of the package."""
    return read_list(_HERE / f"kafka-{KAFKA_VERSION}.sha256")


def ensure_jars(java: Java | None = None, cache: Path | None = None) -> Path:
    """The folder with Kafka's jars, downloaded first if that is needed.

    Args:
        java: the runtime that runs Ivy; found when not given.
        cache: parent of the folder; the user's cache folder when not given.

    Raises:
        KpsplitError: no Java, no PySpark, no network, or not the jars that the list names.
    """
    folder = (cache or cache_folder()) / f"kafka-{KAFKA_VERSION}"
    with locked(folder):
        wrong = faults(folder, expected_jars())
        if wrong and folder.exists():
            sys.stderr.write(f"kpsplit: Kafka's jars are fetched again: {'; '.join(wrong[:3])}\n")
        if wrong:
            runtime = java or find_java()
            put_in_place(folder, lambda work: _fetch_verified(runtime, work))
    return folder


def _fetch_verified(java: Java, work: Path) -> None:
    """Download into a folder, and refuse what the list does not name."""
    expected = expected_jars()
    named = f"Kafka {KAFKA_VERSION}", _HERE / "ivy.xml", ("the embedded cluster", "demo")
    fetch(Wanted(*named, count=len(expected), next_step=_NEXT_STEP), java, work)
    if wrong := faults(work / "jars", expected):
        raise KpsplitError(
            f"Kafka's jars are not the expected ones: {'; '.join(wrong[:3])}",
            hint=f"a proxy or mirror may have altered them; {_NEXT_STEP}",
        )


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
