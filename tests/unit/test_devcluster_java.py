"""Finding a Java runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit.devcluster import jars as java
from kpsplit.errors import KpsplitError


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "25-ea" 2025', 25),
        ("command not found", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_in_all_its_forms(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def test_java_home_comes_before_the_path(tmp_path: Path, no_bundle: None) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.path, found.version) == (home, 21)


def test_a_runtime_that_is_too_old_is_passed_over(tmp_path: Path, no_bundle: None) -> None:
    fake_java(tmp_path / "home", "11.0.2")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert found.path == on_path


def test_the_bundled_runtime_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_java(tmp_path / "bundle", "21.0.8")
    monkeypatch.setattr(java, "_bundled", lambda: bundled)
    found = java.find_java({"PATH": str(tmp_path)})
    assert (found.path, found.bundled) == (bundled, True)


def test_without_any_the_error_says_what_was_seen_and_what_to_install(
    tmp_path: Path, no_bundle: None
) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    with pytest.raises(KpsplitError, match="JAVA_HOME: .* is version 8") as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)})
    assert caught.value.hint is not None and "kpsplit[demo]" in caught.value.hint


def test_a_java_that_does_not_run_is_not_taken(tmp_path: Path, no_bundle: None) -> None:
    broken = tmp_path / "home" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("not a program")
    with pytest.raises(KpsplitError, match="not usable"):
        java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)})
