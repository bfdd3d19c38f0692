"""Write what the pinned jars are, or ask which of them have known vulnerabilities.

python scripts/jars.py bill FOLDER    CycloneDX files, one for each list (``make sbom``)
    python scripts/jars.py audit          the advisories of osv.dev (``make audit``); exit 1: some, 2: unknown
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kpsplit.devcluster.jars import read_list

ROOT = Path(__file__).parent.parent / "kpsplit"
LISTS = sorted([*ROOT.glob("devcluster/kafka-*.sha256"), *ROOT.glob("spark_jobs/connector-*.sha256")])
ADVISORIES = "https://api.osv.dev/v1/querybatch"
"""The service of https://google.github.io/osv.dev/post-v1-querybatch/. It gets names and versions only."""
TIMEOUT_S = 30.0
_JAR = re.compile(r"(?P<name>.+)-(?P<version>\d+(?:\.\d+)+(?:-\d+)?)\.jar")

GROUPS = {
    "HdrHistogram": "org.hdrhistogram",
    "argparse4j": "net.sourceforge.argparse4j",
    "caffeine": "com.github.ben-manes.caffeine",
    "commons-beanutils": "commons-beanutils",
    "commons-collections": "commons-collections",
    "commons-digester": "commons-digester",
    "commons-logging": "commons-logging",
    "commons-pool2": "org.apache.commons",
    "commons-validator": "commons-validator",
    "hash4j": "com.dynatrace.hash4j",
    "jackson-annotations": "com.fasterxml.jackson.core",
    "jackson-core": "com.fasterxml.jackson.core",
    "jackson-databind": "com.fasterxml.jackson.core",
    "jackson-dataformat": "com.fasterxml.jackson.dataformat",
    "jackson-datatype": "com.fasterxml.jackson.datatype",
    "jopt-simple": "net.sf.jopt-simple",
    "jose4j": "org.bitbucket.b_c",
    "jspecify": "org.jspecify",
    "kafka": "org.apache.kafka",
    "log4j": "org.apache.logging.log4j",
    "lz4-java": "at.yawk.lz4",
    "metrics-core": "com.yammer.metrics",
    "pcollections": "org.pcollections",
    "re2j": "com.google.re2j",
    "scala-logging": "com.typesafe.scala-logging",
    "scala": "org.scala-lang",
    "slf4j-api": "org.slf4j",
    "snakeyaml": "org.yaml",
    "snappy-java": "org.xerial.snappy",
    "spark": "org.apache.spark",
    "zstd-jni": "com.github.luben",
}
"""The Maven group of each jar, by its name or by what its name begins with: names of files have none."""


def component(jar: str, digest: str) -> dict[str, Any]:
    """Return one jar. Scala's version is a part of the name (``kafka_2.13``), not of the version."""
    found = _JAR.fullmatch(jar)
    if found is None:
        raise ValueError(f"{jar}: its name has no version")
    name, version = found.groups()
    prefixes = (prefix for prefix in GROUPS if re.match(rf"{re.escape(prefix)}(?![a-z0-9])", name))
    group = GROUPS[max(prefixes, key=len, default=name)]
    hashes = [{"alg": "SHA-256", "content": digest}]
    purl = f"pkg:maven/{group}/{name}@{version}"
    return {
        "type": "library",
        "group": group,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": hashes,
    }


def bill(digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the bill of materials of one list."""
    components = [component(jar, digest) for jar, digest in sorted(digests.items())]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def write_bills(folder: Path) -> None:
    """Write one file for each list."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in LISTS:
        target = folder / f"kpsplit-jars-{path.stem}.cdx.json"
        target.write_text(json.dumps(bill(read_list(path)), indent=2) + "\n", "utf-8")
        print(target, file=sys.stderr)


def advisories(purls: Sequence[str], url: str = ADVISORIES) -> dict[str, list[str]]:
    """Return the ids of the advisories for each package that has some.

    Raises:
        OSError: the service cannot be asked.
    """
    queries = json.dumps({"queries": [{"package": {"purl": purl}} for purl in purls]}).encode()
    request = urllib.request.Request(url, queries, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        results = json.load(answer)["results"]
    if len(results) != len(purls):
        raise OSError(f"{url}: {len(results)} answers to {len(purls)} questions")
    return {
        purl: [found["id"] for found in result["vulns"]]
        for purl, result in zip(purls, results, strict=True)
        if result.get("vulns")
    }


def audit(url: str = ADVISORIES) -> int:
    """Print the advisories for each pinned jar. Returns the exit code."""
    purls = sorted({component(jar, "")["purl"] for path in LISTS for jar in read_list(path)})
    found = advisories(purls, url)
    for purl, ids in found.items():
        print(f"{purl}: {', '.join(ids)}")
    print(f"{len(found)} of {len(purls)} jars have known vulnerabilities", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("bill").add_argument("folder", type=Path)
    verbs.add_parser("audit")
    given = parser.parse_args()
    if given.verb == "audit":
        try:
            return audit()
        except OSError as error:
            print(f"the jars were not judged: {ADVISORIES}: {error}", file=sys.stderr)
            return 2
    write_bills(given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
