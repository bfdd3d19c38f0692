"""Kafka's jars: verified against the committed list, fetched again when they are not the ones it names."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from kpsplit.devcluster import jars, process
from kpsplit.devcluster.jars import Java
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs import jars as connector

GOOD = {"a-1.jar": b"the first", "b-2.jar": b"the second"}
EXPECTED = {name: hashlib.sha256(content).hexdigest() for name, content in GOOD.items()}
JAVA = Java(Path("java"), 17)


def fill(folder: Path, content: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces Ivy by a source of good jars; lists the folders it was asked to fill."""
    return replace_ivy(monkeypatch, lambda work: fill(work / "jars", GOOD))


def replace_ivy(monkeypatch: pytest.MonkeyPatch, download: Callable[[Path], None]) -> list[Path]:
    asked: list[Path] = []

    def resolve(wanted: jars.WantedJars, java: Java, work: Path) -> None:
        asked.append(work)
        download(work)

    monkeypatch.setattr(jars, "expected_jars", lambda: EXPECTED)
    monkeypatch.setattr(process, "expected_jars", lambda: EXPECTED)
    monkeypatch.setattr(jars, "fetch", resolve)
    return asked


def test_the_list_names_kafka_and_what_it_needs() -> None:
    expected = jars.expected_jars()
    assert f"kafka_2.13-{jars.KAFKA_VERSION}.jar" in expected
    assert f"kafka-clients-{jars.KAFKA_VERSION}.jar" in expected
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in expected.values())


@pytest.mark.parametrize("spark", ["4.0.0", "4.1.1", "4.2.0"])
def test_the_connectors_of_some_versions_of_spark_are_known_beforehand(spark: str) -> None:
    expected = jars.read_list(Path(connector.__file__).with_name(f"connector-{spark}.sha256"))
    wanted = {f"kafka-clients-{connector.KAFKA_CLIENTS}.jar", f"spark-sql-kafka-0-10_2.13-{spark}.jar"}
    assert wanted < expected.keys() and len(expected) == 4
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in expected.values())


def test_a_connector_without_known_checksums_is_trusted_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connector, "spark_version", lambda: "9.9.9")
    monkeypatch.setattr(jars, "fetch", lambda wanted, java, work: fill(work / "jars", GOOD))
    folder = connector.ensure_connector(JAVA, tmp_path)
    assert "no checksums are known for Spark's Kafka connector 9.9.9" in capsys.readouterr().err
    assert connector.ensure_connector(JAVA, tmp_path) == folder and capsys.readouterr().err == ""
    (folder / "a-1.jar").write_bytes(b"altered")
    connector.ensure_connector(JAVA, tmp_path)
    assert (folder / "a-1.jar").read_bytes() == GOOD["a-1.jar"]


def test_missing_and_altered_jars_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a-1.jar": b"altered"})
    wrong = jars.faults(tmp_path, EXPECTED)
    assert len(wrong) == 2
    assert wrong[0].startswith("a-1.jar has SHA-256")
    assert wrong[1] == "b-2.jar is missing"


def test_a_jar_that_the_list_does_not_name_is_never_run(
    tmp_path: Path, downloads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = jars.ensure_jars(JAVA, tmp_path)
    (folder / "z-9.jar").write_bytes(b"foreign")
    kafka = KafkaRuntime(JAVA, folder, plugins=(tmp_path / "own.jar",))
    command = kafka.command("kafka.Kafka")
    path = command[command.index("-cp") + 1].split(os.pathsep)
    assert path == [*(str(folder / name) for name in EXPECTED), str(tmp_path / "own.jar")]
    jars.ensure_jars(JAVA, tmp_path)
    assert {entry.name for entry in folder.iterdir()} == EXPECTED.keys()
    assert "z-9.jar is not in the list of checksums" in capsys.readouterr().err


def test_a_first_call_downloads_and_a_second_does_not(tmp_path: Path, downloads: list[Path]) -> None:
    folder = jars.ensure_jars(JAVA, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == GOOD
    assert jars.ensure_jars(JAVA, tmp_path) == folder
    assert len(downloads) == 1


def test_a_corrupted_jar_is_fetched_again_with_the_reason(
    tmp_path: Path, downloads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = jars.ensure_jars(JAVA, tmp_path)
    (folder / "b-2.jar").write_bytes(b"corrupted")
    jars.ensure_jars(JAVA, tmp_path)
    assert (folder / "b-2.jar").read_bytes() == GOOD["b-2.jar"]
    assert "fetched again: b-2.jar has SHA-256" in capsys.readouterr().err


def test_jars_that_are_not_the_expected_ones_are_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_ivy(monkeypatch, lambda work: fill(work / "jars", {**GOOD, "a-1.jar": b"foreign"}))
    with pytest.raises(KpsplitError, match="not the expected ones: a-1.jar has SHA-256"):
        jars.ensure_jars(JAVA, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"kafka-{jars.KAFKA_VERSION}.lock"]


def test_a_download_that_breaks_off_leaves_the_old_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[Path]
) -> None:
    folder = jars.ensure_jars(JAVA, tmp_path)
    (folder / "a-1.jar").unlink()

    def fail(work: Path) -> None:
        raise KpsplitError("no network")

    replace_ivy(monkeypatch, fail)
    with pytest.raises(KpsplitError, match="no network"):
        jars.ensure_jars(JAVA, tmp_path)
    assert (folder / "b-2.jar").read_bytes() == GOOD["b-2.jar"]


def test_without_pyspark_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda name: None)
    with pytest.raises(KpsplitError, match="needs PySpark") as caught:
        jars.ensure_jars(JAVA, tmp_path)
    assert caught.value.hint is not None and "kpsplit[demo]" in caught.value.hint


@pytest.fixture(scope="module")
def scripts_jars() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "jars.py"
    spec = importlib.util.spec_from_file_location("scripts_jars", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_jar_is_in_a_bill_of_materials(scripts_jars: ModuleType) -> None:
    lists = scripts_jars.LISTS
    assert len(lists) == 1 + len(list((Path(jars.__file__).parents[1] / "spark_jobs").glob("*.sha256")))
    for file in lists:
        pinned = jars.read_list(file)
        components = scripts_jars.bill(pinned)["components"]
        assert {f"{c['name']}-{c['version']}.jar": c["hashes"][0]["content"] for c in components} == pinned
    split = {
        name: scripts_jars.component(f"{name}-{version}.jar", "")["version"] for name, version in ODD.items()
    }
    assert split == ODD


def test_the_bill_names_the_maven_group_that_a_jar_names_itself(scripts_jars: ModuleType) -> None:
    folder = jars.cache_folder() / f"kafka-{jars.KAFKA_VERSION}"
    if not folder.is_dir():
        pytest.skip("needs the cluster's jars: make jars")
    own = 0
    for jar in sorted(folder.glob("*.jar")):
        component = scripts_jars.component(jar.name, "")
        inside = [
            name.split("/")[2]
            for name in zipfile.ZipFile(jar).namelist()
            if name.endswith(f"/{component['name']}/pom.properties")
        ]
        own += len(inside)
        assert inside in ([], [component["group"]])
    assert own > 15


def test_the_audit_names_the_jars_that_have_advisories(
    scripts_jars: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    open_for = "pkg:maven/at.yawk.lz4/lz4-java"

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked.extend(query["package"]["purl"] for query in queries)
            vulns = [{"vulns": [{"id": "GHSA-1"}]} if purl.startswith(open_for) else {} for purl in asked]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": vulns}).encode())

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as service:
        answering = Thread(target=service.handle_request)
        answering.start()
        code = scripts_jars.audit(f"http://127.0.0.1:{service.server_port}")
        answering.join()
    assert code == 1
    assert "pkg:maven/org.apache.kafka/kafka_2.13@" in " ".join(asked)
    assert capsys.readouterr().out.startswith(open_for) and len(asked) == len(set(asked)) > 40


ODD = {"spark-sql-kafka-0-10_2.13": "4.0.0", "zstd-jni": "1.5.6-10", "kafka_2.13": "4.1.2", "re2j": "1.8"}
