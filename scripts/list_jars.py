"""Write what the pinned jars are, in CycloneDX form: names, versions and hashes, for ``make sbom``.

The lists hold no Maven groups, so a scanner finds a jar by its hash, or by its name and version.

    python scripts/list_jars.py FOLDER
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kpsplit.devcluster.jars import read_list

ROOT = Path(__file__).parent.parent / "kpsplit"
LISTS = sorted([*ROOT.glob("devcluster/kafka-*.sha256"), *ROOT.glob("spark_jobs/connector-*.sha256")])
_JAR = re.compile(r"(?P<name>.+)-(?P<version>\d+(?:\.\d+)+(?:-\d+)?)\.jar")


def component(jar: str, digest: str) -> dict[str, Any]:
    """Return one jar. Scala's version is a part of the name (``kafka_2.13``), not of the version."""
    found = _JAR.fullmatch(jar)
    if found is None:
        raise ValueError(f"{jar}: its name has no version")
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": "library", "name": found["name"], "version": found["version"], "hashes": hashes}


def bill(digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the bill of materials of one list."""
    components = [component(jar, digest) for jar, digest in sorted(digests.items())]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def main(folder: Path) -> None:
    """Write one file for each list."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in LISTS:
        target = folder / f"kpsplit-jars-{path.stem}.cdx.json"
        target.write_text(json.dumps(bill(read_list(path)), indent=2) + "\n", "utf-8")
        print(target, file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
